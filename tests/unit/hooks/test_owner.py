"""What prolog and epilog saw, in the job's folder: as the job's user and never as root."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slurm_robust.config.node import Hooks, NodeConfig, Paths
from slurm_robust.hooks.owner import FileFound, tell
from slurm_robust.hooks.seen import MAX_KEPT, SKIP, keep, seen_by, take, wants_no_tests
from slurm_robust.hooks.suspects import Ignored
from slurm_robust.kernel.events import KernelFacts
from slurm_robust.kernel.kmsg import KernelEvent
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.model.nodeseen import DriverError, HookSeen, NodeSeen, grown
from slurm_robust.nodes.check import CheckContext, View
from slurm_robust.nodes.checks.gpu import GPUS
from slurm_robust.nodes.checks.infiniband import SOURCE as INFINIBAND
from slurm_robust.nodes.checks.infiniband import InfinibandFacts, Port
from slurm_robust.nodes.checks.kernel import SOURCE as KERNEL
from slurm_robust.nodes.gpus.facts import Gpu, GpuFacts
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.verdict import Report
from tests.unit.hooks.test_hook import Machine
from tests.unit.hooks.test_suspects import ALICE, BOB, Home, home, own
from tests.users import as_root

__all__ = ["home"]
BAD = Finding(
    check="gpu.xid", outcome=Outcome.FAIL, subject="gpu3", text="XID 94", suggestion=Suggestion.MONITOR
)


@pytest.mark.parametrize(
    ("before", "after", "rises"),
    [
        ({}, {}, {}),
        ({"gpu0": {"x": 1}}, {"gpu0": {"x": 3}}, {"gpu0": {"x": 2}}),
        ({"gpu0": {}}, {"gpu0": {"x": 3}}, {"gpu0": {"x": 3}}),  # counters of 0 are not written
        ({"gpu0": {"x": 3}}, {"gpu0": {"x": 3}}, {}),
        ({"gpu0": {"x": 9}}, {"gpu0": {"x": 1}}, {}),  # it began anew
        ({"gpu0": {"x": 9}}, {"gpu0": {}}, {}),
        ({}, {"mlx5_0/1": {"x": 7}}, {}),  # nobody read it before
        ({"mlx5_0/1": {"x": 7}}, {}, {}),
        ({"a": {"x": 1, "y": 1}}, {"a": {"x": 1, "y": 2}, "b": {"x": 1}}, {"a": {"y": 1}}),
    ],
)
def test_only_what_rose_between_two_readings_has_grown(
    before: dict[str, dict[str, int]], after: dict[str, dict[str, int]], rises: dict[str, dict[str, int]]
) -> None:
    assert grown(before, after) == rises


@pytest.mark.parametrize(
    ("may", "comment", "wanted"),
    [
        (True, SKIP, True),
        (True, f"sweep 7 {SKIP}", True),
        (True, f"sweep 7,{SKIP},x", True),
        (False, SKIP, False),
        (True, "", False),
        (True, f"{SKIP}s", False),
        (True, f"no-{SKIP}", False),
        (True, SKIP.upper(), False),
    ],
)
def test_tests_are_skipped_where_the_site_allows_it_and_the_job_says_the_word(
    may: bool, comment: str, wanted: bool
) -> None:
    config = NodeConfig(hooks=Hooks(may_skip=may))
    assert wants_no_tests(config, {"SLURM_JOB_COMMENT": comment}) is wanted
    assert not wants_no_tests(config, {"SLURM_JOB_EXTRA": SKIP, "SPANK_SLURM_JOB_COMMENT": SKIP})


class Node:
    """A node whose prolog and epilog read these facts."""

    def __init__(self, state: Path) -> None:
        self.config = NodeConfig(paths=Paths(state=str(state)))
        self.now = time.time()

    def run(
        self,
        *findings: Finding,
        errors: int = 0,
        downed: int = 0,
        xids: tuple[int, ...] = (),
        boot: str = "b",
    ) -> tuple[Report, Memory]:
        memory = Memory(Path(self.config.paths.state))
        port = Port(state="ACTIVE", counters={"link_downed": downed} if downed else {})
        events = tuple(
            KernelEvent(
                shape="xid", code=code, subject="0000:1b:00.0", last_at=self.now - 1, line="pid=7, name=x"
            )
            for code in xids
        )
        for source, facts in (
            (INFINIBAND, InfinibandFacts(ports={"mlx5_0/1": port})),
            (GPUS, GpuFacts(gpus=(Gpu(index=3, link_errors=errors, clique="u/1"), Gpu(index=4)))),
            (KERNEL, KernelFacts(boot_at=0.0, events=events)),
        ):
            memory.remember(source, View(at=self.now, boot_id=boot, facts=facts))
        report = Report(node="n1", at=self.now, boot_id=boot, context=CheckContext.EPILOG, findings=findings)
        return report, memory

    def prolog(self, **facts: Any) -> None:
        report, memory = self.run(**facts)
        keep(self.config, 7, seen_by(report, memory))
        self.now += 60


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "state")


def told(home: Home) -> list[NodeSeen]:
    folder = home.folder.parent / "nodes"
    return [msgspec.json.decode(path.read_bytes(), type=NodeSeen) for path in sorted(folder.iterdir())]


@as_root
def test_the_owner_learns_what_the_hooks_saw_and_what_grew(home: Home, node: Node) -> None:
    node.prolog(errors=5)
    assert isinstance(
        tell(node.config, home.environ, *node.run(BAD, errors=9, downed=2, xids=(94,))), FileFound
    )
    (seen,) = told(home)
    assert (seen.job_id, seen.node, seen.epilog.findings) == (7, "n1", (BAD,))
    assert seen.grown == {"mlx5_0/1": {"link_downed": 2}, "gpu3": {"link_errors": 4}}
    assert seen.epilog.cliques == ("u/1",)
    assert [(error.kind, error.code, error.subject) for error in seen.errors] == [("xid", 94, "0000:1b:00.0")]
    (file,) = (home.folder.parent / "nodes").iterdir()
    assert b"name=x" not in file.read_bytes()  # the line names a process
    assert (file.stat().st_uid, stat.S_IMODE(file.stat().st_mode)) == (ALICE, 0o600)
    assert (file.parent.stat().st_uid, stat.S_IMODE(file.parent.stat().st_mode)) == (ALICE, 0o700)
    # the next run of the job has a file of its own, and the prolog's half is not told twice
    node.now += 100
    tell(node.config, home.environ, *node.run())
    assert [one.prolog is None for one in told(home)] == [False, True]


@as_root
def test_what_was_counted_before_a_boot_has_not_grown(home: Home, node: Node) -> None:
    node.prolog(errors=5)
    tell(node.config, home.environ, *node.run(errors=9, boot="another"))
    (seen,) = told(home)
    assert (seen.grown, seen.prolog is not None) == ({}, True)


@as_root
def test_a_job_without_such_a_directory_and_one_of_root_get_nothing(home: Home, node: Node) -> None:
    elsewhere = {**home.environ, "SLURM_JOB_ID": "8"}
    assert tell(node.config, elsewhere, *node.run()) is None
    assert tell(node.config, {**home.environ, "SLURM_JOB_UID": "0"}, *node.run()) is None
    assert tell(node.config, {}, *node.run()) is None


def link(home: Home) -> None:
    target = home.path.parent / "secret"
    target.mkdir(mode=0o777)
    (home.folder.parent / "nodes").symlink_to(target)


def another_users(home: Home) -> None:
    nodes = home.folder.parent / "nodes"
    nodes.mkdir(mode=0o777)
    own(nodes, BOB)


def a_file(home: Home) -> None:
    (home.folder.parent / "nodes").touch()


def closed(home: Home) -> None:
    nodes = home.folder.parent / "nodes"
    nodes.mkdir(mode=0o500)
    own(nodes)


def linked_job(home: Home) -> None:
    job = home.folder.parent
    target = home.path.parent / "secret"
    job.rename(target)
    job.symlink_to(target)


def bobs_job(home: Home) -> None:
    own(home.folder.parent, BOB)
    home.folder.parent.chmod(0o777)


@as_root
@pytest.mark.parametrize("trick", [link, another_users, a_file, closed, linked_job, bobs_job])
def test_no_trick_makes_root_write(home: Home, node: Node, trick: Callable[[Home], None]) -> None:
    before = {path for path in home.path.parent.rglob("*") if "state" not in path.parts}
    trick(home)
    after = {path for path in home.path.parent.rglob("*") if "state" not in path.parts}
    assert isinstance(tell(node.config, home.environ, *node.run(BAD)), Ignored)
    assert {path for path in home.path.parent.rglob("*") if "state" not in path.parts} == after
    assert before


def test_the_node_keeps_a_bounded_number_of_jobs_for_root_alone(node: Node) -> None:
    for job in range(MAX_KEPT + 10):
        keep(node.config, job, HookSeen(at=float(job)))
    kept = list(Path(node.config.paths.state, "jobs").iterdir())
    assert len(kept) == MAX_KEPT
    assert stat.S_IMODE(kept[0].parent.stat().st_mode) == 0o700
    assert take(node.config, MAX_KEPT + 9) == HookSeen(at=MAX_KEPT + 9)
    assert take(node.config, MAX_KEPT + 9) is None


def test_a_damaged_half_and_a_folder_that_cannot_be_made_are_as_none(node: Node, tmp_path: Path) -> None:
    keep(node.config, 7, HookSeen(at=1.0))
    (tmp_path / "state/jobs/7.json").write_bytes(b'{"at":')
    assert take(node.config, 7) is None
    full = NodeConfig(paths=Paths(state=str(tmp_path / "file")))
    (tmp_path / "file").touch()
    keep(full, 7, HookSeen(at=1.0))
    assert take(full, 7) is None


@pytest.mark.parametrize(
    ("seen", "silent"),
    [
        (NodeSeen(job_id=7, node="n1", epilog=HookSeen(at=1.0)), True),
        (NodeSeen(job_id=7, node="n1", epilog=HookSeen(at=1.0, counters={"gpu0": {"x": 1}})), True),
        (NodeSeen(job_id=7, node="n1", epilog=HookSeen(at=1.0, findings=(BAD,))), False),
        (NodeSeen(job_id=7, node="n1", epilog=HookSeen(at=1.0), grown={"gpu0": {"x": 1}}), False),
        (
            NodeSeen(job_id=7, node="n1", epilog=HookSeen(at=1.0), prolog=HookSeen(at=0.0, skipped=True)),
            False,
        ),
        (
            NodeSeen(
                job_id=7,
                node="n1",
                epilog=HookSeen(at=1.0),
                errors=(DriverError(kind="xid", code=94, subject="x", at=1.0),),
            ),
            False,
        ),
    ],
)
def test_a_node_on_which_nothing_happened_is_silent(seen: NodeSeen, silent: bool) -> None:
    assert seen.is_silent is silent


# -- the hooks as programs --------------------------------------------------------------------------------


@as_root
@pytest.mark.slow
def test_a_job_that_skips_the_tests_starts_on_a_bad_node_and_both_records_say_so(home: Home) -> None:
    machine = Machine(home.path.parent)
    machine.fan.write_text("0")
    (machine.slurm / "answers").touch()
    env = {"SLURMD_NODENAME": "n1", **home.environ, "SLURM_JOB_COMMENT": SKIP}
    machine.configure("drain: {mode: act}", prolog_s=8, epilog_s=8, may_skip="true")
    assert machine.run("prolog", env=env) == 0
    (skipped,) = machine.events
    assert (skipped["event"], skipped["job"], skipped["uid"]) == ("tests_skipped", 7, ALICE)
    machine.fan.write_text("500")
    assert machine.run("epilog", env=env) == 0
    (seen,) = told(home)
    assert seen.prolog is not None
    assert seen.prolog.skipped
    # the word alone does nothing
    machine.fan.write_text("0")
    machine.configure("drain: {mode: act}", prolog_s=8)
    assert machine.run("prolog", env=env) == 1


@as_root
@pytest.mark.slow
def test_a_site_can_tell_owners_nothing(home: Home) -> None:
    machine = Machine(home.path.parent)
    machine.configure(tell_owner="false", epilog_s=8)
    env = {"SLURMD_NODENAME": "n1", **home.environ}
    assert (machine.run("prolog", env=env), machine.run("epilog", env=env)) == (0, 0)
    assert not (home.folder.parent / "nodes").exists()
    assert not (machine.folder / "state/jobs").exists()
