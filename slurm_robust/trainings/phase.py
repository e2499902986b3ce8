"""What a job does at present, in a word and its reason. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.model.state import JobState
from slurm_robust.slurm.requeue_plan import RequeueCommand

REQUEUED = "requeued"
"""The phase of a job that waits for its next run."""

REQUEUEING = "requeueing"
"""The phase of a job whose requeue Slurm has not accepted yet."""

SAVING = "saving"
"""The phase of a job that writes what only memory has before it leaves its nodes."""

PREEMPTED = "preempted"
"""The phase of a job that Slurm has cancelled to give its nodes to another one."""

CANCELLED = "cancelled"
"""The phase of a job that Slurm or its owner ordered to end: nothing went wrong."""

ENDED = "ended"
"""The phase of a job that Slurm calls COMPLETED while its journal has no end."""

_OF_A_REQUEUE = {*(command.value for command in RequeueCommand), "begin requeue", "watcher", "shrink"}
"""What a requeue writes down; other errands that end meanwhile say nothing of it."""


def phase_of(
    events: Sequence[ev.AnyEvent], state: JobState | None = None, *, is_over: bool = False, slurm: str = ""
) -> tuple[str, str]:
    """Return a job's activity, and the reason for it.

    ``state``: the fold of ``events``, if it is known; ``is_over``: Slurm has ended the job; ``slurm``: its
    state there (``COMPLETED``), "" if that is not known.
    """
    state = fold(events) if state is None else state
    if (ended := state.ended) is not None:
        order = state.stop_ordered
        is_cancelled = order is not None and not ended.final and ended.code == order.code
        if ended.requeued and is_over:  # while it was in the queue, or right after
            return _ended_by_slurm(REQUEUED, ended.reason, slurm)
        if ended.requeued or ended.preempted:
            return REQUEUED if ended.requeued else PREEMPTED, ended.reason
        return "finished" if ended.code == 0 else CANCELLED if is_cancelled else "stopped", ended.reason
    if is_over:
        return _ended_by_slurm(*phase_of(events, state), slurm)
    if state.requeueing is not None:
        return _requeue(events, state.requeueing)
    if (saving := state.world.saving) is not None:
        return SAVING, f"step {saving.step} goes from memory to storage before the job leaves its nodes"
    if state.world.incident is not None:
        return "recovering", f"incident {state.world.incident.number}: {state.world.incident.symptom.value}"
    if state.world.running:
        return ("training", "") if state.world.steps_here >= 0 else ("starting", _for_update(state))
    return "starting", _for_update(state)


def exit_code(state: JobState, phase: str) -> int | None:
    """Return the exit code of a job in this phase; None if it goes on, and if the journal has not its end."""
    ended = state.ended
    return None if ended is None or (ended.requeued and phase != REQUEUED) else ended.code


def _ended_by_slurm(phase: str, reason: str, slurm: str) -> tuple[str, str]:
    """Return phase and reason of a job that Slurm has ended, by those that its journal tells."""
    words = slurm.partition(" ")[0].split("+")
    if phase == REQUEUED and "CANCELLED" in words:
        return CANCELLED, f"in Slurm's queue, after a requeue: {reason}"
    was = f"it was {phase}{f' ({reason})' if reason else ''}"
    if "COMPLETED" in words:
        return ENDED, f"Slurm says COMPLETED (exit code 0), but the journal has no end: {was}"
    return "stopped", f"Slurm has ended the job{f' ({slurm})' if slurm else ''}; {was}"


def _for_update(state: JobState) -> str:
    """Return the update that is being applied; "" for none."""
    candidate = state.candidate
    number = candidate.update if candidate is not None and not candidate.since else 0
    return f"for update {state.applying or number}" if state.applying or number else ""


def _requeue(events: Sequence[ev.AnyEvent], begun: ev.RequeueStarted) -> tuple[str, str]:
    """Return phase and reason of a requeue: whether Slurm has accepted it, else its refusal."""
    after = events[events.index(begun) :]
    orders = [e for e in after if isinstance(e, ev.StageDone) and e.what in _OF_A_REQUEUE]
    if any(order.ok and order.what in ("requeue", "watcher") for order in orders):
        return REQUEUED, begun.reason
    return REQUEUEING, f"{begun.reason}; {orders[-1].detail}" if orders else begun.reason
