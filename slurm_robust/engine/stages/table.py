"""The list of all stages, and the one in which a controller begins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from slurm_robust.controller.journal import Journal
from slurm_robust.controller.preflight import Plan
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
    """The stage that a transition names."""
    return STAGES[type(transition)](transition)


def begin(journal: Journal, plan: Plan) -> Transition:
    """Bring the journal to the present and say with which stage to begin."""
    state = fold(journal.events)
    if (end := bound(state)) is not None:
        if state.running:
            _end_generation(journal, state)
        if state.restart_count == plan.restart_count:
            return end
        _new_run(journal, plan, fold(journal.events))
        return end.then if isinstance(end, ToSaving) else end  # no memory of these nodes has anything
    if state.restart_count != plan.restart_count:
        _new_run(journal, plan, state)
        return ToGathering(start=True)
    if state.running:
        return ToReconnecting()
    if (begun := state.requeueing) is not None:
        return ToRequeueing(
            exclude=begun.exclude, reason=begun.reason, failure=begun.failure, holders=begun.holders
        )
    return ToGathering(start=True, expected=True)


def _end_generation(journal: Journal, state: JobState) -> None:
    """The controller that decided on the end could not write that its generation had ended before."""
    reason = state.end_started.reason if state.end_started is not None else "the run was ordered to end"
    end = ev.GenerationEnded(t=time.time(), generation=state.generation, reason=reason, pending=True)
    journal.append(end)


def _new_run(journal: Journal, plan: Plan, state: JobState) -> None:
    now = time.time()
    if state.running:
        # The last run ended without a record (its batch host died, say). What counts of it is known when
        # storage and the nodes that came back have reported what they have.
        reason = "the run of the Slurm job ended"
        journal.append(ev.GenerationEnded(t=now, generation=state.generation, reason=reason, pending=True))
    slots, spares = assign(plan.nodes, plan.slots, state.evicted, state.slots)
    for node in slots:
        if node in state.evicted:
            text = f"{node} was evicted before and is used again: the allocation has no other node"
            journal.append(ev.Noted(t=now, text=text, node=node))
    journal.append(
        ev.AllocationTaken(
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
            gpus=plan.gpus,
        )
    )
