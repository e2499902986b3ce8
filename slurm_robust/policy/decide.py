"""The one place that decides. Records in, records out: no clock, no Slurm, no process.

The live controller and the tests, which play whole weeks, feed the same function.
"""

from __future__ import annotations

from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.incident import (
    Action,
    AllRanksDone,
    Blame,
    Decision,
    Diagnose,
    EndApproaching,
    Evict,
    Fault,
    FaultKind,
    Finish,
    GiveUp,
    Observation,
    Replay,
    Requeue,
    Restart,
    Signature,
    SpareLost,
    StartAgents,
    Symptom,
    Verdict,
)
from slurm_robust.model.state import JobState
from slurm_robust.policy.bounds import exceeded, in_vain
from slurm_robust.policy.ladder import LADDER
from slurm_robust.policy.replacement import go_on_without, move_ranks, replace_nodes
from slurm_robust.policy.rules import Rules
from slurm_robust.policy.stacks import place_of

TESTS = 5  # the rung


def decide(state: JobState, observation: Observation, now: float, rules: Rules) -> Decision:
    """What to do about ``observation``. ``now``: seconds since 1970, compared with the journal's times."""
    match observation:
        case AllRanksDone():
            return Decision(actions=(Finish(code=0),), reason="every rank ended with code 0")
        case SpareLost(node=node, reason=reason):
            reason = f"spare {node} {reason}"
            return Decision(actions=(Evict(node=node, reason=reason),), reason=reason)
        case EndApproaching():
            return _before_the_end(state, observation, now, rules)
        case Fault():
            return _after_failure(state, observation, now, rules)


def _before_the_end(state: JobState, end: EndApproaching, now: float, rules: Rules) -> Decision:
    reason = end.reason
    why = in_vain(state, end, now) if rules.requeue else f"{reason}, and slurm.requeue is off"
    if why:
        return Decision(actions=(GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=why),), reason=why)
    exclude = tuple(state.evicted)
    return Decision(
        actions=(Requeue(exclude=exclude, reason=reason),), reason=f"{reason}: the job goes on later"
    )


def _after_failure(state: JobState, fault: Fault, now: float, rules: Rules) -> Decision:
    root = fault.root
    if root is not None and not fault.lost and root.exit.code in rules.final_exit_codes and root.exit.code:
        reason = f"{root.exit.describe()}: a restart cannot help (final_exit_codes)"
        return Decision(actions=(GiveUp(code=root.exit.code, reason=reason),), reason=reason)
    verdict = next(v for v in (rung(fault, rules, state) for rung in LADDER) if v is not None)
    stop = exceeded(state, verdict, rules.limits, now)
    if stop is not None:
        return _last_resort(state, fault, verdict, stop, rules)
    actions, how = _answer(state, fault, verdict, rules)
    place = place_of(fault, state)
    return Decision(actions=actions, reason=f"{verdict.reason}: {how}", verdict=verdict, place=place)


def _answer(state: JobState, fault: Fault, verdict: Verdict, rules: Rules) -> tuple[tuple[Action, ...], str]:
    if verdict.blame is Blame.NODE:
        return replace_nodes(state, verdict.suspects, verdict.reason, rules)
    kind = verdict.signature.kind
    if kind is FaultKind.UNREACHABLE:
        return go_on_without(state, fault.lost, rules)
    if kind is FaultKind.SLOW_TO_DIE and rules.requeue and _was_tried(state, verdict.signature):
        return go_on_without(state, fault.stuck, rules)
    if verdict.suspects:
        return move_ranks(state, verdict.suspects)
    if verdict.rung == TESTS:
        bitwise = fault.symptom in (Symptom.NON_FINITE, Symptom.SPIKE)
        return (Diagnose(reason=verdict.reason, bitwise=bitwise),), "test the nodes"
    if kind is FaultKind.AGENTS_LOST:
        nodes = (*state.slots, *state.spares)
        return (StartAgents(nodes=nodes), Restart()), "start the agents again and restart"
    if kind is FaultKind.AGENT_ENDED:
        return (Restart(),), "start the agent again and restart"
    if kind is FaultKind.PORT_TAKEN:
        return (Restart(),), "restart in place, with another port"
    if kind is FaultKind.RESTORE:
        return (Restart(),), "restart from what else is there"
    return (Restart(),), "restart in place"


def _was_tried(state: JobState, signature: Signature) -> bool:
    """Whether this was answered before without new progress since."""
    return any(attempt.signature == signature for attempt in state.in_vain)


def _last_resort(state: JobState, fault: Fault, verdict: Verdict, stop: str, rules: Rules) -> Decision:
    """Rung 8, once without new progress in between, then the end with the evidence."""
    reason = f"{verdict.reason}; {stop}" if verdict.allowed else verdict.reason
    if verdict.allowed and rules.replay and fault.replayed is None:
        why = f"{reason}: replay the training in small groups"
        answer = Verdict(
            rung=8,
            blame=Blame.NOBODY,
            signature=Signature(kind=FaultKind.REPLAYED),
            reason=reason,
            confidence=0.3,
        )
        return Decision(actions=(Replay(reason=reason),), reason=why, verdict=answer)
    give_up = GiveUp(code=ExitCode.DO_NOT_REQUEUE, reason=reason)
    return Decision(actions=(give_up,), reason=reason, verdict=verdict)
