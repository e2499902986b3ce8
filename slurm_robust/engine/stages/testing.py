"""Training is suspended and its nodes are tested, or replay it in small groups."""

from __future__ import annotations

from msgspec import structs

from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import NoAnswer, Question, ReplayTraining, TestNodes
from slurm_robust.engine.transitions import ToDeciding, ToStopping, ToTesting, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnose, Diagnosis, QuickTest, Replay
from slurm_robust.policy.ladder import no_answer
from slurm_robust.policy.quick_test import format_quick, quick_answers
from slurm_robust.util.text import count

MARGIN_S = 30.0
"""Seconds beyond the tests' own limit, for steps to begin and end."""


class Testing:
    """Waits for the tests, bounded; then the policy is asked again with what they have shown."""

    def __init__(self, begin: ToTesting) -> None:
        self._fault = begin.fault
        self._action = begin.action
        self._is_replay = isinstance(begin.action, Replay)
        self._nodes: tuple[str, ...] = ()
        self._since = self._limit_s = 0.0
        self._found: Diagnosis | None = None

    def enter(self, core: Core, now: Now) -> None:
        """Have the tests begun on all nodes that answer."""
        self._since = now.mono
        nodes = self._nodes = tuple(n for n in core.world.slots if n not in self._fault.lost)
        if isinstance(self._action, QuickTest):
            nodes = self._nodes = tuple(
                node for node in self._action.nodes if not core.giving_back.is_leaving(node, now)
            )
            self._limit_s = core.config.detect.quick_test_s
            question: Question[Diagnosis] = TestNodes(nodes=nodes, budget_s=self._limit_s, quick=True)
        elif isinstance(self._action, Diagnose):
            self._limit_s = core.config.detect.diagnose_s
            question = TestNodes(nodes=nodes, bitwise=self._action.bitwise, budget_s=self._limit_s)
        else:
            self._limit_s = core.config.replay.budget_s
            question = ReplayTraining(nodes=nodes, layout=core.layout, release=core.state.release)
        core.ask(question, now, self._hear, within_s=self.most_s)
        what = "replaying the training on" if self._is_replay else "testing"
        core.emit(Say(text=f"{what} {count(len(nodes), 'node')}, {self.most_s:.0f} s at most"))

    @property
    def most_s(self) -> float:
        """How long the tests take at most."""
        return self._limit_s + MARGIN_S

    def _hear(self, found: Diagnosis | NoAnswer, now: Now) -> None:
        self._found = Diagnosis(reason=found.reason) if isinstance(found, NoAnswer) else found

    def step(self, core: Core, now: Now) -> Transition | None:
        """Decide again when the results are there; without results as if all had passed."""
        if core.leaving:
            return ToStopping(reason=core.leaving)
        if core.ending and self._found is None:
            self._found = Diagnosis(reason="the end of this run is near")
        if (found := self._found) is None:
            return None
        if isinstance(self._action, QuickTest):
            return self._use_cleared(core, self._action, found, now)
        if why := no_answer(found):
            core.evidence_missing("a replay" if self._is_replay else "tests", self._nodes, why, now)
        else:
            self._record(core, found, now)
        field = "replayed" if self._is_replay else "diagnosis"
        return ToDeciding(fault=structs.replace(self._fault, **{field: found}))

    def _use_cleared(self, core: Core, action: QuickTest, found: Diagnosis, now: Now) -> Transition:
        """Use nodes that have passed again; if others gave no answer, conclude nothing about them."""
        answers = quick_answers(action.nodes, (r for r in found.results if r.node in self._nodes))
        said = {o: {a.node: a.text for a in answers if a.outcome is o} for o in Outcome}
        passed, failed, silent = (said[o] for o in (Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN))
        incident = core.world.incident
        tested = ev.QuickTested(
            t=now.wall,
            incident=incident.number if incident else 0,
            passed=tuple(passed),
            failed=failed,
            silent=silent,
            took_s=now.mono - self._since,
        )
        core.record(tested)
        core.emit(Say(text=f"quick test: {format_quick(tested)}"))
        quiet_s = 2 * core.config.timings.heartbeat_s + 0.5
        here = (*core.world.slots, *core.fleet.heard(passed, quiet_s, now.mono))
        core.starts.begin(tuple(node for node in passed if node not in here), now)
        return ToDeciding(fault=structs.replace(self._fault, cleared=tuple(passed)))

    def _record(self, core: Core, found: Diagnosis, now: Now) -> None:
        incident = core.world.incident
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
