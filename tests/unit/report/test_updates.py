"""A job whose code changes, as people read of it: status, incidents, report and its page, trace."""

from __future__ import annotations

import csv
import io

import pytest
from msgspec import structs
from rich.console import Console, RenderableType

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.model import events as ev
from slurm_robust.model.incident import GiveUp
from slurm_robust.report import incident_view, status
from slurm_robust.report.job_report import SlurmFacts, job_report
from slurm_robust.report.job_text import CsvTable, csv_text, render
from slurm_robust.report.job_view import JobView
from slurm_robust.report.page.page import page_of
from slurm_robust.report.trace import trace_of
from tests.builders import updates as job
from tests.builders.updates import BATCH, BEGIN, FIRST, LAYERS, NEXT, TYPO

NOW = BEGIN + 730
EVIL = "</code><script>alert(1)</script>\x1b[2J\u202e"


def screen(shown: RenderableType, width: int = 150) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        console.print(shown)
    return " ".join(capture.get().split())


def status_of(events: list[ev.AnyEvent], t: float) -> str:
    return screen(status.render(status.status_at(JobView(events=events), BEGIN + t)))


REPORT = job_report(job.whole(), NOW, SlurmFacts(), {})


# -- status ----------------------------------------------------------------------------------------


def test_the_status_names_the_release_that_runs_and_the_update_that_waits() -> None:
    text = status_of(job.whole(), 730)
    assert f"release {BATCH}, good " in text
    waits = "waits for the next recovery, 2 h 0 min at most"
    assert f"update 5 to release {NEXT} {waits}; by alice (uid 1000) on login1: a lower rate" in text


def test_the_status_says_since_when_a_candidate_runs_and_what_ran_before() -> None:
    events = [*job.start(), *job.good()[:10]]
    assert f"release {BATCH}, candidate of update 1 since step 201; before it {FIRST}" in status_of(
        events, 215
    )
    assert f"release {BATCH}, candidate of update 1, no step yet" in status_of(events[:-1], 212)


def test_the_status_says_that_an_update_is_being_tried() -> None:
    text = status_of([*job.start(), *job.good()[:3]], 205)
    assert (
        f"update 1 to release {BATCH} is being tried; by alice (uid 1000) on login1: a larger batch" in text
    )


def test_the_status_says_for_which_update_ranks_are_started() -> None:
    events = [*job.start(), *job.good()[:9]]
    assert "state starting: for update 1" in status_of(events, 212)
    assert "state starting: for update 1" in status_of(events[:-2], 210.6)
    assert "state training Slurm" in status_of([*events, job.first_step(214, 2, 201)], 215)


def test_a_job_that_is_over_has_no_update_that_waits() -> None:
    over = ev.RunEnded(t=BEGIN + 730, code=0, reason="done")
    assert "update 5 to" not in status_of([*job.whole(), over], 731)


def test_a_job_without_releases_says_nothing_of_them() -> None:
    events = [
        structs.replace(event, release="") if isinstance(event, ev.GenerationLaunched) else event
        for event in job.start()
        if not isinstance(event, ev.ReleaseTaken | ev.ReleaseProven)
    ]
    assert "release" not in status_of(events, 120)
    assert "pdate" not in screen(render(job_report(events, NOW, SlurmFacts(), {}))).replace("hot update", "")


# -- incidents -------------------------------------------------------------------------------------


def facts(number: int) -> dict[str, str]:
    every = {entry.row.number: entry for entry in REPORT.incidents}
    return every[number].facts


def test_an_incident_on_a_candidate_names_who_brought_it_and_what_it_changes() -> None:
    assert facts(2)["release"] == (
        f"{LAYERS}, not good yet: update 3 to release {LAYERS} by alice (uid 1000) on login1: twelve layers, "
        "applied 12 s before; 2 changes: train.py: 1 line changed, model.py: 20 lines added"
    )
    assert "release" not in facts(1)


def test_a_rollback_is_blamed_on_the_change_and_names_the_way_out() -> None:
    assert (
        facts(2)["blamed"] == "the code (IndexError at train.py:40) (by the change of its release, 90% sure)"
    )
    assert facts(2)["done"] == f"roll release {LAYERS} back to {BATCH}, from step 450, restart"
    diff = f"'srobust diff 4711 {BATCH} {LAYERS}' shows what changed"
    assert facts(2)["next"] == f"{diff}; 'srobust update 4711' tries the mended code"
    assert "next" not in facts(1)
    (root, lines) = (REPORT.incidents[1].root, REPORT.incidents[1].lines)
    assert "IndexError" in root
    assert lines[-1] == "IndexError: index 12"


def test_a_job_that_a_candidate_ends_names_the_command_that_shows_what_changed() -> None:
    events = [*job.start(), *job.good(), *job.rolled_back()]
    place = next(
        i for i, e in enumerate(events) if isinstance(e, ev.Decided) and e.verdict and e.verdict.rung == 7
    )
    last = events[place]
    assert isinstance(last, ev.Decided)
    given_up = structs.replace(last, actions=(GiveUp(code=93, reason="x"),))
    over = ev.RunEnded(t=last.t + 1, code=93, reason="x")
    found = job_report([*events[:place], given_up, over], NOW, SlurmFacts(), {}).incidents[1]
    assert found.facts["next"] == f"'srobust diff 4711 {BATCH} {LAYERS}' shows what changed"


def test_the_timeline_says_that_the_recovery_took_the_update_along() -> None:
    told = [entry.text for entry in REPORT.incidents[0].timeline if entry.what == "update"]
    assert told == [f"update 3 is applied: release {LAYERS} runs instead of {BATCH}"]


def test_what_happens_to_an_update_while_an_incident_is_open_is_in_its_timeline() -> None:
    events = [*job.start(), *job.good(), *job.rolled_back()]
    place = next(i for i, e in enumerate(events) if isinstance(e, ev.IncidentOpened))
    events[place + 1 : place + 1] = [*job.refused(561), job.requested(562, 6, FIRST, rollback=True)]
    entries = job_report(events, NOW, SlurmFacts(), {}).incidents[0].timeline
    assert [entry.text for entry in entries if entry.what == "update"][:4] == [
        f"alice (uid 1000) on login1 requests update 2 to release {TYPO}, lazy: flash attention",
        "the trial of update 2 failed on n2: ModuleNotFoundError: No module named 'flash', 8.2 s",
        "update 2 is refused: ModuleNotFoundError: No module named 'flash'",
        f"alice (uid 1000) on login1 requests update 6 to release {FIRST}, lazy",
    ]


def test_updates_are_listed_beside_incidents() -> None:
    found = incident_view.listing(JobView(events=job.whole()), "training", None)
    text = screen(incident_view.render_list(found))
    assert "2 incidents" in text
    assert "Updates" in text
    assert "lazy: twelve layers" in text


def test_with_fewer_incidents_only_the_updates_since_then_are_listed() -> None:
    found = incident_view.listing(JobView(events=job.whole()), "training", 1)
    assert [row.number for row in found.updates] == [4, 5]


def test_updates_of_a_job_without_incidents_are_listed() -> None:
    found = incident_view.listing(JobView(events=[*job.start(), *job.good()]), "training", None)
    text = screen(incident_view.render_list(found))
    assert text.startswith("job 4711 (training): no incident Updates")


# -- the report ------------------------------------------------------------------------------------


def test_the_report_counts_updates_by_result_and_shows_what_they_cost() -> None:
    text = screen(render(REPORT))
    assert "updates 5 (1 waiting, 1 good, 1 rolled back, 1 refused, 1 superseded)" in text
    assert f"{BATCH} alice 4.5 s now: a larger batch good: 100 steps" in text
    assert f"{LAYERS} alice incident 1 lazy: twelve layers rolled back to {BATCH}" in text


def test_the_class_updating_is_what_training_stood_still_for() -> None:
    stopped_ms = sum(round(1000 * (row.stopped_s or 0.0)) for row in REPORT.updates)
    step_ms = 1000  # the first step of the new release counts
    assert REPORT.ledger.classes[TimeClass.UPDATING] == pytest.approx(stopped_ms - step_ms, abs=50)


def test_updates_and_rollbacks_are_marks_in_the_charts() -> None:
    assert [(mark.kind, mark.t - BEGIN) for mark in REPORT.marks] == [
        ("update", 211),
        ("update", 561.5),
        ("update", pytest.approx(574.3)),
    ]
    assert REPORT.marks[-1].text.startswith(f"update 3 is rolled back to {BATCH}: ")


def test_a_generation_names_its_release_and_the_update_for_which_it_was() -> None:
    assert [(one.number, one.release, one.update, one.incident) for one in REPORT.generations] == [
        (1, FIRST, 0, 0),
        (2, BATCH, 1, 0),
        (3, LAYERS, 3, 1),
        (4, BATCH, 0, 2),
    ]


def test_a_chosen_step_and_an_optimizer_that_is_left_out_are_said() -> None:
    events = [*job.start(), job.requested(200, 1, BATCH, from_step=40, discard_optimizer=True)]
    found = job_report(events, NOW, SlurmFacts(), {})
    said = "lazy, from step 40, without the state of the optimizer"
    assert said in screen(render(found))
    assert said in page_of(found)


def test_one_line_of_csv_for_each_update() -> None:
    head, *rows = csv.reader(io.StringIO(csv_text(REPORT, CsvTable.UPDATES)))
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["result"] for row in found] == ["good", "refused", "rolled back", "superseded", "waiting"]
    assert (found[0]["user"], found[0]["uid"], found[0]["host"]) == ("alice", "1000", "login1")
    assert (found[0]["step"], found[0]["stopped_s"], found[0]["recovery"]) == ("200", "4.5", "")
    assert (found[2]["recovery"], found[2]["incident"]) == ("1", "2")


def test_the_page_has_a_table_of_updates_with_the_traceback_of_a_trial() -> None:
    page = page_of(REPORT)
    assert '<h2 id="updates">Updates (5)</h2>' in page
    assert '<a href="#updates">Updates</a>' in page
    assert "No module named &#39;flash&#39;" in page
    assert "arguments: --batch 64 instead of --batch 32" in page


def test_nothing_that_an_owner_writes_is_run_by_the_page_or_the_terminal() -> None:
    events = [*job.start(), job.requested(200, 1, BATCH, message=EVIL, changes=(EVIL,))]
    events += [job.tried(209, 1, ok=False, text=EVIL, traceback=EVIL), *job.refused()]
    found = job_report(events, NOW, SlurmFacts(), {})
    assert "<script>alert" not in page_of(found)
    for text in (page_of(found), screen(render(found)), status_of(events, 300)):
        assert "\x1b" not in text
        assert "\u202e" not in text


# -- the trace -------------------------------------------------------------------------------------


def test_an_update_is_a_span_with_what_training_stood_still_for() -> None:
    spans = {span.key: span for span in trace_of(JobView(events=job.whole())).spans}
    good, stop = spans["update 1"], spans["update 1 stop"]
    assert (good.begin, good.end, good.error) == (BEGIN + 201, BEGIN + 314, "")
    assert (stop.parent, stop.begin, stop.seconds) == ("update 1", BEGIN + 210, 4.5)
    assert good.attributes["srobust.release_before"] == FIRST
    assert spans["update 2"].error.startswith("refused: ModuleNotFoundError")
    assert spans["update 3"].error.startswith(f"rolled back to {BATCH}")
    assert "update 5" not in spans  # it has not ended
