"""What a job has been through, counted event by event."""

from __future__ import annotations

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.totals import Tally
from slurm_robust.model import events as ev
from slurm_robust.model.drill import DrillFault
from slurm_robust.model.incident import Restart
from slurm_robust.model.totals import MAX_MARKS
from tests.builders import incidents, updates
from tests.unit.report import incident_journal


def tally(*parts: list[ev.AnyEvent]) -> Tally:
    found = Tally()
    for part in parts:
        found.see(part)
    return found


def test_a_journal_counted_in_pieces_is_the_same() -> None:
    events = incident_journal.whole()
    pieces = [events[i : i + 7] for i in range(0, len(events), 7)]
    assert tally(*pieces).totals({}) == tally(events).totals({})


def test_incidents_are_counted_by_symptom_and_marked() -> None:
    found = tally(incident_journal.start(), incident_journal.rank_killed()).totals(
        {TimeClass.PRODUCTIVE: 1500}
    )
    assert {name: number for name, number in found.incidents.items() if number} == {"worker exit": 1}
    assert (found.classes["productive"], found.classes["idle"]) == (1.5, 0.0)
    (mark,) = found.marks
    assert (mark.number, mark.symptom, mark.blame) == (1, "worker exit", "nobody")
    assert mark.ended is not None
    assert 0 < mark.ended - mark.begun < 60
    assert found.launches == 2
    assert found.actions == {"restart": 1}


def test_updates_are_counted_by_what_became_of_them_and_marked_when_they_were_applied() -> None:
    found = tally(updates.whole()).totals({})
    assert {name: number for name, number in found.updates.items() if number} == {
        "waiting": 1,
        "good": 1,
        "rolled back": 1,
        "refused": 1,
        "superseded": 1,
    }
    assert [(mark.number, mark.release) for mark in found.update_marks] == [
        (1, updates.BATCH),
        (3, updates.LAYERS),
    ]


def test_a_job_without_updates_counts_none() -> None:
    assert tally(incident_journal.whole()).totals({}).updates == {}


def test_only_the_newest_incidents_are_marked_and_an_end_ends_the_last() -> None:
    found = tally(incident_journal.whole()).totals({})
    assert len(found.marks) <= MAX_MARKS
    assert found.marks[-1].ended is not None
    assert sum(found.incidents.values()) >= len(found.marks)


def planted(drill: int) -> ev.DrillPlanted:
    return ev.DrillPlanted(
        t=0.5, drill=drill, fault=DrillFault.KILL_RANK, rank=0, node="n1", generation=1, step=1
    )


def decided(incident: int, drill: int) -> ev.Decided:
    return ev.Decided(t=1.2, incident=incident, actions=(Restart(),), reason="", drill=drill)


def closed(incident: int) -> ev.IncidentClosed:
    return ev.IncidentClosed(t=1.4, incident=incident, generation=2, step=2, recover_s=0.2)


def seen(*events: ev.AnyEvent) -> tuple[int, int]:
    """Incidents that count as faults, and those of drills."""
    found = tally([*events]).totals({})
    return sum(found.incidents.values()), found.drills


def test_the_incident_of_a_drill_counts_as_one_of_a_drill_only() -> None:
    drill = (planted(1), incidents.opened(), decided(1, 1))
    assert seen(*drill) == (0, 0), "a counter never goes down, so it waits for the cause"
    assert seen(*drill, closed(1)) == (0, 1)
    assert seen(*drill, closed(1), incidents.opened(incident=2)) == (1, 1), "that drill is over"
    assert seen(*drill, ev.RunEnded(t=2.0, code=93, reason="")) == (0, 1)


def test_a_real_fault_beside_a_drill_counts_when_that_is_decided() -> None:
    beside = (planted(1), incidents.opened())
    assert seen(*beside) == (0, 0)
    assert seen(*beside, decided(1, 0)) == (1, 0)
    assert seen(*beside, decided(1, 1), decided(1, 0), closed(1)) == (1, 0)
    over = ev.DrillOver(t=0.8, drill=1, reason="no fault was seen", ok=True)
    assert seen(planted(1), over, incidents.opened()) == (1, 0)
