"""Evidence by who can write it: each kind says so, and one rule and docs/security.md follow from it."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.inspector.observation import sort
from slurm_robust.kernel.catalog import RULES, Topic
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.shapes import SHAPES
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.nodes import runner
from slurm_robust.nodes.check import CONFIRM, AnyCheck, Check, CheckContext
from slurm_robust.nodes.checks import disks
from slurm_robust.nodes.checks.disks import DisksFacts, Space
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.verdict import Report, conclude
from slurm_robust.policy.ladder import LADDER, WRITTEN_BY

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
USERS = [check for check in CHECKS if check.written_by.is_user]


def rows(title: str) -> list[list[str]]:
    """The cells of the table below a headline of docs/security.md, without its head."""
    section = PAGE.read_text().partition(f"\n### {title}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert lines, f"docs/security.md has no table below {title!r}"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_page_has_every_message_of_the_kernel() -> None:
    expected = [
        [f"`{shape.name}`", f"`{shape.check}`", shape.written_by.value, shape.suggestion.value]
        for shape in SHAPES.values()
    ]
    assert rows("Messages of the kernel") == expected


def test_the_page_has_every_rung_that_blames_nodes() -> None:
    found = {row[0].strip("`"): row[1] for row in rows("What takes a node from a job")}
    assert found == {rung.__name__: writer.value for rung, writer in WRITTEN_BY.items()}


def test_every_rung_that_blames_nodes_says_who_can_write_that() -> None:
    sources = {rung: ast.unparse(parsed(rung)) for rung in LADDER}
    blaming = {rung for rung, source in sources.items() if re.search(r"convict\(|blame=Blame.NODE", source)}
    assert blaming == WRITTEN_BY.keys()


def parsed(function: object) -> ast.Module:
    return ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]


def test_a_second_look_is_needed_only_at_what_users_can_write() -> None:
    assert [check.name for check in CHECKS if check.second and not check.written_by.is_user] == []
    assert all(check.confirm == (1 if check.second else CONFIRM) for check in USERS)
    assert all(check.confirm == 1 for check in CHECKS if check not in USERS)


def test_no_message_that_users_can_bring_about_keeps_jobs_away() -> None:
    shapes = [shape for shape in SHAPES.values() if shape.written_by.is_user]
    assert [shape.name for shape in shapes if shape.suggestion.keeps_jobs_away or shape.lasting] == []
    assert [
        rule.code
        for rule in RULES.values()
        if rule.topic is Topic.PROGRAM and rule.suggestion.keeps_jobs_away
    ] == []
    worst = {shape.check for shape in SHAPES.values() if shape.suggestion.keeps_jobs_away}
    assert [check.name for check in USERS if check.name in worst] == []


def test_links_of_the_page_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text())
    assert [link for link in links if "://" not in link and not (PAGE.parent / link).exists()] == []


# -- the rule at work ------------------------------------------------------------------------------

NOW = 1_800_000_000.0


class Node:
    """Runs of a check whose facts are given, with the memory of a real node."""

    def __init__(self, folder: Path, check: AnyCheck) -> None:
        self.folder = folder
        self.check = check
        self.now = NOW

    def run(self, context: CheckContext, facts: object, job_gone: bool | None) -> Report:
        source = msgspec.structs.replace(self.check.source, gather=lambda host, config: facts)
        check = msgspec.structs.replace(self.check, source=source)
        memory = Memory(self.folder)
        self.now += 300.0
        report = runner.inspect(
            NodeConfig(), context, host=Host(self.folder), memory=memory, now=self.now, budget_s=10.0,
            job_gone=job_gone, checks=[check],
        )  # fmt: skip
        return conclude(report, NodeConfig(), runner.failing_runs(report, memory))


def named(name: str) -> Check[DisksFacts]:
    return next(check for check in disks.CHECKS if check.name == name)


FULL = DisksFacts(spaces={"/tmp": Space(total_mb=10_000, free_mb=3)}, asked={"/tmp": ("/tmp",)})


def test_a_full_tmp_drains_no_node_while_the_job_runs_nor_at_once_when_it_ends(tmp_path: Path) -> None:
    node = Node(tmp_path, named("disks.space"))
    for _ in range(5):
        assert node.run(CheckContext.PERIODIC, FULL, job_gone=False).fit
    assert node.run(CheckContext.EPILOG, FULL, job_gone=True).fit
    assert node.run(CheckContext.DEEP, FULL, job_gone=True).fit
    assert node.run(CheckContext.PROLOG, FULL, job_gone=True).fit
    fit = [node.run(CheckContext.PERIODIC, FULL, job_gone=True).fit for _ in range(3)]
    assert fit == [True, True, False]
    assert not node.run(CheckContext.PROLOG, FULL, job_gone=True).fit


def test_runs_in_which_a_job_may_be_the_cause_do_not_count(tmp_path: Path) -> None:
    """Else a node whose jobs fail of a full /tmp, one after the other, would never be found out."""
    node = Node(tmp_path, named("disks.space"))
    gone = [True, False, True, False, False]
    assert all(node.run(CheckContext.PERIODIC, FULL, job_gone=job_gone).fit for job_gone in gone)
    assert not node.run(CheckContext.PERIODIC, FULL, job_gone=True).fit


def test_a_run_in_between_that_passes_begins_the_count_anew(tmp_path: Path) -> None:
    node = Node(tmp_path, named("disks.space"))
    roomy = DisksFacts(spaces={"/tmp": Space(total_mb=10_000, free_mb=9_000)}, asked={"/tmp": ("/tmp",)})
    for facts in (FULL, FULL, roomy, FULL, FULL):
        assert node.run(CheckContext.PERIODIC, facts, job_gone=True).fit
    assert not node.run(CheckContext.PERIODIC, FULL, job_gone=True).fit


@pytest.mark.parametrize(
    ("confirm", "blame", "alerts"), [(1, Party.NODE, 1), (3, Party.NODE, 0), (3, Party.SITE, 1)]
)
def test_what_users_can_write_is_no_alert_against_a_node(confirm: int, blame: Party, alerts: int) -> None:
    finding = Finding(
        check="memory.free", outcome=Outcome.FAIL, blame=blame, suggestion=Suggestion.REBOOT, confirm=confirm
    )
    report = Report(node="n1", at=NOW, boot_id="b", context=CheckContext.PERIODIC, findings=(finding,))
    judged = conclude(report, NodeConfig(), {"memory.free": 9})
    assert not judged.fit
    assert len(sort(judged, CHECKS).failed) == alerts


def test_who_is_an_ordinary_user() -> None:
    assert {writer for writer in Writer if writer.is_user} == {Writer.OWNER, Writer.USER}


def test_a_judge_may_ask_for_more_looks_than_its_check_never_for_less(tmp_path: Path) -> None:
    def said(confirm: int, check: AnyCheck) -> int:
        finding = Finding(check=check.name, outcome=Outcome.FAIL, confirm=confirm)
        asked = msgspec.structs.replace(check, judge=lambda view, config: [finding])
        node = Node(tmp_path / f"{check.name}-{confirm}", asked)
        return node.run(CheckContext.PERIODIC, FULL, job_gone=True).warnings[0].confirm

    assert [said(confirm, named("disks.space")) for confirm in (1, 3, 5)] == [3, 3, 5]
    assert [said(confirm, named("disks.errors")) for confirm in (1, 3, 5)] == [1, 3, 5]
