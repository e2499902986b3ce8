"""The two pages for a hurry, on call and quick reference: screens and commands are those of the program."""

from __future__ import annotations

import re

import pytest

from slurm_robust.cli.main import make_parser
from slurm_robust.cli.words import parse
from slurm_robust.model.errors import ExitCode
from slurm_robust.report.situation import JobSituation, Seen, judge
from slurm_robust.slurm.need import Places
from slurm_robust.trainings import waiting
from slurm_robust.trainings.waiting import PendingJob
from slurm_robust.util.text import one_line
from tests.builders.live_statuses import live_status
from tests.pages import DOCS, commands

ON_CALL = (DOCS / "on-call.md").read_text()
NOW = 2000.0


def said(text: str) -> str:
    """``text`` without the breaks and indents of a screen."""
    return " ".join(text.split())


SCREENS = {
    "a requeued job": Seen(
        job_id=4711,
        phase="requeued",
        reason="",
        evicted={"n5": "two starts failed"},
        waiting=PendingJob(
            since=NOW - 480.0,
            reason="Resources",
            least=4,
            most=5,
            places=Places(free=("n1", "n3", "n4"), dead=("n2",), left_out=("n5",), left_out_free=("n5",)),
            command="scontrol update JobId=4711 ExcNodeList=",
            why="to start it now (uses n5 again)",
            uses=("n5",),
        ),
    ),
    "a late step": Seen(
        job_id=4711,
        phase="training",
        reason="",
        live=live_status(step=265, step_age_s=13.0, usual_step_s=0.31, hang_s=14.0),
    ),
    "full storage": Seen(
        job_id=4711,
        phase="training",
        reason="",
        live=live_status(held=True, trouble="No space left on device", behind=12),
    ),
    "NaN": Seen(job_id=4711, phase="training", reason="", live=live_status(non_finite=True)),
    "a silent controller": Seen(job_id=4711, phase="training", reason="", silent_s=40.0),
}


@pytest.mark.parametrize("screen", SCREENS)
def test_on_call_quotes_what_the_status_says(screen: str) -> None:
    found: JobSituation = judge(SCREENS[screen], NOW)
    page = said(ON_CALL)
    assert found.wrong
    assert [text for text in found.wrong if said(one_line(text, None)) not in page] == []
    if found.doing:
        assert said(found.doing) in page
    if found.advice is not None:
        assert said(found.advice.text) in page or found.advice.command.startswith("srobust ")
        assert found.advice.command in page


def test_on_call_has_every_reason_for_which_a_job_is_pending() -> None:
    reasons = {*waiting._OF_NODES, *(name for name, _ in waiting._OTHERS)}
    said_by_others = {"None", "Nodes_required", "DependencyNeverSatisfied", "JobArrayTaskLimit"}
    missing = [r for r in sorted(reasons - said_by_others) if not re.search(rf"`{r}\b|`{r}…|{r}…", ON_CALL)]
    assert missing == []


def test_every_row_of_the_first_table_leads_to_a_screen_or_another_page() -> None:
    anchors = re.findall(r"\]\(#([^)]+)\)", ON_CALL.partition("\n## ")[0])
    headings = [
        re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-")
        for h in re.findall(r"^## (.+)$", ON_CALL, re.MULTILINE)
    ]
    assert sorted(anchors) == sorted(headings)


@pytest.mark.parametrize("heading", re.findall(r"^## (.+)$", ON_CALL, re.MULTILINE))
def test_every_screen_has_a_command_a_cost_and_whom_to_wake(heading: str) -> None:
    section = ON_CALL.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    assert "```bash\n" in section
    assert re.search(r"^\* \*\*It costs\*\*", section, re.MULTILINE)
    assert re.search(r"^\* \*\*Wake somebody\*\*", section, re.MULTILINE)
    assert re.search(r"^\* \*\*Why\*\*: \[", section, re.MULTILINE)


def test_on_call_names_the_codes_by_which_a_job_may_be_gone() -> None:
    section = ON_CALL.partition("\n## Job gone\n")[2].partition("\n## ")[0]
    named = {int(code) for code in re.findall(r"^\| (\d+)[ ,]", section, re.MULTILINE)}
    assert named <= {int(code) for code in ExitCode}
    assert {ExitCode.TERMINATED, ExitCode.REQUEUED, ExitCode.DO_NOT_REQUEUE, ExitCode.CHECKPOINTS} <= named


@pytest.mark.parametrize("page", ["on-call.md", "quick-reference.md"])
def test_commands_within_a_sentence_have_options_that_there_are(page: str) -> None:
    parser = make_parser()
    text = re.sub(r"^```.*?^```", "", (DOCS / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    given = [argv for code in re.findall(r"`(srobust [^`]+)`", text) for argv in commands(code, "srobust")]
    assert given
    for _, *argv in given:
        parse(parser, argv)
