"""What belongs to the report of an incident."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from slurm_robust.analysis.logs import root_exit
from slurm_robust.evidence.incident_text import facts, outcome, timeline, times
from slurm_robust.evidence.incidents import IncidentStatus, incident_reports
from slurm_robust.ledger.totals import Tally
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.incident import Blame, NodeExit, Symptom
from tests.builders import incidents
from tests.unit.engine.stories import trained
from tests.unit.report import incident_journal


def launched(generation: int, restore_step: int) -> ev.GenerationLaunched:
    return ev.GenerationLaunched(
        t=0.0, generation=generation, slots=("n1",), master="n1:1",
        restore=CheckpointId(generation=1, step=restore_step) if restore_step >= 0 else None,
    )  # fmt: skip


def step(generation: int, number: int, reported: bool = True) -> ev.ProgressMade:
    return ev.ProgressMade(t=0.0, generation=generation, step=number, reported=reported)


def ended(generation: int, reached: int) -> ev.GenerationEnded:
    return ev.GenerationEnded(t=0.0, generation=generation, reason="", reached_step=reached)


def opened(number: int = 1, t: float = 100.0) -> ev.IncidentOpened:
    return incidents.opened(t=t, incident=number, symptom=Symptom.HANG, detect_s=5.0)


def closed(number: int = 1) -> ev.IncidentClosed:
    return ev.IncidentClosed(t=110.0, incident=number, generation=2, step=51, recover_s=1.0)


def test_each_incident_of_a_job_has_its_own_report() -> None:
    found = incident_reports(incident_journal.whole())
    assert [report.number for report in found] == [1, 2, 3, 4, 5, 6]
    assert [report.status for report in found] == [*[IncidentStatus.OVER] * 5, IncidentStatus.ENDED]
    assert [report.suspects for report in found] == [(), ("n2",), ("n3",), ("n4",), ("n6",), ()]
    assert [report.blame for report in found] == [
        Blame.NOBODY, Blame.NODE, Blame.NODE, Blame.NODE, Blame.NODE, Blame.CODE
    ]  # fmt: skip
    assert found[5].generations == (6, 7)
    assert found[1].placements[2].slots == ("n1", "n2", "n3", "n4")
    assert found[1].placements[3].slots == ("n1", "n5", "n3", "n4")


def test_the_root_is_who_failed_first_by_cause() -> None:
    killed = incident_reports(incident_journal.whole())[0]
    assert killed.root is not None
    assert (killed.root.exit.rank, len(killed.failed)) == (3, 2)


@pytest.mark.parametrize("cause", [None, 30])
def test_the_root_of_many_is_that_of_all_of_them(cause: int | None) -> None:
    def gone(rank: int) -> NodeExit:
        error = WorkerError(type="RuntimeError", message=f"Connection closed by peer [10.0.0.{rank}]:{rank}")
        return NodeExit(node="n1", exit=WorkerExit(rank=rank, code=1, age_s=rank / 100, error=error))

    exits = [gone(rank) for rank in range(40)]
    if cause is not None:
        own = WorkerError(type="ValueError", message="bad token", file="train.py", line=8)
        exits[cause] = NodeExit(node="n1", exit=WorkerExit(rank=cause, code=1, age_s=0.0, error=own))
    assert root_exit(exits) == exits[39 if cause is None else cause]


def test_a_node_that_was_silent_while_slow_training_was_sampled_is_in_the_report() -> None:
    silent = ev.Unanswered(t=94.0, incident=0, asked="stacks", nodes=("n1",), why="no answer within 6 s")
    (report,) = incident_reports([silent, opened(t=100.0), closed()])
    assert report.events[0] == silent


def test_no_node_is_blamed_while_nodes_are_tested() -> None:
    until_tested = incident_journal.not_a_number()[:3]
    report = incident_reports([*incident_journal.start(), *until_tested])[0]
    assert (report.testing, report.blame, report.verdict) == (True, None, None)
    assert report.status is IncidentStatus.OPEN


def test_an_incident_that_is_open_says_how_many_steps_it_repeats() -> None:
    begin = [launched(1, -1), step(1, 50), structs.replace(opened(), best_step=50)]
    told = [
        times(incident_reports([*begin, *own])[0])
        for own in ([], [launched(2, 40)], [launched(2, 40), step(2, 44)])
    ]
    assert "repeated" not in told[0]
    assert told[1].endswith("; 0 of 10 steps repeated so far")
    assert told[2].endswith("; 4 of 10 steps repeated so far")


@pytest.mark.parametrize(
    ("own", "steps"),
    [
        ([launched(2, 40), step(2, 51)], 10),
        ([step(1, 52), launched(2, 40), step(2, 53)], 12),  # the failed generation was further than seen
        (
            [ended(1, 53), launched(2, 50), step(2, 52), step(2, 54)],
            3,
        ),  # peers were further than the lost node
        ([ended(1, 53), launched(2, 40), step(2, 44), ended(2, 45), launched(3, 44), step(3, 54)], 13),
        ([launched(2, -1), step(2, 1), step(2, 51)], 51),  # from the beginning
        ([launched(2, -1), step(2, 41), step(2, 51)], 10),  # the script resumes by itself
        ([launched(2, 50), step(2, 51)], 0),
        ([launched(2, 40), step(2, 45)], 5),  # up to now
        ([launched(2, 40), step(2, 44), launched(3, 42), step(3, 51)], 12),  # a second failure in between
        ([launched(2, 40)], 0),
        ([launched(2, 40), step(2, 3, reported=False)], None),
    ],
)
def test_steps_that_were_done_again(own: list[ev.AnyEvent], steps: int | None) -> None:
    (report,) = incident_reports([launched(1, -1), step(1, 50), opened(), *own])
    assert report.steps_repeated == steps


def test_steps_that_the_script_does_not_number_begin_anew() -> None:
    before = [launched(1, -1), step(1, 3, reported=False), step(1, 50, reported=False), opened()]
    (report,) = incident_reports([*before, launched(2, -1), step(2, 3, reported=False)])
    assert (report.steps_repeated, report.steps_anew) == (None, 51)
    assert times(report).endswith("; 51 optimizer steps anew, unless the script resumes by itself")
    (restored,) = incident_reports([*before, launched(2, 40), step(2, 3, reported=False)])
    assert restored.steps_anew is None
    (numbered,) = incident_reports([launched(1, -1), step(1, 50), opened(), launched(2, -1), step(2, 3)])
    assert numbered.steps_anew is None


@pytest.mark.parametrize(
    ("steps", "whence"),
    [
        ([step(2, 0)], " from the beginning"),
        ([step(2, 3), step(2, 51)], " from the beginning"),
        ([step(2, 41)], ", whose first step that was seen is 41"),
        ([step(2, 3, reported=False)], ", which goes on where the script resumes by itself"),
        ([], " from the beginning, or where the script resumes by itself"),
    ],
)
def test_a_launch_without_a_checkpoint_is_told_by_the_steps_that_were_seen(
    steps: list[ev.AnyEvent], whence: str
) -> None:
    begun = structs.replace(opened(), best_step=50)
    (report,) = incident_reports([launched(1, -1), step(1, 50), begun, launched(2, -1), *steps])
    assert [entry.text for entry in timeline(report) if entry.what == "launched"] == [f"generation 2{whence}"]


def test_a_launch_after_a_takeover_says_why_numbers_are_left_out() -> None:
    journal = [launched(1, -1), step(1, 50), opened(), launched(11, 40), step(11, 41), launched(12, 40)]
    (report,) = incident_reports(journal)
    first, second = [entry.text for entry in timeline(report) if entry.what == "launched"]
    assert first.endswith(
        "; the numbers from 2 on are left to the controller before, which may still use them"
    )
    assert "left to" not in second


def went_on(best_step: int) -> ev.Continued:
    return ev.Continued(t=3.0, from_job=1, from_folder="1", generation=1, best_step=best_step, reports=True)


@pytest.mark.parametrize(
    ("later", "steps"),
    [
        ([[went_on(50), launched(2, 40), step(2, 45), step(2, 60)]], 10),
        ([[went_on(50), launched(2, 40), step(2, 45)], [went_on(50), launched(3, 44), step(3, 70)]], 11),
        ([[went_on(50), launched(2, 40), step(2, 45), opened(2), launched(3, 40), step(3, 60)]], 5),
        ([[went_on(50), launched(2, 40)], [launched(3, -1), step(3, 60)]], 0),  # a person began anew
        ([[went_on(30), launched(2, 30), step(2, 60)]], 0),  # a person chose an older step
        ([], 0),
    ],
)
def test_an_incident_that_ended_its_job_costs_steps_in_the_next_one(
    later: list[list[ev.AnyEvent]], steps: int
) -> None:
    own = [launched(1, -1), step(1, 50), opened(), ev.RunEnded(t=20.0, code=1, reason="")]
    (report,) = incident_reports(own, later=later)
    assert report.steps_repeated == steps
    (over,) = incident_reports([*own[:3], launched(2, 50), step(2, 51), closed()], later=later)
    assert over.steps_repeated == 0


def test_a_drill_shortly_before_belongs_to_the_report_and_an_older_note_does_not() -> None:
    journal = [
        ev.Noted(t=10.0, text="long ago"),
        ev.Noted(t=94.0, text="drill: kill-rank"),
        opened(),
        ev.Noted(t=101.0, text="within"),
        closed(),
        ev.Noted(t=111.0, text="after"),
        opened(2, t=112.0),
    ]
    first, second = incident_reports(journal)
    texts = [[e.text for e in report.events if isinstance(e, ev.Noted)] for report in (first, second)]
    assert texts == [["drill: kill-rank", "within"], ["after"]]


def test_an_incident_that_was_never_closed_ends_where_the_next_begins() -> None:
    first, second = incident_reports([opened(), opened(2), closed(2)])
    assert (first.status, second.status) == (IncidentStatus.OPEN, IncidentStatus.OVER)
    assert len(first.events) == 1


def test_a_report_survives_the_way_through_json() -> None:
    report = incident_reports(incident_journal.whole())[3]
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_a_job_that_slurm_has_ended_leaves_no_incident_open() -> None:
    until_decided = [*incident_journal.start(), *incident_journal.rank_killed()[:3]]
    (report,) = incident_reports(until_decided)
    assert report.status is IncidentStatus.OPEN
    (report,) = incident_reports(until_decided, is_over=True)
    assert report.status is IncidentStatus.ENDED
    assert outcome(report) == "Slurm ended the job before training went on"
    (over,) = incident_reports([*incident_journal.start(), *incident_journal.rank_killed()], is_over=True)
    assert over.status is IncidentStatus.OVER


def test_a_lost_agent_is_named_before_the_rank_that_missed_it() -> None:
    begun = incidents.opened(t=100.0, detail="rank 0: connection reset")
    lost = ev.SymptomAdded(t=102.0, incident=1, symptom=Symptom.AGENTS_LOST, detail="the agent on n2 ended")
    decided = ev.Decided(t=102.0, incident=1, actions=(), reason="start the agent again")
    (report,) = incident_reports([begun, lost, decided, closed()])
    assert report.symptom == Symptom.AGENTS_LOST.value
    assert report.signs == ("the agent on n2 ended", "rank 0: connection reset")
    (report,) = incident_reports([begun, decided, lost, closed()])  # lost in the recovery from another fault
    assert report.signs == ("rank 0: connection reset", "the agent on n2 ended")


def test_a_fault_that_comes_before_an_incident_is_over_is_told_and_changes_no_blame() -> None:
    """Another node dies, then a rank crashes, before the first new step."""
    sim = trained(3, 2)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.generation == 2 and sim.stage == "Running", within_s=60.0)
    sim.node_dies("n3")
    sim.run_until(lambda: sim.state.world.generation == 3 and sim.stage == "Running", within_s=60.0)
    sim.kill_rank(0, signal=11)
    sim.run_until(lambda: sim.state.world.incident is None, within_s=120.0)
    assert sim.state.world.generation == 4
    (report,) = incident_reports(sim.journal)
    assert [sign.split(" ")[0] for sign in report.signs] == ["n2", "n3", "rank"]
    assert report.verdict is not None
    assert (report.verdict.blame, report.verdict.suspects) == (Blame.NODE, ("n2",))
    assert [verdict.suspects for verdict in report.others] == [("n3",), ()]
    assert report.suspects == ("n2", "n3")
    assert dict(facts(report))["blamed"].startswith("node n2 (")
    assert dict(facts(report))["other faults"].startswith("n3 ")
    totals = Tally()
    totals.see(sim.journal)
    assert [mark.blame for mark in totals.totals({}).marks] == ["node"]
