"""Asking the policy about a failure, and doing what it says."""

from __future__ import annotations

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.questions import SaveEvidence, ShrinkJob
from slurm_robust.engine.stages.watch import silent_nodes
from slurm_robust.engine.transitions import (
    ToBorrowing,
    ToDeciding,
    ToEnding,
    ToGathering,
    ToRequeueing,
    ToSaving,
    ToTesting,
    Transition,
)
from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.incident import Symptom
from slurm_robust.policy.ladder import against


class Deciding:
    """Left as soon as it is entered: a decision takes no time."""

    def __init__(self, begin: ToDeciding) -> None:
        self._fault = begin.fault
        self._next: Transition | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Decide, write it down, and turn the actions into a transition."""
        self._add_ended_agents(core, now)
        for node in self._fault.oom | self._fault.ended | self._fault.step_ended:
            core.starts.missed(node, now)  # its agent is started again, if we go on
        decided = core.decide(self._fault, now)
        for action in decided.actions:
            self._next = self._carry_out(core, action, decided, now) or self._next
        kinds = {type(action) for action in decided.actions}
        if inc.Restart in kinds and inc.RestartAgents not in kinds:
            wanted = (*core.world.slots, *core.state.spares)
            core.starts.begin(tuple(node for node in self._fault.step_ended if node in wanted), now)
        core.ask(SaveEvidence(number=decided.incident), now)

    def _add_ended_agents(self, core: Core, now: Now) -> None:
        """Add agents that ended: the ranks seen first may be those of other nodes, which lost their peers."""
        incident, fault = core.world.incident, self._fault
        ended = fault.ended | {n: why for n, why in fault.step_ended.items() if n in fault.lost}
        if ended and incident is not None and incident.symptom is not Symptom.AGENTS_LOST:
            detail = "; ".join(f"the agent on {node} ended ({why})" for node, why in ended.items())
            core.incidents.open(inc.Fault(symptom=Symptom.AGENTS_LOST, detail=detail), now)

    def step(self, core: Core, now: Now) -> Transition | None:
        """Return the stage to which the actions lead."""
        return self._next

    def _carry_out(self, core: Core, action: inc.Action, decided: ev.Decided, now: Now) -> Transition | None:
        match action:
            case inc.Evict(node=node):
                assert decided.verdict is not None  # which names the node
                evidence = against(self._fault, node)
                unproven = decided.verdict.unproven
                drill = f"drill {decided.drill}: " if decided.drill else ""
                core.evict(
                    node,
                    drill + decided.verdict.reason,
                    now,
                    decided.incident,
                    evidence,
                    unproven=unproven,
                    drill=decided.drill,
                )
            case inc.RestartAgents(nodes=nodes):
                core.starts.begin(nodes, now, forget_silent=not self._fault.alive)
            case inc.Restart():
                return ToGathering()
            case inc.Diagnose() | inc.Replay() | inc.QuickTest():
                return ToTesting(fault=self._fault, action=action)
            case inc.Borrow():
                return ToBorrowing(fault=self._fault, action=action)
            case inc.Requeue(exclude=exclude, reason=reason):
                # Slurm takes its time to notice them, and does so while the checkpoint is saved.
                core.ask(ShrinkJob(nodes=silent_nodes(core, now)), now)
                return ToSaving(then=ToRequeueing(exclude=exclude, reason=reason, failure=True))
            case inc.GiveUp(code=code, reason=reason):
                return ToSaving(then=ToEnding(code=code, reason=reason, final=action.is_for_good))
            case inc.Replace() | inc.Swap() | inc.RollBack():
                pass  # the Decided event itself has changed the slots, or the release
        return None
