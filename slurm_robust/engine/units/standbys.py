"""Standbys on their way to be fit: follows how far each is, has them tested, and has them rehearse."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.engine.effects import Say
from slurm_robust.engine.questions import EndStandbyTest, NoAnswer, TestNodes
from slurm_robust.engine.units.trials import Trials
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis
from slurm_robust.model.standby import Rehearsal, RehearsalState, StandbyStage
from slurm_robust.policy.quick_test import quick_answers
from slurm_robust.policy.standbys import SETTLED_S, failed_alike, tests_fail_alike
from slurm_robust.util.text import one_line
from slurm_robust.wire.messages import Heartbeat, Phase, Rehearse

RESEND_S = 2.0

MAX_TESTS = 3
"""Times that one standby begins its test: each is ended if the node is needed or training has to start."""

MARGIN_S = 30.0
"""Seconds beyond the quick test's own limit, for steps to begin and end."""

_REHEARSED = {
    RehearsalState.RUNNING: StandbyStage.REHEARSING,
    RehearsalState.PASSED: StandbyStage.REHEARSED,
    RehearsalState.FAILED: StandbyStage.REHEARSAL_FAILED,
}
_TESTED = {
    Outcome.PASS: StandbyStage.TESTED,
    Outcome.FAIL: StandbyStage.TEST_FAILED,
    Outcome.UNKNOWN: StandbyStage.TEST_UNANSWERED,
}
_MAX_CHARS = 300


@dataclass
class _Test:
    """The quick test that runs."""

    number: int
    node: str
    began: float


class Standbys:
    """Called while training runs. Nothing here is critical: what is lost is sent again."""

    def __init__(self, context: Context, trials: Trials) -> None:
        self._context, self._trials = context, trials
        self._generation = 0
        self._since = 0.0  # when this generation was first seen to train
        self._sent: dict[str, tuple[str, float]] = {}  # by node: to which agent, when last
        self._told: set[str] = set()
        self._test: _Test | None = None
        self._tests = 0  # so many were begun
        self._tried: dict[str, int] = {}  # by node: how often its quick test was begun
        standbys = context.state.standbys.items()
        # Of an earlier controller; its tests may run until they have had their time.
        self._tested_before = {node for node, known in standbys if known.stage is StandbyStage.TESTING}

    def step(self, now: Now) -> None:
        """Write down what has changed, and order the next rehearsal when it is due."""
        context, state = self._context, self._context.state
        heartbeats = context.fleet.heartbeats(state.spares)
        changes = [self._follow(node, heartbeat, now) for node, heartbeat in heartbeats.items()]
        for node in state.spares:
            if node not in heartbeats:
                self._forget_what_it_did(node, now)
        if any(changes):
            self._tell_if_alike("rehearsals", failed_alike(context.state), now)
        if not self._may_run():
            self._generation = 0
            return
        if self._generation != state.world.generation:
            self._generation, self._since = state.world.generation, now.mono
        if context.config.mode != "act" or now.mono - self._since < SETTLED_S:
            return
        if self._test is None:
            self._begin_test(heartbeats, now)
        if context.config.standby.rehearse:
            self._order(heartbeats, now)

    # -- quick tests -------------------------------------------------------------------------------

    def yield_to_training(self, now: Now) -> None:
        """End the quick test when its node may be needed. Called at each turn."""
        context, test = self._context, self._test
        if test is None:
            return
        if test.node not in context.state.spares or not self._may_run():
            self._test = None
            self._generation = 0  # training has to settle again
            context.ask(EndStandbyTest(number=test.number), now)

    def _on_tested(self, number: int, found: Diagnosis | NoAnswer, now: Now) -> None:
        context, test = self._context, self._test
        if test is None or test.number != number:
            return  # it was ended, and says nothing
        if isinstance(found, NoAnswer):
            if found.late:
                context.ask(EndStandbyTest(number=test.number), now)
            found = Diagnosis(reason="no answer in time" if found.late else found.reason)
        self._test = None
        (answer,) = quick_answers((test.node,), found.results)
        text = answer.text
        if answer.outcome is Outcome.UNKNOWN:
            text = "; ".join(f"{name}: {why}" for name, why in found.left_out.items()) or found.reason or text
        text, took_s = one_line(text, _MAX_CHARS), round(now.mono - test.began, 1)
        context.record(
            ev.StandbyTested(t=now.wall, node=test.node, outcome=answer.outcome, text=text, took_s=took_s)
        )
        said = {
            Outcome.PASS: f"passed its quick test in {took_s:.0f} s",
            Outcome.FAIL: f"failed its quick test ({text})",
            Outcome.UNKNOWN: f"is taken last: its quick test gave no answer ({text})",
        }
        context.emit(Say(text=f"standby {test.node} {said[answer.outcome]}"))
        self._tell_if_alike("quick tests", tests_fail_alike(context.state), now)

    def _may_run(self) -> bool:
        """Return whether training goes on, and nothing needs a standby."""
        context = self._context
        is_over = bool(context.leaving or context.ending)
        return context.gets_on and not is_over

    def _begin_test(self, heartbeats: dict[str, Heartbeat], now: Now) -> None:
        """Begin one quick test at a time. A node that its inspection finds wrong has been evicted before."""
        for node, heartbeat in heartbeats.items():
            is_free = heartbeat.ready and not _rehearses(heartbeat) and not self._trials.uses(node)
            if is_free and self._is_to_be_tested(node, now):
                self._tests += 1
                self._tried[node] = self._tried.get(node, 0) + 1
                self._test = _Test(self._tests, node, now.mono)
                budget_s = self._context.config.standby.test_s
                self._context.emit(Say(text=f"standby {node} runs its quick test"))
                self._context.ask(
                    TestNodes(nodes=(node,), budget_s=budget_s, quick=True, standby=self._tests),
                    now,
                    partial(self._on_tested, self._tests),
                    within_s=budget_s + MARGIN_S,
                )
                self._follow(node, heartbeat, now)
                return

    def _is_to_be_tested(self, node: str, now: Now) -> bool:
        context, test_s = self._context, self._context.config.standby.test_s
        if not test_s or node in context.state.aside:
            return False
        if node in self._tested_before and now.mono - context.started < test_s + MARGIN_S:
            return False
        return node not in context.state.standby_tests and self._tried.get(node, 0) < MAX_TESTS

    # -- how far each is ---------------------------------------------------------------------------

    def _follow(self, node: str, heartbeat: Heartbeat, now: Now) -> bool:
        """Return whether anything has changed."""
        found = self._seen(node, heartbeat, now)
        known = self._context.state.standbys.get(node)
        if known is not None and _shown(known) == _shown(found):
            return False
        self._context.record(found)
        if known is not None and known.stage is found.stage:
            return True
        if found.stage is StandbyStage.REHEARSED:
            self._context.emit(Say(text=f"standby {node} has rehearsed in {found.took_s:.0f} s"))
        elif found.stage is StandbyStage.REHEARSAL_FAILED:
            text = f"standby {node} is taken last: its rehearsal failed after {found.took_s:.0f} s "
            self._context.emit(Say(text=f"{text}({found.reason})"))
        return True

    def _forget_what_it_did(self, node: str, now: Now) -> None:
        """Forget what the agent of ``node`` was doing: it is gone, and nothing of that goes on."""
        known = self._context.state.standbys.get(node)
        if known is not None and known.stage in (StandbyStage.TESTING, StandbyStage.REHEARSING):
            self._context.record(ev.StandbyChanged(t=now.wall, node=node, stage=StandbyStage.STARTING))

    def _seen(self, node: str, heartbeat: Heartbeat, now: Now) -> ev.StandbyChanged:
        """Return how far the standby is."""
        rehearsal = heartbeat.rehearsal or Rehearsal(number=0, state=RehearsalState.ENDED)
        test = self._context.state.standby_tests.get(node)
        reason, took_s = rehearsal.reason, rehearsal.took_s
        if not heartbeat.ready:
            stage = StandbyStage.LOADING
        elif rehearsal.state in _REHEARSED and self._counts(rehearsal):
            stage = _REHEARSED[rehearsal.state]
        elif self._test is not None and self._test.node == node:
            stage = StandbyStage.TESTING
        elif test is not None:
            stage = _TESTED[test.outcome]
            if test.outcome is not Outcome.PASS:
                reason, took_s = test.text, test.took_s
        else:
            stage = StandbyStage.LOADED
        return ev.StandbyChanged(
            t=now.wall, node=node, stage=stage, reason=reason, took_s=took_s, loaded=heartbeat.loaded
        )

    def _counts(self, rehearsal: Rehearsal) -> bool:
        """Return whether it goes on, or says something of the release that ranks run."""
        is_this = rehearsal.release == self._context.state.release
        return is_this or rehearsal.state is RehearsalState.RUNNING

    def _tell_if_alike(self, what: str, reason: str, now: Now) -> None:
        if reason and what not in self._told:
            text = f"{what} fail alike on all standbys, so it is not the nodes ({reason})"
            self._context.note(text, "", now)
            self._context.emit(Say(text=f"{text}; standbys are taken in their usual order"))
        (self._told.add if reason else self._told.discard)(what)

    # -- rehearsals --------------------------------------------------------------------------------

    def _order(self, heartbeats: dict[str, Heartbeat], now: Now) -> None:
        """Order one rehearsal at a time: they read the same storage as the ranks."""
        rehearsals = {n: h.rehearsal for n, h in heartbeats.items() if h.rehearsal is not None}
        if any(map(_rehearses, heartbeats.values())):
            return
        for node, heartbeat in heartbeats.items():
            last = rehearsals.get(node)
            is_due = last is None or last.state is RehearsalState.ENDED or not self._counts(last)
            is_free = heartbeat.ready and heartbeat.phase in (Phase.IDLE, Phase.ENDED)
            if not is_due or not is_free or node in self._context.state.aside or self._trials.uses(node):
                continue
            if not self._context.knows(node, Rehearse):
                continue
            if self._is_to_be_tested(node, now) or (self._test is not None and self._test.node == node):
                continue
            agent, at = self._sent.get(node, ("", 0.0))
            if agent != heartbeat.agent or now.mono - at >= RESEND_S:
                self._sent[node] = heartbeat.agent, now.mono
                self._context.send(node, self._make(last.number + 1 if last is not None else 1))
            return

    def _make(self, number: int) -> Rehearse:
        state, config = self._context.state, self._context.config.standby
        return Rehearse(
            epoch=state.epoch,
            number=number,
            slots=len(state.world.slots),
            steps=config.rehearse_steps,
            limit_s=config.rehearse_s,
            writes=config.rehearse_writes,
            release=state.release,
        )


def _shown(event: ev.StandbyChanged) -> tuple[StandbyStage, str, int]:
    """Return the part of ``event`` whose change is written down."""
    return event.stage, event.reason, event.loaded


def _rehearses(heartbeat: Heartbeat) -> bool:
    return heartbeat.rehearsal is not None and heartbeat.rehearsal.state is RehearsalState.RUNNING
