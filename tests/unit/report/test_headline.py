"""What a reader of a report sees first."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from slurm_robust.report.headline import Tone, banner, figures, lost_rows, widths
from slurm_robust.report.job_report import JobReport, SlurmFacts, job_report
from slurm_robust.report.job_text import render
from slurm_robust.slurm.need import Places
from slurm_robust.trainings.waiting import PendingJob
from tests.unit.ledger.journals import Journal, at
from tests.unit.report.pictured import short
from tests.unit.report.test_job_report import job, report

WAITS = PendingJob(
    since=at(113), reason="ReqNodeNotAvail", least=4, most=4, places=Places(free=("n1", "n3"), dead=("n2",)),
    command="scontrol update JobId=7 ExcNodeList=", why="to start it now",
)  # fmt: skip
RUNS = SlurmFacts(state="RUNNING", now=at(262))


def waiting() -> JobReport:
    facts = SlurmFacts(state="PENDING", now=at(153), waiting=WAITS)
    return job_report(short().events, at(999), facts, {})


def test_a_job_that_waits_after_a_requeue_says_for_what_and_the_way_out() -> None:
    found = banner(waiting())
    assert (found.tone, found.text) == (Tone.BAD, "Waits in Slurm's queue for 40 s for 4 nodes")
    for words in ("2 nodes free (n[1,3])", "n2 dead", "scontrol update JobId=7 ExcNodeList="):
        assert words in found.more


@pytest.mark.parametrize(
    ("journal", "slurm", "tone", "text"),
    [
        (short(requeued=True), RUNS, Tone.GOOD, "Training, step 225 is done"),
        (job(), SlurmFacts(), Tone.WARNING, "Requeueing"),
        (Journal().controller(0).allocation(0).launch(1, 1), SlurmFacts(), Tone.WARNING, "Starting"),
        (job().opened(170, 2, 2, 3), SlurmFacts(now=at(180)), Tone.WARNING, "Requeueing"),
        (Journal().controller(0).over(9), SlurmFacts(), Tone.GOOD, "Finished, exit code 0"),
        (Journal().controller(0).over(9, 93), SlurmFacts(), Tone.BAD, "Stopped, exit code 93"),
    ],
)  # fmt: skip
def test_how_a_job_stands_is_one_line_with_a_colour(
    journal: Journal, slurm: SlurmFacts, tone: Tone, text: str
) -> None:
    found = banner(job_report(journal.events, at(999), slurm, {}))
    assert (found.tone, found.text) == (tone, text)


def test_a_job_without_an_end_in_the_journal_is_told_of_by_both_witnesses() -> None:
    done = banner(report(short(requeued=True), state="COMPLETED", ended=True))
    assert done.tone is Tone.PLAIN, "nothing is known to be wrong"
    assert done.more == "Slurm says COMPLETED (exit code 0), but the journal has no end: it was training"
    failed = banner(report(short(requeued=True), state="FAILED", ended=True))
    assert (failed.tone, failed.more) == (Tone.BAD, "Slurm has ended the job (FAILED); it was training")


def test_a_training_whose_next_job_has_not_begun_waits() -> None:
    found = banner(replace(report(job()), phase="pending", reason="Priority", ended=False))
    assert (found.tone, found.text) == (Tone.WARNING, "Waits in Slurm's queue")


def test_a_requeued_job_of_which_slurm_says_nothing_is_not_said_to_wait() -> None:
    unseen = replace(waiting(), waiting=None, slurm="")
    assert (unseen.phase, banner(unseen).text) == ("requeued", "Requeued")
    assert banner(replace(unseen, slurm="PENDING")).text.startswith("Waits in Slurm's queue for ")


def test_a_job_that_recovers_says_for_how_long() -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(20, 1, 10)
    journal.opened(30, 1, 1, 5).ended(31, 1, 9)
    found = banner(job_report(journal.events, at(999), SlurmFacts(state="RUNNING", now=at(37)), {}))
    assert (found.tone, found.text, found.more) == (Tone.WARNING, "Recovering for 12 s", "incident 1: hang")


def test_a_figure_has_one_number_and_an_open_incident_is_red() -> None:
    found = {figure.name: figure for figure in figures(waiting())}
    assert list(found)[:3] == ["ETTR", "incidents", "lost"]
    assert (found["incidents"].text, found["incidents"].tone) == ("3 (1 open)", Tone.BAD)
    assert "last hour" not in found
    assert "lost on GPUs" not in found
    assert "lost on GPUs" in {figure.name for figure in figures(report(job()))}


def test_lost_time_by_cause_adds_up_to_all_that_was_lost() -> None:
    found = waiting()
    rows = lost_rows(found)
    assert sum(row.lost.ms for row in rows) == found.ledger.lost.ms
    assert rows[-1].cause == "outside of incidents"
    assert sum(row.incidents for row in rows) == 3


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=10), st.integers(0, 200))
def test_the_parts_of_a_bar_are_as_wide_as_the_bar(shares: list[float], whole: int) -> None:
    of_all = tuple(share / sum(shares) for share in shares)
    assert sum(widths(of_all, whole)) == whole


@pytest.mark.parametrize("width", [40, 80, 160])
def test_the_text_has_the_bar_in_one_line_and_incidents_by_the_same_numbers(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(render(waiting()))
    lines = out.getvalue().splitlines()
    (bar,) = [line for line in lines if line.startswith("|")]
    assert bar.rstrip().endswith("|")
    assert len(bar.rstrip()) <= min(width, 100)
    assert "training" in bar
    rows = [words[0] for line in lines if (words := line.split())[1:2] == ["01-12"]]
    assert rows == ["1", "2", "3"]
