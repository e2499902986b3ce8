"""Rung 4: what follows from where the stacks of all ranks place a hang or a slowdown. Pure.

A rank that stands still, or is slow, may have a bad node or bad code, and one sample cannot show which. The
question is whether the fault stays with the node or moves with the rank. So the first hang is answered by a
restart in place, the second one by a move of the ranks to another node, and only what is seen then convicts:
the same on another node is the code's, other ranks on the same node are the node's. A process that is
stopped, dead or held in the kernel speaks against its node at once.
"""

from __future__ import annotations

from slurm_robust.model.incident import Blame, Fault, FaultKind, Place, Signature, Symptom, Verdict
from slurm_robust.model.stacks import Localisation
from slurm_robust.model.state import JobState
from slurm_robust.policy.rules import Rules, convict
from slurm_robust.util.text import named_ranks

SAME_STEP = 1
"""Ranks that hang at the same step may differ in whether they have reported the one before."""


def stacks_named(fault: Fault, rules: Rules, state: JobState) -> Verdict | None:
    """Rung 4: the stacks of all ranks place a hang or a slowdown."""
    found, place = fault.localisation, place_of(fault, state)
    if found is None or place is None:
        return None
    reason = f"{fault.detail}; {found.reason}"
    signature = Signature(kind=FaultKind.RANKS, key=f"{place.symptom.value} of {named_ranks(place.ranks)}")
    moved = moved_with_ranks(place, state)
    if moved is not None:
        return Verdict(
            rung=4,
            blame=Blame.CODE,
            signature=signature,
            reason=f"{reason}; it was the same on {','.join(moved.nodes)}, so it moves with the rank: the "
            "code is at fault",
            confidence=0.9,
            allowed=0,
        )
    here = [p for p in state.places if p.symptom is place.symptom and set(p.nodes) == set(place.nodes)]
    others = next((p.ranks for p in here if p.ranks != place.ranks), ())
    if found.halted or others:
        stays = f"; it was the same with {named_ranks(others)}, so it stays with the node" if others else ""
        return convict(place.nodes, rules, rung=4, reason=reason + stays, confidence=found.confidence)
    # A restart in place does not make a slow node faster.
    is_to_move = bool(here) or place.symptom is Symptom.SLOW
    return Verdict(
        rung=4,
        blame=Blame.NOBODY,
        signature=signature,
        reason=f"{reason}; where it comes again shows whether it is the node or the code",
        suspects=place.nodes if is_to_move else (),
        confidence=0.5,
        allowed=rules.limits.per_signature,
    )


def place_of(fault: Fault, state: JobState) -> Place | None:
    """Where the stacks place what ended the generation; None where they do not."""
    found, symptom = fault.localisation, fault.symptom
    if found is None or symptom is None or not found.ranks:
        return None
    return place(symptom, found, state)


def place(symptom: Symptom, found: Localisation, state: JobState) -> Place:
    """The place of a fault that stacks name ranks for; the step is the newest that is done."""
    nodes = dict.fromkeys(state.placement.node_of(rank) for rank in found.ranks)
    step = max(state.steps_here, state.restored_step)
    return Place(symptom=symptom, step=step, ranks=found.ranks, nodes=tuple(nodes), stack=found.stack)


def moved_with_ranks(place: Place, state: JobState) -> Place | None:
    """The same fault on other nodes before; None if there was none. A hang is the same at the same step."""
    for before in state.places:
        is_alike = before.ranks == place.ranks or before.stack == place.stack != ""
        is_here = place.symptom is Symptom.SLOW or abs(before.step - place.step) <= SAME_STEP
        is_elsewhere = before.symptom is place.symptom and not set(before.nodes) & set(place.nodes)
        if is_alike and is_here and is_elsewhere:
            return before
    return None
