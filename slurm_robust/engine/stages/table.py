"""The list of all stages, and the one in which a controller begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurm_robust.config.plan import RunPlan
from slurm_robust.engine import transitions as to
from slurm_robust.engine.core import Stage
from slurm_robust.engine.over import bound
from slurm_robust.engine.stages.borrowing import Borrowing
from slurm_robust.engine.stages.checkpointing import Checkpointing
from slurm_robust.engine.stages.deciding import Deciding
from slurm_robust.engine.stages.ending import Ending, Observing, Reconnecting
from slurm_robust.engine.stages.gathering import Gathering
from slurm_robust.engine.stages.localising import Localising
from slurm_robust.engine.stages.requeueing import Requeueing
from slurm_robust.engine.stages.running import Launching, Running
from slurm_robust.engine.stages.saving import Saving
from slurm_robust.engine.stages.stopping import Stopping
from slurm_robust.engine.stages.storing import Storing
from slurm_robust.engine.stages.testing import Testing
from slurm_robust.engine.stages.unreachable import Unreachable
from slurm_robust.engine.stages.updating import Updating
from slurm_robust.engine.transitions import (
    ToGathering,
    ToReconnecting,
    ToRequeueing,
    ToSaving,
    Transition,
)
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold
from slurm_robust.model.state import JobState
from slurm_robust.policy.cliques import domains
from slurm_robust.policy.protections import lost_node
from slurm_robust.policy.replacement import assign

# Each class takes exactly the transition it stands beside; Any because a dict cannot say so.
STAGES: dict[type[Any], Callable[[Any], Stage]] = {
    to.ToGathering: Gathering,
    to.ToLaunching: Launching,
    to.ToRunning: Running,
    to.ToLocalising: Localising,
    to.ToReconnecting: Reconnecting,
    to.ToObserving: Observing,
    to.ToUnreachable: Unreachable,
    to.ToCheckpointing: Checkpointing,
    to.ToUpdating: Updating,
    to.ToStopping: Stopping,
    to.ToDeciding: Deciding,
    to.ToTesting: Testing,
    to.ToBorrowing: Borrowing,
    to.ToRequeueing: Requeueing,
    to.ToSaving: Saving,
    to.ToStoring: Storing,
    to.ToEnding: Ending,
}


def build(transition: to.Transition) -> Stage:
    """Return the stage that a transition names."""
    return STAGES[type(transition)](transition)


def begin(events: Sequence[ev.AnyEvent], plan: RunPlan, now: float) -> tuple[list[ev.AnyEvent], Transition]:
    """Return what brings a journal of ``events`` to the present, and with which stage to begin. Pure.

    ``now``: seconds since 1970.
    """
    state = fold(events)
    if (end := bound(state)) is not None:
        news = [_end_of_generation(state, now)] if state.world.running else []
        if state.restart_count == plan.restart_count:
            return news, end
        news += _new_run(fold([*events, *news]) if news else state, plan, now)
        return news, end.then if isinstance(end, ToSaving) else end  # no memory of these nodes has anything
    if state.restart_count != plan.restart_count:
        return _new_run(state, plan, now), ToGathering(start=True)
    if state.world.running:
        return [], ToReconnecting()
    if (begun := state.requeueing) is not None:
        return [], ToRequeueing(
            exclude=begun.exclude, reason=begun.reason, failure=begun.failure, holders=begun.holders
        )
    return [], ToGathering(start=True, expected=True)


def _end_of_generation(state: JobState, now: float) -> ev.AnyEvent:
    """Return the end of the generation that the controller that decided on the end could not write."""
    reason = state.end_started.reason if state.end_started is not None else "the run was ordered to end"
    return ev.GenerationEnded(t=now, generation=state.world.generation, reason=reason, pending=True)


def _new_run(state: JobState, plan: RunPlan, now: float) -> list[ev.AnyEvent]:
    news: list[ev.AnyEvent] = []
    if state.world.running:
        # The last run ended without a record (its batch host died, say). What counts of it is known when
        # storage and the nodes that came back have reported what they have.
        reason = "the run of the Slurm job ended"
        news.append(ev.GenerationEnded(t=now, generation=state.world.generation, reason=reason, pending=True))
    where = domains(state, blocks=plan.blocks)
    shunned = state.shunned(now, anew=True)
    slots, spares = assign(plan.nodes, plan.slots, shunned, state.world.slots, where, plan.segment)
    for node in slots:
        if node in shunned:
            text = f"{node} was evicted before and is used again: the allocation has no other node"
            news.append(ev.Noted(t=now, text=text, node=node))
    taken = ev.AllocationTaken(
        t=now,
        restart_count=plan.restart_count,
        nodes=plan.nodes,
        slots=slots,
        spares=spares,
        submitted=plan.submitted,
        time_limit_s=plan.time_limit_s,
        queued_s=plan.queued_s,
        eligible=plan.eligible,
        required=plan.required,
        segment=plan.segment,
        lost_node=lost_node(plan.config, requeues=plan.requeues),
        gpus=plan.gpus,
    )
    return [*news, taken]
