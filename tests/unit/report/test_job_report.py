"""The report on a job: what each part of it says of small journals."""

from __future__ import annotations

import csv
import io

import pytest
from msgspec import structs
from rich.console import Console

from slurm_robust.ledger.accounting import AccountedRun
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Evict, Restart, Symptom
from slurm_robust.report.job_report import JobReport, SlurmFacts, job_report
from slurm_robust.report.job_text import CsvTable, csv_text, render
from slurm_robust.report.nodelines import NodeActivity
from tests.builders import updates
from tests.builders.events import allocation_taken
from tests.unit.ledger.journals import Journal, at


def job() -> Journal:
    """Two nodes and a spare; n2 is evicted, then the job is requeued."""
    journal = Journal().controller(64)
    journal.add(
        allocation_taken(("n1", "n2"), ("n3",), t=at(65), epoch=1, submitted=at(0), queued_s=60.0, gpus=24)
    )  # fmt: skip
    journal.launch(70, 1).first(81, 1, 0).measured(81, 1, imports=4, restore=2).progress(90, 1, 9)
    journal.opened(120, 1, 1, 30, Symptom.HANG).ended(126, 1, 9)
    journal.decided(127, 1, Evict(node="n2"), Restart(), blame=Blame.NODE, suspects=("n2",))
    journal.add(ev.NodeEvicted(t=at(127), epoch=1, node="n2", reason="its worker hangs", incident=1))
    journal.add(
        ev.GenerationLaunched(t=at(130), epoch=1, generation=2, slots=("n1", "n3"), master="", layout="")
    )
    journal.first(140, 2, 10).closed(140, 1, 2, 10).progress(150, 2, 20)
    journal.add(ev.NodeGivenBack(t=at(145), epoch=1, node="n2", how="Slurm tests it"))
    journal.add(ev.Noted(t=at(146), epoch=1, node="n1", text="a note"))
    return journal.ended(160, 2, 20).requeue(161, failure=False)


def report(journal: Journal, **slurm: object) -> JobReport:
    return job_report(journal.events, at(1000), SlurmFacts(**slurm), {})  # type: ignore[arg-type]


def text(found: JobReport) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(render(found))
    return capture.get()


def test_what_each_node_did() -> None:
    lines = {line.nodes: line for line in report(job()).nodes}
    doing = {
        node: [(piece.begin - at(0), piece.end - at(0), piece.doing) for piece in line.pieces]
        for node, line in lines.items()
    }
    assert doing == {
        "n1": [(65, 161, NodeActivity.SLOT)],
        "n2": [(65, 127, NodeActivity.SLOT), (127, 145, NodeActivity.EVICTED)],
        "n3": [(65, 130, NodeActivity.STANDBY), (130, 161, NodeActivity.SLOT)],
    }
    assert lines["n2"].incidents == (1,)
    assert (lines["n2"].evicted, lines["n2"].given_back) == ("its worker hangs", "Slurm tests it")
    assert lines["n2"].lost.ms == report(job()).ledger.incidents[0].lost.ms > 0
    assert (lines["n3"].standby_s, lines["n3"].slot_s) == (65, 31)


def test_nodes_that_did_the_same_are_one_line() -> None:
    (line,) = report(Journal().controller(64).allocation(65).launch(70, 1)).nodes
    assert (line.nodes, line.count) == ("n[1-2]", 2)


def test_an_incident_lasts_from_its_fault_to_the_first_new_step() -> None:
    (entry,) = report(job()).incidents
    assert (entry.begin, entry.end) == (at(90), at(140))
    assert entry.cost is not None
    assert entry.cost.cause == "node"
    assert entry.facts["blamed"].startswith("node n2")
    assert [line.what for line in entry.timeline][:2] == ["first sign", "stopped"]


def test_generations_and_marks() -> None:
    found = report(job())
    first, second = found.generations
    assert (first.launched, first.first_step, first.ended) == (at(70), at(81), at(126))
    assert [(p.phase, p.slowest) for p in first.phases] == [("imports", "n1"), ("restore", "n1")]
    assert (first.incident, second.incident, second.slots) == (0, 1, 2)
    assert [(mark.kind, mark.t) for mark in found.marks] == [("requeue", at(161))]
    assert [(note.what, note.text) for note in found.noted] == [("n1", "a note")]


def test_an_update_that_the_script_announces_is_marked_once() -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(20, 1, 10)
    journal.progress(60, 1, 20, update=30.0).progress(70, 1, 30, update=30.0)
    (mark,) = report(journal).marks
    assert mark.kind == "update"
    assert "30 s" in mark.text


def test_ranks_that_are_held_for_an_update_are_no_announcement_of_the_script() -> None:
    journal = Journal().controller(0).allocation(0).launch(0, 1).first(10, 1, 0).progress(20, 1, 10)
    journal.add(structs.replace(updates.requested(0, 1, "b"), t=at(22), epoch=1))
    journal.say(ev.CheckpointRequested, 22, generation=1, step=12, reason="update 1", update=1)
    journal.progress(23, 1, 12, update=1.0)
    journal.say(ev.StopStarted, 24, generation=1, reason="update 1", update=1)
    journal.progress(25, 1, 12, update=2.0).ended(26, 1, 12)
    journal.say(ev.UpdateApplied, 27, update=1, release="b", before="a", step=12)
    marks = report(journal.launch(27, 2, 12).first(30, 2, 13)).marks
    assert [mark.text.partition(" to ")[0] for mark in marks] == ["update 1"]


def test_without_slurm_the_report_ends_with_the_journal() -> None:
    found = report(job())
    assert (found.end, found.ended) == (at(161), False)
    assert found.ledger.wall_ms == 161_000


def test_a_job_that_waits_for_its_next_run_is_reported_until_now() -> None:
    found = report(job(), now=at(500))
    assert found.end == at(500)
    assert found.ledger.classes[TimeClass.REQUEUE_DELAY] == 339_000


def test_a_job_that_slurm_has_ended_is_reported_until_then() -> None:
    run = AccountedRun(run=0, submitted=at(0), started=at(60), ended=at(170))
    found = report(job(), now=at(500), runs=(run,), ended=True)
    assert (found.end, found.ended) == (at(170), True)


def test_a_clock_that_jumps_between_two_nodes_breaks_nothing() -> None:
    journal = job().controller(20).allocation(21, 1, submitted=162, queued_s=10)
    journal.launch(25, 3, 20).first(30, 3, 21).progress(40, 3, 30)
    found = report(journal)
    assert sum(found.ledger.classes.values()) == found.ledger.wall_ms
    assert all(piece.end >= piece.begin for line in found.nodes for piece in line.pieces)
    assert list(found.progress.t) == sorted(found.progress.t)


def test_the_part_of_a_journal_that_lacks_its_beginning_is_reported_with_a_note() -> None:
    found = job_report(job().events[5:], at(1000), SlurmFacts(), {})
    assert "does not begin with the start of a job" in found.notes[0]
    assert text(found)


def test_the_screen_says_where_the_time_went_and_how_others_call_it() -> None:
    shown = " ".join(text(report(job())).split())
    for words in ("ETTR", "detecting", "PROGRAM_STARTUP", "Lost time by cause", "its worker hangs"):
        assert words in shown, words


@pytest.mark.parametrize("table", [table for table in CsvTable if table is not CsvTable.UPDATES])
def test_csv_has_a_line_of_names_and_as_many_cells_in_each_line(table: CsvTable) -> None:
    rows = list(csv.reader(io.StringIO(csv_text(report(job()), table))))
    assert len(rows) > 1
    assert {len(row) for row in rows} == {len(rows[0])}


def test_a_spreadsheet_takes_no_text_for_a_formula() -> None:
    journal = job()
    evil = '=HYPERLINK("http://x")\n@SUM(1)'
    journal.add(ev.NodeEvicted(t=at(150), epoch=1, node="n3", reason=evil, incident=1))
    nodes = list(csv.reader(io.StringIO(csv_text(report(journal), CsvTable.NODES))))
    assert '\'=HYPERLINK("http://x") @SUM(1)' in {row[5] for row in nodes}


def test_where_a_script_that_does_not_number_its_steps_began_is_not_known() -> None:
    begun = Journal().controller(0).allocation(0).launch(0, 1)
    assert report(begun.first(10, 1, 0, reported=False)).chapters[0].from_step is None
    begun = Journal().controller(0).allocation(0).launch(0, 1)
    assert report(begun.first(10, 1, 3)).chapters[0].from_step == -1
