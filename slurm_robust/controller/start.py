"""Where a controller begins: at the start of a job, in a later run of it, or in the middle of one."""

from __future__ import annotations

import time

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.controller.journal import Journal, fold
from slurm_robust.controller.preflight import Plan
from slurm_robust.controller.transitions import ToGathering, ToReconnecting, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.state import JobState


def assign(
    nodes: tuple[str, ...], slots: int, evicted: dict[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Slots and spares from an allocation, in its order.

    A node that this job has evicted before is taken only when the slots cannot be filled without it,
    and never counts as a spare.
    """
    good = [n for n in nodes if n not in evicted]
    bad = [n for n in nodes if n in evicted]
    chosen = (good + bad)[:slots]
    return tuple(chosen), tuple(good[slots:])


def begin(journal: Journal, plan: Plan, store: CheckpointStore) -> Transition:
    """Bring the journal to the present and say with which stage to begin."""
    state = fold(journal.events)
    if state.restart_count != plan.restart_count:
        _new_run(journal, plan, store, state)
        return ToGathering(start=True)
    if state.running:
        return ToReconnecting()
    return ToGathering(start=True, expected=True)


def _new_run(journal: Journal, plan: Plan, store: CheckpointStore, state: JobState) -> None:
    now = time.time()
    if state.running:
        # The last run ended without a word (its batch host died, say). What is complete now counts.
        refs = [r for r in store.complete(state.placement.world_size) if r.generation == state.generation]
        journal.append(
            ev.GenerationEnded(
                t=now,
                generation=state.generation,
                reason="the run of the Slurm job ended",
                sealed=refs[0].token() if refs else "",
                sealed_step=refs[0].step if refs else -1,
            )
        )
    slots, spares = assign(plan.nodes, plan.slots, state.evicted)
    for node in slots:
        if node in state.evicted:
            text = f"{node} was evicted before and is used again: the allocation has no other node"
            journal.append(ev.Noted(t=now, text=text, node=node))
    journal.append(
        ev.AllocationTaken(
            t=now, restart_count=plan.restart_count, nodes=plan.nodes, slots=slots, spares=spares
        )
    )
