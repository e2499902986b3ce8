"""Whether a recovery was as promised, by what the journal says after a drill."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.drills.faults import FAULTS
from slurm_robust.drills.follow import DrillProgress, broken_promises, progress_of
from slurm_robust.drills.screen import costs, interrupted, listing, outcome
from slurm_robust.model import events as ev
from slurm_robust.model.drill import DrillFault, DrillPromise
from slurm_robust.model.incident import (
    Blame,
    Evict,
    FaultKind,
    GiveUp,
    Replace,
    Requeue,
    Restart,
    Signature,
    Symptom,
    Verdict,
)

RESTART = DrillPromise(symptom=Symptom.WORKER_EXIT, detect_s=5.0, actions=(Restart(),))
NOTHING = DrillPromise(symptom=None, detect_s=40.0)


def planted(promise: DrillPromise, fault: DrillFault = DrillFault.KILL_RANK) -> ev.DrillPlanted:
    return ev.DrillPlanted(
        t=100.0, drill=1, fault=fault, rank=1, node="n2", generation=1, step=20, promise=promise
    )


def opened(t: float = 101.0) -> ev.IncidentOpened:
    return ev.IncidentOpened(
        t=t, incident=1, generation=1, symptom=Symptom.WORKER_EXIT, detail="x", detect_s=0.1, best_step=20
    )


def decided(*actions: Restart | Evict | Requeue, drill: int = 1) -> ev.Decided:
    verdict = Verdict(rung=6, blame=Blame.NOBODY, signature=Signature(kind=FaultKind.EXIT), reason="x")
    return ev.Decided(t=101.5, incident=1, actions=actions, reason="because", verdict=verdict, drill=drill)


CLOSED = ev.IncidentClosed(t=103.0, incident=1, generation=2, step=21, recover_s=1.0)


def after(promise: DrillPromise, *events: ev.AnyEvent) -> tuple[DrillProgress, list[str]]:
    known = progress_of([planted(promise), *events], drill=1)
    assert known is not None
    return known, list(broken_promises(known))


def test_a_promise_is_kept_if_all_is_as_it_says() -> None:
    known, broken = after(RESTART, opened(), decided(Restart()), CLOSED)
    assert (known.is_done, broken) == (True, [])
    assert (known.detected_s, known.went_on_s, known.step) == (1.0, 3.0, 21)
    assert outcome(known, "7")[-1] == ("promise", "kept")


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((opened(110.0), decided(Restart()), CLOSED), "it was seen after 10.0 s, not within 5 s"),
        ((opened(), decided(Evict(node="n2")), CLOSED), "promised was: restart; done was: evict n2"),
        (
            (opened(), decided(Restart(), drill=0), CLOSED),
            "incident 1 is a real fault, not this drill: because",
        ),
        ((opened(), decided(Restart())), "training has not gone on"),
        ((opened(),), "nothing was decided"),
        ((ev.DrillOver(t=140.0, drill=1, reason="no fault was seen", ok=True),), "no fault was seen"),
        ((ev.DrillOver(t=100.1, drill=1, reason="no rank", ok=False),), "it was not carried out: no rank"),
    ],
)
def test_what_is_not_as_promised_is_said(events: tuple[ev.AnyEvent, ...], why: str) -> None:
    assert after(RESTART, *events)[1] == [why]


def test_a_fault_that_is_none_is_over_when_training_has_gone_on_for_long_enough() -> None:
    step = ev.ProgressMade(t=139.0, generation=1, step=80, reported=True)
    assert not after(NOTHING, step)[0].is_done
    later = ev.ProgressMade(t=141.0, generation=1, step=90, reported=True)
    known, broken = after(NOTHING, step, later)
    assert (known.is_done, broken) == (True, [])
    assert after(NOTHING, opened())[1] == ["incident 1 was opened, though training was to go on"]


def test_an_observed_fault_is_done_when_it_is_decided_and_a_requeue_when_it_has_begun() -> None:
    observed = DrillPromise(symptom=Symptom.WORKER_EXIT, detect_s=5.0, actions=(Restart(),), observe=True)
    known, broken = after(observed, opened(), decided(Restart()))
    assert (known.is_done, broken) == (True, [])
    requeue = Requeue(exclude=("n2",), reason="x")
    away = DrillPromise(symptom=Symptom.WORKER_EXIT, detect_s=5.0, actions=(requeue,))
    begun = ev.RequeueStarted(t=102.0, exclude=("n2",), reason="x", failure=True)
    known, broken = after(away, opened(), decided(requeue), begun)
    assert (known.is_done, broken) == (False, [])


def test_what_a_drill_costs_is_said_before() -> None:
    requeue = (Evict(node="n2"), Requeue(exclude=("n2",), reason="x"))
    away = DrillPromise(symptom=Symptom.HANG, detect_s=24.0, actions=requeue)
    assert away.is_costly
    said = "stop-rank evicts n2; 0 standbys left: this job will be requeued."
    assert costs(DrillFault.STOP_RANK, away) == said
    standby = (Evict(node="n2"), Replace(node="n2", standby="n5"), Restart())
    near = DrillPromise(symptom=Symptom.HANG, detect_s=24.0, actions=standby)
    assert (
        costs(DrillFault.STOP_RANK, near) == "stop-rank evicts n2; n5 takes the slot of n2: 0 standbys left."
    )
    assert (costs(DrillFault.KILL_RANK, RESTART), RESTART.is_costly) == ("", False)


def test_the_list_has_every_fault_and_fits_a_terminal() -> None:
    assert [one.fault for one in FAULTS] == list(DrillFault)
    lines = listing(FAULTS).splitlines()
    assert len(lines) == 2 * len(FAULTS)
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("promise", "what"),
    [
        (None, "the job recovers by itself"),
        (RESTART, "the job recovers by itself"),
        (NOTHING, "training goes on"),
        (
            structs.replace(RESTART, observe=True),
            "nothing ends its fault, since srobust only observes this job (mode: observe)",
        ),
        (
            structs.replace(RESTART, actions=(Evict(node="n2"), Requeue(exclude=("n2",), reason="x"))),
            "the job is requeued, and goes on then",
        ),
        (
            structs.replace(RESTART, actions=(GiveUp(code=93, reason="x"),)),
            "it ends the job with exit code 93",
        ),
    ],
)
def test_a_drill_that_nobody_waits_for_goes_on_and_is_shown_by_a_command(
    promise: DrillPromise | None, what: str
) -> None:
    said = f"drill 1 goes on without this command: {what}; "
    assert interrupted(1, promise, None, "gpt") == f"{said}'srobust status gpt' shows it"
    known, _ = after(RESTART, opened())
    assert interrupted(1, promise, known, "gpt") == f"{said}'srobust incident gpt 1' shows it"


@pytest.mark.parametrize(
    ("first", "lost"),
    [
        (ev.FirstStep(t=102.0, generation=2, step=0, reported=True), 21),
        (ev.FirstStep(t=102.0, generation=2, step=16, reported=True), 5),
        (ev.FirstStep(t=102.0, generation=2, step=4, reported=False), None),
    ],
)
def test_steps_that_are_repeated_without_a_checkpoint_are_counted_from_the_first_that_is_seen(
    first: ev.FirstStep, lost: int | None
) -> None:
    launched = ev.GenerationLaunched(t=101.6, generation=2, slots=("n1", "n2"), master="n1:1")
    known, broken = after(RESTART, opened(), decided(Restart()), launched, first, CLOSED)
    assert (known.lost, broken) == (lost, [])
