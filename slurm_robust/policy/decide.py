"""The one place that decides. Records in, records out: no clock, no Slurm, no process.

The live controller and the tests, which play whole weeks, feed the same function.
"""

from __future__ import annotations

from msgspec import structs

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.events import Decided
from slurm_robust.model.incident import (
    Action,
    Blame,
    Diagnose,
    Fault,
    FaultKind,
    GiveUp,
    Replay,
    Requeue,
    Restart,
    RestartAgents,
    Signature,
    Symptom,
    Verdict,
)
from slurm_robust.model.release import Candidate
from slurm_robust.model.state import JobState
from slurm_robust.policy.drills import explains
from slurm_robust.policy.ladder import LADDER, place_of
from slurm_robust.policy.replacement import go_on_without, leave_drained, move_ranks, replace_nodes
from slurm_robust.policy.restore import cannot_reshard
from slurm_robust.policy.rollback import before_giving_up, blames_release, roll_back, way_back
from slurm_robust.policy.rules import Rules, exceeded, without_progress

TESTS = 5  # the rung


def decide(state: JobState, fault: Fault, now: float, rules: Rules) -> Decided:
    """Decide about ``fault``: the event that changes ``state``; ``now``: by the clock of the journal.

    A drill is answered as the first fault of its kind.
    """
    drill = explains(state.world, fault)
    if drill is None:
        return _decide(state, fault, now, rules)
    return structs.replace(decide_first(state, fault, now, rules), drill=drill.drill)


def decide_first(state: JobState, fault: Fault, now: float, rules: Rules) -> Decided:
    """Decide as if nothing had gone wrong before, and as if no release could be taken back."""
    world = structs.replace(state.world, attempts=(), places=())
    calm = structs.replace(state, candidate=None, worlds={**state.worlds, state.focus: world})
    return _decide(calm, fault, now, rules)


def _decide(state: JobState, fault: Fault, now: float, rules: Rules) -> Decided:
    state = structs.replace(state, evicted={node: state.evicted[node] for node in state.shunned(now)})
    root = fault.root
    final = [code for code in rules.config.final_exit_codes if code]
    if root is not None and not fault.lost and root.exit.code in final:
        reason = f"{root.exit.describe()}: a restart cannot help (final_exit_codes)"
        give_up = GiveUp(code=root.exit.code, reason=reason)
        return Decided(t=now, incident=state.incidents, actions=(give_up,), reason=reason)
    back = way_back(state, rules)
    unfit = next((e for e in fault.exits if cannot_reshard(e.exit)), None)
    if unfit is not None and unfit.exit.error is not None:
        reason = f"the checkpoint does not fit this number of ranks: {unfit.exit.error.message}"
        if back is not None:
            return _roll_back(back, reason, state, fault, now, rules)
        give_up = GiveUp(code=ExitCode.CONFIG, reason=reason)
        return Decided(t=now, incident=state.incidents, actions=(give_up,), reason=reason)
    verdict = next(v for v in (rung(fault, rules, state) for rung in LADDER) if v is not None)
    if back is not None and blames_release(state, fault, verdict, rules):
        return _roll_back(back, verdict.reason, state, fault, now, rules, verdict.confidence)
    stop = exceeded(state, verdict, rules.limits, now)
    if stop is not None and back is not None and before_giving_up(state, verdict, rules):
        return _roll_back(back, f"{verdict.reason}; {stop}", state, fault, now, rules, verdict.confidence)
    if stop is not None:
        return _last_resort(state, fault, verdict, stop, now, rules)
    actions, how = _answer(state, fault, verdict, rules)
    actions, left = leave_drained(state, actions, rules)
    how = ", ".join(filter(None, (how, left)))
    if verdict.signature.kind is FaultKind.RANKS and verdict.blame is Blame.NOBODY:
        how += "; where it comes again shows whether it is the node or the code"
    return Decided(
        t=now,
        incident=state.incidents,
        actions=actions,
        reason=f"{verdict.reason}: {how}",
        verdict=verdict,
        place=place_of(fault, state),
    )


def at_the_end(state: JobState, reason: str, now: float, rules: Rules, *, warned: bool) -> Requeue | GiveUp:
    """Decide what to do if this run of the Slurm job ends for ``reason`` and training is not done.

    ``warned``: Slurm says so, because the time limit or a preemption is near (``--signal=B:USR1@...``).
    """
    why = without_progress(state, reason, now, warned=warned)
    if not rules.config.slurm.requeue:
        why = f"{reason}, and slurm.requeue is off"
    if why:
        return GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=why)
    return Requeue(exclude=state.shunned(now), reason=reason)


def _answer(state: JobState, fault: Fault, verdict: Verdict, rules: Rules) -> tuple[tuple[Action, ...], str]:
    if verdict.blame is Blame.NODE:
        return replace_nodes(state, verdict, fault, rules)
    kind = verdict.signature.kind
    if kind is FaultKind.UNREACHABLE:
        return go_on_without(state, fault.lost, fault, rules)
    was_tried = any(attempt.signature == verdict.signature for attempt in state.world.without_progress)
    if kind is FaultKind.SLOW_TO_DIE and rules.config.slurm.requeue and was_tried:
        return go_on_without(state, fault.stuck, fault, rules)
    if verdict.suspects:
        return move_ranks(state, verdict.suspects, rules)
    if verdict.rung == TESTS:
        bitwise = fault.symptom in (Symptom.NON_FINITE, Symptom.SPIKE)
        return (Diagnose(reason=verdict.reason, bitwise=bitwise),), "test the nodes"
    if kind is FaultKind.AGENTS_LOST:
        silent = {*fault.lost, *fault.step_ended}
        nodes = tuple(n for n in (*state.world.slots, *state.spares) if n in silent or not fault.step_ended)
        return (RestartAgents(nodes=nodes), Restart()), "start the agents again and restart"
    if kind is FaultKind.AGENT_ENDED:
        return (Restart(),), "start the agent again and restart"
    if kind is FaultKind.PORT_TAKEN:
        return (Restart(),), "restart in place, with another port"
    if kind is FaultKind.RESTORE:
        return (Restart(),), "restart from another copy"
    return (Restart(),), "restart in place"


def _roll_back(
    candidate: Candidate,
    why: str,
    state: JobState,
    fault: Fault,
    now: float,
    rules: Rules,
    confidence: float = 1.0,
) -> Decided:
    """Go back to the release before. No bound holds it up: each release is rolled back once."""
    verdict, actions, how = roll_back(candidate, why, state, confidence)
    both, left = leave_drained(state, actions, rules)
    how = ", ".join(filter(None, (how, left)))
    return Decided(
        t=now,
        incident=state.incidents,
        actions=both,
        reason=f"{verdict.reason}: {how}",
        verdict=verdict,
        place=place_of(fault, state),
    )


def _last_resort(
    state: JobState, fault: Fault, verdict: Verdict, stop: str, now: float, rules: Rules
) -> Decided:
    """Take rung 8 once without new progress in between, then end with the evidence."""
    reason = why = f"{verdict.reason}; {stop}" if verdict.allowed else verdict.reason
    action: Action = GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=reason)
    if verdict.allowed and rules.config.replay.args is not None and fault.replayed is None:
        action, why = Replay(reason=reason), f"{reason}: replay the training in small groups"
        verdict = Verdict(
            rung=8,
            blame=Blame.NOBODY,
            signature=Signature(kind=FaultKind.REPLAYED),
            reason=reason,
            confidence=0.3,
        )
    return Decided(t=now, incident=state.incidents, actions=(action,), reason=why, verdict=verdict)
