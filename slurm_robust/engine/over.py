"""What the journal says about the end of a run, and for whom that holds. Pure.

An order to end, and the decision how a run ends, are written to the journal before anything is done about
them. So a controller, supervisor or takeover that starts later carries out that end, and does nothing else.
An end for good (0, 93, an exit code of the training script's own) holds for all later runs of the job. Any
other end holds for the same start of ``srobust run`` only: Slurm may start the job again, and in ``salloc``
its owner may do so.
"""

from __future__ import annotations

from slurm_robust.engine.transitions import ToEnding, ToRequeueing, ToSaving, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.state import JobState


def end_of(state: JobState, start: str) -> ev.RunEnded | None:
    """Return the end of this run, or of the whole job; None while there is none.

    ``start``: of ``srobust run``, "" if it is not known.
    """
    ended = state.ended
    if ended is None or ended.final or (start and state.start == start):
        return ended
    return None


def code_of(state: JobState, start: str) -> int | None:
    """Return the exit code with which the run ends or has ended, whatever happens now.

    None while that is open.
    """
    if (ended := end_of(state, start)) is not None:
        return ended.code
    begun = state.end_started
    if (
        begun is None
        or begun.code == ExitCode.REQUEUED
        or not (begun.final or (start and state.start == start))
    ):
        return None
    return begun.code


def bound(state: JobState) -> Transition | None:
    """Return how a controller begins if its journal has an end or an order to end, None if it has neither.

    A run that trains, or would train, is ended by its stages as soon as they see the order.
    """
    if (ended := state.ended) is not None:
        return ToEnding(code=ended.code, reason=ended.reason, final=ended.final)
    if (begun := state.end_started) is not None:
        then = _then(begun)
        return ToSaving(then=then) if begun.saves else then
    if state.requeueing is not None and (order := state.stop_ordered) is not None:
        # Slurm has taken the requeue, and needs no other; or the owner wants none.
        return ToEnding(code=order.code, reason=order.reason, final=False)
    return None


def _then(begun: ev.EndStarted) -> ToEnding | ToRequeueing:
    if begun.code == ExitCode.REQUEUED:
        return ToRequeueing(exclude=begun.exclude, reason=begun.reason, failure=begun.failure)
    return ToEnding(code=begun.code, reason=begun.reason, final=begun.final)


def begun_by(then: ToEnding | ToRequeueing, now: float, *, saves: bool) -> ev.EndStarted:
    """Return the event that binds later controllers to leave the allocation by ``then``."""
    if isinstance(then, ToEnding):
        return ev.EndStarted(t=now, code=then.code, reason=then.reason, final=then.final, saves=saves)
    return ev.EndStarted(
        t=now,
        code=ExitCode.REQUEUED,
        reason=then.reason,
        final=False,
        saves=saves,
        exclude=then.exclude,
        failure=then.failure,
    )
