"""What people are told of the events of a journal."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model.drill import DrillFault
from slurm_robust.model.incident import (
    Action,
    Blame,
    Diagnose,
    Evict,
    FaultKind,
    GiveUp,
    Replace,
    Requeue,
    Restart,
    Signature,
)
from slurm_robust.model.notice import Notice, NoticeKind, Severity
from slurm_robust.model.release import Requester
from slurm_robust.notify.narrate import Narrator, supervisor_ended
from tests.builders import incidents, updates
from tests.builders.events import allocation_taken, run_started

STARTED = run_started(job_id=7, slots=2, spares=2)
TAKEN = allocation_taken(("n1", "n2"), ("n3", "n4"), t=2.0, lost_node="ends the job: why")
OPENED = incidents.opened(t=10.0, detail="rank 3 on n2: \x1b[31mSIGSEGV\nand more", best_step=4)
CLOSED = ev.IncidentClosed(t=20.0, incident=1, generation=2, step=5, recover_s=4.4)


def decided(
    *actions: Action, t: float = 11.0, suspects: tuple[str, ...] = (), carried_out: bool = True
) -> ev.Decided:
    verdict = incidents.verdict(
        blame=Blame.NODE if suspects else Blame.NOBODY,
        signature=Signature(kind=FaultKind.NODE, key="n2"),
        reason="why",
        suspects=suspects,
    )
    return ev.Decided(
        t=t, incident=1, actions=actions, reason="it was so", verdict=verdict, carried_out=carried_out
    )


def told(*events: ev.AnyEvent) -> list[Notice]:
    narrator = Narrator("7")
    return [notice for event in (STARTED, TAKEN, *events) for notice in narrator.tell(event)]


def short(notices: Sequence[Notice]) -> list[tuple[str, str, str]]:
    return [(notice.kind.value, notice.severity.value, notice.text) for notice in notices]


def test_an_incident_from_its_first_sign_to_the_first_new_step() -> None:
    notices = told(OPENED, decided(Restart()), CLOSED)
    assert short(notices) == [
        ("incident", "warning", "incident 1: worker exit: rank 3 on n2: SIGSEGV and more"),
        ("incident", "warning", "incident 1: it was so"),
        (
            "recovery",
            "info",
            "incident 1 is over, recovered in 10 s (rank 3 on n2: SIGSEGV and more): "
            "step 5 is the first new one",
        ),
    ]
    assert notices[2].short == "recovered in 10 s (rank 3 on n2: SIGSEGV and more)"
    assert [notice.action for notice in notices] == ["", "restart", ""]
    assert {(notice.command, notice.incident) for notice in notices} == {("srobust incident 7 1", 1)}


def test_a_decision_names_the_nodes_and_what_is_done() -> None:
    event = decided(Evict(node="n2"), Replace(node="n2", standby="n3"), Restart(), suspects=("n2",))
    notice = told(OPENED, event)[1]
    assert notice.nodes == ("n2",)
    assert notice.action == "evict n2, n3 takes its slot, restart"


def test_tests_are_no_reason_to_worry() -> None:
    notice = told(OPENED, decided(Diagnose(reason="x")))[1]
    assert (notice.severity, notice.action) == (Severity.INFO, "test the nodes")


def test_observe_mode_says_that_nothing_was_done() -> None:
    notice = told(OPENED, decided(GiveUp(code=93, reason="x"), carried_out=False))[1]
    assert notice.action == "observed only: give up (exit code 93)"
    assert notice.severity is Severity.WARNING


def test_giving_up_is_told_when_it_is_decided_and_its_end_is_another_kind() -> None:
    notices = told(OPENED, decided(GiveUp(code=93, reason="x")), ev.RunEnded(t=30.0, code=93, reason="x"))
    assert [notice.kind for notice in notices] == [NoticeKind.INCIDENT, NoticeKind.GIVE_UP, NoticeKind.END]
    assert [notice.severity.value for notice in notices] == ["warning", "critical", "critical"]


def test_a_run_given_up_without_a_decision() -> None:
    (notice,) = told(ev.RunEnded(t=30.0, code=93, reason="Slurm refuses"))
    assert (notice.kind, notice.severity) == (NoticeKind.GIVE_UP, Severity.CRITICAL)
    assert notice.text == "the run is over, exit code 93: Slurm refuses"


@pytest.mark.parametrize(("code", "severity"), [(0, "info"), (1, "critical"), (143, "info"), (130, "info")])
def test_the_end_of_a_run_is_told_by_its_exit_code(code: int, severity: str) -> None:
    (notice,) = told(ev.RunEnded(t=30.0, code=code, reason="x"))
    assert (notice.kind, notice.severity.value) == (NoticeKind.END, severity)


def test_a_requeue_and_the_next_run() -> None:
    requeue = ev.RequeueStarted(t=12.0, exclude=("n1", "n2"), reason="no standby", failure=True)
    again = allocation_taken(("n5", "n6"), t=90.0, restart_count=1)
    notices = told(requeue, again)
    assert short(notices)[:2] == [
        ("requeue", "warning", "requeue: no standby"),
        ("requeue", "info", "run 1 begins on 2 nodes"),
    ]
    assert (notices[0].action, notices[0].command) == ("requeue without n[1-2]", "squeue -j 7")
    assert short(notices)[2][:2] == ("standby", "warning")
    assert told(requeue, requeue, again)[0].key == told(requeue, requeue)[1].key


def test_a_takeover_is_told_with_its_reason() -> None:
    event = ev.ControllerStarted(
        t=5.0, epoch=2, host="h2", pid=1, port=1, node="n2", taken_from="n1", reason="n1 is dead"
    )
    (notice,) = told(event)
    assert short([notice]) == [("takeover", "warning", "takeover: the controller runs on n2 now: n1 is dead")]
    assert notice.nodes == ("n1",)


def test_a_shortage_of_standbys_is_told_once_for_each_change() -> None:
    aside = ev.SpareSetAside(t=5.0, node="n3", reason="silent", usable=True)
    notices = told(
        aside,
        aside,
        CLOSED,
        ev.NodeEvicted(t=6.0, node="n4", reason="x", incident=1),
        ev.SpareAnswers(t=7.0, node="n3"),
        ev.CompanionSubmitted(t=7.0, job_id=9, source="partition gpu"),
        ev.CompanionStarted(t=8.0, job_id=9, node="n9"),
    )
    assert [text for kind, _, text in short(notices) if kind == "standby"] == [
        "1 standby is left of 2 that the job asked for",
        "no standby is left of 2 that the job asked for: a node that fails now ends the job: why",
        "1 standby is left of 2 that the job asked for",
        "2 standbys can be used again, as many as the job asked for",
    ]
    assert len({notice.key for notice in notices}) == len(notices)


def test_a_job_without_spares_lacks_none() -> None:
    narrator = Narrator("7")
    events = (
        run_started(),
        allocation_taken(("n1",), t=2.0),
        ev.CompanionSubmitted(t=7.0, job_id=9, source="partition gpu"),
        ev.CompanionStarted(t=8.0, job_id=9, node="n9"),
        ev.CompanionEnded(t=9.0, job_id=9, reason="x"),
    )
    assert [notice for event in events for notice in narrator.tell(event)] == []


def test_a_run_that_begins_with_too_few_spares() -> None:
    narrator = Narrator("7")
    narrator.tell(STARTED)
    few = allocation_taken(("n1", "n2"), t=2.0)
    assert [notice.kind for notice in narrator.tell(few)] == [NoticeKind.STANDBY]


def of_updates(events: Sequence[ev.AnyEvent]) -> list[Notice]:
    narrator = Narrator("4711")
    every = [notice for event in events for notice in narrator.tell(event)]
    return [notice for notice in every if notice.kind is NoticeKind.UPDATE]


def test_each_update_from_its_request_to_its_end() -> None:
    notices = of_updates(updates.whole())
    who = "requested by alice (uid 1000) on login1"
    changes = "train.py: 3 lines added, 1 removed, arguments: --batch 64 instead of --batch 32"
    assert [(notice.severity.value, notice.text) for notice in notices] == [
        ("info", f"update 1 to release bbbbbbbbbbbb is {who}, now: a larger batch ({changes})"),
        ("info", "update 1 to release bbbbbbbbbbbb is applied after step 200"),
        ("info", "update 1 to release bbbbbbbbbbbb is good: 100 steps"),
        ("info", f"update 2 to release eeeeeeeeeeee is {who}, lazy: flash attention"),
        (
            "warning",
            "update 2 to release eeeeeeeeeeee is refused: ModuleNotFoundError: No module named 'flash'",
        ),
        (
            "info",
            f"update 3 to release cccccccccccc is {who}, lazy: twelve layers "
            "(train.py: 1 line changed, model.py: 20 lines added)",
        ),
        (
            "info",
            "update 3 to release cccccccccccc is applied after step 450, with the recovery of incident 1",
        ),
        (
            "warning",
            "update 3 to release cccccccccccc is rolled back to bbbbbbbbbbbb: "
            "release cccccccccccc raised IndexError at train.py:40 before it was good",
        ),
        ("info", f"rollback 4 to release aaaaaaaaaaaa is {who}, lazy"),
        ("info", "rollback 4 to release aaaaaaaaaaaa is superseded: update 5 takes its place"),
        ("info", f"update 5 to release dddddddddddd is {who}, lazy: a lower rate"),
    ]
    assert len({notice.key for notice in notices}) == len(notices)


def test_a_rollback_names_the_command_that_shows_what_changed() -> None:
    (back,) = [n for n in of_updates(updates.whole()) if "rolled back" in n.text]
    assert back.command == "srobust diff 4711 bbbbbbbbbbbb cccccccccccc"


def test_an_update_that_only_an_overtaken_controller_knew_is_told_again() -> None:
    narrator = Narrator("4711")
    for event in (*updates.start(), updates.requested(200, 1, updates.BATCH)):
        narrator.tell(event)
    narrator.restate(updates.start())
    (notice,) = narrator.tell(updates.requested(210, 1, updates.LAYERS))
    assert notice.text.startswith("update 1 to release cccccccccccc is requested")


def test_the_same_events_have_the_same_keys() -> None:
    events = (OPENED, decided(Restart()), CLOSED, decided(Requeue(exclude=("n2",), reason="x"), t=40.0))
    assert [n.key for n in told(*events)] == [n.key for n in told(*events)]
    assert len({n.key for n in told(*events)}) == 4


def test_what_an_overtaken_controller_saw_does_not_count() -> None:
    narrator = Narrator("7")
    for event in (STARTED, TAKEN, ev.NodeEvicted(t=6.0, node="n4", reason="x", incident=1)):
        narrator.tell(event)
    narrator.restate((STARTED, TAKEN))
    (notice,) = narrator.tell(ev.SpareAnswers(t=7.0, node="n3"))
    assert (notice.severity, notice.nodes) == (Severity.INFO, ("n3", "n4"))


def test_a_supervisor_that_ended_without_a_word_in_the_journal() -> None:
    notice = supervisor_ended("7", 0, 70, 5.0)
    assert notice.severity is Severity.CRITICAL
    assert "exit code 70" in notice.text


def test_a_drill_is_told_as_one_and_alarms_nobody_but_a_real_fault_beside_it_does() -> None:
    planted = ev.DrillPlanted(
        t=9.5,
        drill=1,
        fault=DrillFault.KILL_RANK,
        rank=3,
        node="n2",
        generation=1,
        step=4,
        by=Requester(user="alice", uid=1000),
    )
    drill, opened, answered = told(planted, OPENED, structs.replace(decided(Restart()), drill=1))
    assert (drill.kind, drill.severity) == (NoticeKind.DRILL, Severity.INFO)
    assert drill.text == "drill 1 by alice: kill-rank on rank 3 (n2, generation 1)"
    assert opened.text.endswith(f"{drill.text} was planted before")
    assert (opened.severity, answered.severity) == (Severity.INFO, Severity.INFO)
    assert "drill 1 by alice: it was so" in answered.text
    assert told(planted, OPENED, decided(Restart()))[-1].severity is Severity.WARNING
