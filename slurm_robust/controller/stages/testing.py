"""Training is suspended and its nodes are tested, or replay it in small groups."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.controller.core import Core
from slurm_robust.controller.effects import Now, ReplayTraining, Say, TestNodes
from slurm_robust.controller.transitions import ToDeciding, ToStopping, ToTesting, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Diagnose, Diagnosis, Replay
from slurm_robust.policy.ladder import no_answer
from slurm_robust.util.text import count

MARGIN_S = 30.0
"""Beyond the tests' own limit, for steps to begin and end."""


class Testing:
    """Waits for the tests, bounded; then the policy is asked again with what they have shown."""

    __test__ = False

    def __init__(self, begin: ToTesting) -> None:
        self._fault = begin.fault
        self._action = begin.action
        self._is_replay = isinstance(begin.action, Replay)
        self._nodes: tuple[str, ...] = ()
        self._since = self._limit_s = 0.0

    def enter(self, core: Core, now: Now) -> None:
        """Have the tests begun on all nodes that answer."""
        self._since = now.mono
        nodes = self._nodes = tuple(n for n in core.state.slots if n not in self._fault.lost)
        if isinstance(self._action, Diagnose):
            self._limit_s = core.config.detect.diagnose_s
            core.test(TestNodes(nodes=nodes, bitwise=self._action.bitwise, budget_s=self._limit_s))
        else:
            self._limit_s = core.config.replay.budget_s
            core.test(ReplayTraining(nodes=nodes, layout=core.checkpoints.layout()))
        what = "replaying the training on" if self._is_replay else "testing"
        core.emit(Say(text=f"{what} {count(len(nodes), 'node')}, {self._limit_s:.0f} s at most"))

    def step(self, core: Core, now: Now) -> Transition | None:
        """Decide again when the results are there; without results as if all had passed."""
        if core.leaving:
            return ToStopping(reason=core.leaving)
        found = core.diagnosis
        if found is None:
            if now.mono - self._since < self._limit_s + MARGIN_S:
                return None
            found = Diagnosis(reason=f"no answer within {self._limit_s + MARGIN_S:g} s")
        if why := no_answer(found):
            core.evidence_missing("a replay" if self._is_replay else "tests", self._nodes, why, now)
        else:
            self._record(core, found, now)
        field = "replayed" if self._is_replay else "diagnosis"
        return ToDeciding(fault=structs.replace(self._fault, **{field: found}))

    def _record(self, core: Core, found: Diagnosis, now: Now) -> None:
        incident = core.state.incident
        core.record(
            ev.NodesTested(
                t=now.wall,
                incident=incident.number if incident else 0,
                results=found.results,
                suspects=found.suspects,
                reason=found.reason,
                left_out=found.left_out,
                took_s=now.mono - self._since,
            )
        )
        core.emit(Say(text=f"tests: {found.reason}"))
