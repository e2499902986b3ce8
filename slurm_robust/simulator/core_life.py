"""One life of a simulated job by the controller's real core (``fidelity: core``).

:class:`~slurm_robust.engine.core.Core` decides and waits as in a job: by heartbeats, by answers of Slurm, and
by its clock. Nodes, Slurm, storage and training are pretended, with the times of the spec (:mod:`~.agents`,
:mod:`~.gang`, :mod:`~.site`). Time leaps from one thing that happens to the next; while training goes on and
nothing is due, the core is not asked at all.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from msgspec import structs

from slurm_robust.config.plan import RunPlan
from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.running import Running
from slurm_robust.engine.stages.table import begin, build
from slurm_robust.engine.units.liveness import MAX_PROBED
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.exits import StepEnd, Witness, WorkerError, WorkerExit
from slurm_robust.model.findings import Alert, Outcome, Party, Suggestion
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.job import CommandKind
from slurm_robust.model.journal import fold
from slurm_robust.model.probes import Answers, PortsProbed
from slurm_robust.model.release import Requester, When
from slurm_robust.model.stacks import RankStacks
from slurm_robust.model.standby import StandbyStage
from slurm_robust.model.state import JobState
from slurm_robust.policy.leaving import Sentence
from slurm_robust.policy.quick_test import TESTS as QUICK_TESTS
from slurm_robust.policy.replenish import missing_standbys
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.policy.takeover import PROBE_S
from slurm_robust.simulator.agents import SimulatedAgents, WrongNumbers
from slurm_robust.simulator.damage import ENDS_NODES, Damage
from slurm_robust.simulator.faults import SimulatedFault, given_faults
from slurm_robust.simulator.gang import Gang
from slurm_robust.simulator.life import BEGUN, WARNED_S, SimulatedLife, TimeIsOver
from slurm_robust.simulator.site import SimulatedSite
from slurm_robust.simulator.spec import FaultOf, Spec
from slurm_robust.simulator.spread import parse, rate, seconds
from slurm_robust.testing.clock import FakeClock
from slurm_robust.testing.sim.environment import SimulatedRelease, release_of
from slurm_robust.testing.sim.timeline import Timeline
from slurm_robust.testing.sim.training import doing
from slurm_robust.version import __version__
from slurm_robust.wire import messages as msg

ASLEEP_S = 1000.0
"""The controller's monotonic clock when the life begins."""

REST_S = 0.02
"""From news to the controller's next turn, which takes in more news together."""

SLURM_S = 0.2
"""Until Slurm answers."""

SLURM_GIVES_UP_S = 300.0
"""From the death of a node until Slurm calls it DOWN (SlurmdTimeout)."""

FIRST_TURN_S, LAST_TURN_S = 0.4, 30.0
"""Bounds of the time between two turns without news …"""
GROWTH = 0.25
"""… which is so much of the time since the last news: what is due is noticed a little later."""

LONG_TESTS, REPLAY = ("gemm", "memory"), ("replay",)
"""What nodes are tested for if the test is no quick one, and the test that a replay is."""

LONG_S = 3600.0
"""The longest time between two turns while training goes on and the core has something to do beside it."""

AGENT_GOES_S = 2.6
"""After so long the core takes an agent that it has ended for gone."""

UNDONE = (
    qs.LetGo,
    qs.EndStandbyTest,
    qs.SaveEvidence,
    qs.SaveSuspect,
    qs.SaveStacks,
    qs.SaveAlerts,
    qs.ShrinkJob,
)
"""What is done without any trace in a simulated life."""

BESIDE = (*UNDONE, qs.AskForDrains, qs.Prune, qs.FindSwitches, qs.FindKillWait, qs.SweepCompanions)
"""Questions that nothing waits for: the answer is heard in the controller's next turn, whenever that is."""


class CoreLife:
    """Plays one life. Create it, then call :meth:`play` once."""

    def __init__(self, spec: Spec, seed: int) -> None:
        self.spec, self.seed = spec, seed
        self._chance = Random(f"life {seed}")
        self._clock = FakeClock(BEGUN)
        self._timeline = Timeline(self._clock)
        self._site = SimulatedSite(spec, self._timeline, self._chance)
        self._horizon = seconds(spec.time)
        self._damage = Damage(spec, self._site, self._timeline, self._chance, seed, self._strike)
        self._agents = SimulatedAgents(spec, self._timeline, self._chance, self._site.names, self._wake)
        self._agents.on_launched = self._start_s
        self._agents.on_trained = self._add_trained
        self._agents.is_reached = self._is_reached
        self._agents.answers_from = self._passes
        self._agents.fails_rehearsal = partial(self._damage.finds, recall=spec.diagnostics.recall)
        self._journals: list[list[ev.AnyEvent]] = []
        self._core: Core | None = None
        self._plan: RunPlan | None = None
        self._host = ""
        self._epoch = 0
        self._turn_at = math.inf
        self._news_at = 0.0
        self._asks = 0  # that the controller waits for
        self._heard: list[tuple[int, object, bool]] = []  # answers for its next turn
        self._has_beacons = spec.policy.timings.verdict_s != 0
        self._are_beacons_read = False  # they say nothing new while all agents are heard
        self._code: int | None = None  # of the run
        self._is_requeued = False
        self._excluded: tuple[str, ...] = ()
        self._is_gone_told = False
        self._stands_still = False  # no step is made, and only that shows
        self._is_trouble = False  # something struck, and the controller does not know yet
        self._undetected = 0  # what strikes and shows only later
        self._given = deque(given_faults(spec, f"faults {seed}"))
        self._updates = deque(sorted(map(seconds, spec.owner.updates_after)))
        self._preemptions = deque(sorted(map(seconds, spec.cluster.preempted_after)))
        self._trained_before_s = 0.0
        self._releases: dict[str, SimulatedFault | None] = {}
        self._lent: dict[int, str] = {}  # by companion
        self._companions = 0
        self._repeated = 0  # the generation for which repeats are planned
        self._run_ends = math.inf
        self._is_first_start = True
        self._struck = self._right = self._wrong = 0
        self._is_done = False
        self._answers: dict[type[qs.Question[Any]], Callable[[Any], object]] = {
            qs.FindSwitches: lambda asked: {n: f"s{self._site.rack(n)}" for n in self._site.names},
            qs.FindKillWait: lambda asked: 30.0,
            qs.StartAgents: self._start_agents,
            qs.ProbePorts: self._probe_ports,
            qs.ProbeKernels: self._probe_kernels,
            qs.AskAboutNodes: self._about_nodes,
            qs.AskAboutRun: self._about_run,
            qs.AskForDrains: lambda asked: {},
            qs.FindCheckpoint: lambda asked: self._agents.storage.complete(),
            qs.Prune: lambda asked: self._agents.storage.prune(asked, spec.policy.checkpoint.keep),
            qs.ReadRelease: lambda asked: release_of(asked.name, SimulatedRelease()),
            qs.GiveBack: self._give_back,
            qs.TestNodes: lambda asked: self._test(
                asked.nodes, QUICK_TESTS if asked.quick else LONG_TESTS, spec.diagnostics.recall
            ),
            qs.ReplayTraining: lambda asked: self._test(asked.nodes, REPLAY, spec.diagnostics.replay_recall),
            qs.EndCompanions: self._end_companions,
            qs.SweepCompanions: lambda asked: (),
        }
        self._answers |= dict.fromkeys(UNDONE, lambda asked: None)
        self._plan_owner("updates", self._update)
        self._plan_owner("manual_restarts", self._cancel)

    # -- the life --------------------------------------------------------------------------------------

    def play(self) -> SimulatedLife:
        """Play it to its end."""
        try:
            for number in range(1 + self.spec.owner.stops_after):
                self._submit(number)
                while self._run(number):
                    pass
                self._wait(self._draw(self.spec.owner.resubmit))
                self._damage.bugs.clear()  # a person has looked at it
        except TimeIsOver:
            pass
        if self._core is not None and not self._is_done:
            self._turn()
        return SimulatedLife(
            seed=self.seed,
            journals=tuple(tuple(journal) for journal in self._journals),
            end=self._clock.now,
            is_done=self._is_done,
            struck=self._struck,
            evicted_right=self._right,
            evicted_wrong=self._wrong,
            named=tuple(self._damage.named),
            died=tuple(self._damage.died),
        )

    @property
    def _now(self) -> float:
        return self._timeline.now

    def _clocks(self) -> Now:
        return Now(mono=ASLEEP_S + self._now, wall=self._clock.now)

    @property
    def _state(self) -> JobState:
        return self._core.state if self._core is not None else fold(self._journals[-1])

    def _draw(self, text: str) -> float:
        return parse(text).draw(self._chance)

    def _wait(self, s: float) -> None:
        until = min(self._now + s, self._horizon)
        while self._step(until):
            pass
        if self._now >= self._horizon:
            raise TimeIsOver

    def _step(self, until: float) -> bool:
        """Let the next thing happen, or the controller have its turn; False if neither is due by then."""
        if self._timeline.step(min(self._turn_at, until)):
            return True
        if self._turn_at > until:
            return False
        self._turn()
        return True

    def _submit(self, number: int) -> None:
        """Begin the journal of another job."""
        before = fold(self._journals[-1]) if self._journals else None
        self._journals.append([])
        self._restart_count, self._epoch = -1, 0
        self._plan = self._planned(1000 + number, ())
        journal = self._journals[-1]
        journal.append(self._plan.started(self._clock.now, __version__))
        if before is not None:
            stored = max(self._agents.storage.complete(), default=None)
            journal.append(
                ev.Continued(
                    t=self._clock.now,
                    from_job=999 + number,
                    from_folder=f"/{999 + number}",
                    generation=before.world.generation,
                    sealed=before.world.sealed,
                    best_step=before.world.best_step,
                    reports=True,
                    slots=self.spec.job.nodes,
                    stored=stored,
                )
            )
        self._take_release(None)

    def _take_release(self, brings: SimulatedFault | None) -> str:
        name = f"{len(self._releases):012x}"
        self._releases[name] = brings
        if brings is None:
            self._journals[-1].append(
                ev.ReleaseTaken(t=self._clock.now, release=release_of(name, SimulatedRelease()))
            )
        return name

    def _planned(self, job: int, nodes: tuple[str, ...]) -> RunPlan:
        spec = self.spec
        limit = seconds(spec.job.time_limit) if spec.job.time_limit else None
        return RunPlan(
            run_id=f"seed-{self.seed}",
            job_id=job,
            kind=CommandKind.SCRIPT,
            command=("train.py",),
            cwd="/",
            slots=spec.job.nodes,
            spares=spec.job.spares,
            nproc_per_node=1,
            restart_count=self._restart_count,
            nodes=nodes,
            config=spec.policy,
            time_limit_s=limit,
            gpus=len(nodes) * spec.job.gpus_per_node,
            start=f"start {self._restart_count}",
        )

    def _run(self, number: int) -> bool:
        """Play one run of the job; return whether another one follows."""
        spec, submitted = self.spec, self._clock.now
        if self._restart_count < 0:
            self._wait(self._draw(spec.cluster.queue))
        least, most = spec.job.nodes, spec.job.nodes + spec.job.spares
        nodes: list[str] = []
        excluded = set(self._excluded)
        while len(nodes) < least:
            nodes += self._site.take(most - len(nodes), without=excluded)
            if len(nodes) < least and excluded:
                excluded = set()  # too few others remain
            elif len(nodes) < least:
                self._wait(600.0)  # for repairs
        self._restart_count += 1
        plan = self._planned(1000 + number, tuple(nodes))
        self._plan = structs.replace(plan, submitted=submitted, queued_s=self._clock.now - submitted)
        self._code, self._is_requeued, self._is_first_start = None, False, True
        self._run_ends = self._now + plan.time_limit_s if plan.time_limit_s is not None else math.inf
        if plan.time_limit_s is not None:
            self._timeline.after(plan.time_limit_s - WARNED_S, partial(self._warn, self._restart_count))
            self._timeline.after(plan.time_limit_s, partial(self._kill, self._restart_count))
        self._start_controller(nodes[0])
        while self._code is None and self._step(self._horizon):
            pass
        if self._code is None or (self._is_done and self._code == 0):
            raise TimeIsOver
        self._end_run()
        if self._is_requeued:
            self._wait(self._draw(spec.cluster.requeue))
        return self._is_requeued

    def _end_run(self) -> None:
        """Give all nodes back."""
        state = fold(self._journals[-1])
        self._core = None
        self._agents.end_all()
        held = dict.fromkeys((*state.held, *state.world.slots, *state.spares, *self._lent.values()))
        self._lent.clear()
        for node in held:
            if not self._site.has(node):
                self._site.give_back(node)

    # -- the controller --------------------------------------------------------------------------------

    def _start_controller(self, host: str, taken_from: str = "", silent_since: float = 0.0) -> None:
        assert self._plan is not None
        journal, now = self._journals[-1], self._clocks()
        self._epoch += 1
        self._host = host
        journal.append(
            ev.ControllerStarted(
                t=now.wall,
                epoch=self._epoch,
                host=host,
                pid=self._epoch,
                port=7000,
                node=host,
                known=len(journal),
                taken_from=taken_from,
                reason=f"{taken_from} does not answer" if taken_from else "",
                silent_since=silent_since,
                start=self._plan.start,
            )
        )
        news, first = begin(journal, self._plan, now.wall)
        journal.extend(news)
        self._asks, self._is_gone_told = 0, False
        self._heard = []
        self._agents.meet_controller(self._epoch)
        self._core = Core(self._plan.config, fold(journal), build, first, now)
        self._wake()

    def _wake(self) -> None:
        """Have the controller hear what is new."""
        self._news_at = self._now
        self._plan_turn(REST_S)

    def _plan_turn(self, s: float) -> None:
        self._turn_at = min(self._turn_at, self._now + s)

    def _turn(self) -> None:
        """Have the core hear all agents, and decide."""
        core = self._core
        self._turn_at = math.inf
        if core is None:
            return
        now = self._clocks()
        if self._agents.nodes or self._agents.starting:
            self._is_gone_told = False
        elif not self._is_gone_told:
            self._is_gone_told = True
            self._do(core.on_agents_gone(now))
        is_awaited = not core.gets_on or core.ending or self._agents.busy or self._agents.wrong is not None
        self._agents.report(core, now, with_steps=bool(is_awaited), some_cut=self._some_are_cut)
        heard, self._heard = self._heard, []
        for number, answer, is_last in heard:
            core.hear(number, answer, now)
            if is_last:
                core.answered(number)
        if self._has_beacons and self._are_beacons_read:
            core.on_beacons(self._agents.beacon_ages(some_cut=self._some_are_cut))
        self._do(core.on_tick(now))
        if self._core is core:
            self._follow(core)

    def _follow(self, core: Core) -> None:
        """Plan the next turn without news, if there is one."""
        gang, trains = self._agents.gang, isinstance(core.stage, Running)
        if gang is not None and trains and core.trains and self._repeated != core.world.generation:
            self._repeated = core.world.generation
            self._plan_repeats(gang)
            self._plan_given()
        if gang is not None and trains and gang.moves and not self._is_lost_host():
            self._is_trouble = self._stands_still = False
            self._are_beacons_read = self._some_are_cut
            if self.spec.steps and gang.newest(self._now) >= self.spec.steps - 1:
                self._agents.finish()
                return
            self._follow_training(core, gang)
            return
        since = self._now - self._news_at
        known = self._agents.expected or (
            gang is not None and trains and gang.starts and not self._is_trouble
        )
        first_s = LAST_TURN_S if known or self._undetected else FIRST_TURN_S
        if gang is not None and trains and self._stands_still:
            still_s = self._now - gang.completed_at(self._now)
            first_s = max(1.0, min(60.0, core.monitor.hang_s(self._clocks()) - still_s + REST_S))
        self._plan_turn(max(first_s, min(LAST_TURN_S, GROWTH * since)))

    def _follow_training(self, core: Core, gang: Gang) -> None:
        """Plan the next turn while training goes on."""
        now, state = self._now, core.state
        if self.spec.steps:
            self._plan_turn(max(FIRST_TURN_S, gang.done_at(self.spec.steps - 1) - now + REST_S))
        if self._agents.wrong is not None:
            shown = max(self._agents.wrong.since, gang.done_at(self._agents.wrong.step))
            self._plan_turn(max(FIRST_TURN_S, shown - now + REST_S))
        if not core.trains:
            self._plan_turn(max(FIRST_TURN_S, gang.done_at(gang.first) - now + REST_S))
            return
        if state.world.incident is not None:
            self._plan_turn(max(FIRST_TURN_S, gang.done_at(state.world.incident.step + 1) - now + REST_S))
            return
        if gang.is_slow or core.ending or core.updates.due(self._clocks()):
            self._plan_turn(max(gang.pace_s, GROWTH * (now - self._news_at)))  # steps take longer
            return
        since = now - self._news_at
        if self._asks or self._agents.busy:
            return  # news come
        if (first_s := self._unsettled_s(core)) is not None:
            runs_s = self._clocks().mono - core.stage_since
            self._plan_turn(max(first_s, min(LONG_S, GROWTH * runs_s)))
        if missing_standbys(state) and core.rules.replenish_sources:
            self._plan_turn(max(60.0, min(LONG_S, GROWTH * since)))
        if self.spec.policy.checkpoint.memory:
            self._plan_turn(max(gang.pace_s, self._next_flush_s(core, gang)))

    def _unsettled_s(self, core: Core) -> float | None:
        """Return when to look again at what the core does besides watching; None if it does nothing."""
        state = core.state
        held = (*state.held, *state.lenders)
        stays = {*state.world.slots, state.own_node}
        if any(node in state.evicted and node not in stays for node in held):
            return AGENT_GOES_S
        over = (StandbyStage.REHEARSED, StandbyStage.REHEARSAL_FAILED, StandbyStage.TEST_FAILED)
        waits = any(
            node not in state.aside
            and ((known := state.standbys.get(node)) is None or known.stage not in over)
            for node in state.spares
        )
        return SETTLED_S / 2 if waits else None

    def _next_flush_s(self, core: Core, gang: Gang) -> float:
        """Return in how many seconds a checkpoint is due, the last one before anything else happens.

        Those before it leave no trace: newer ones replace them.
        """
        config = self.spec.policy.checkpoint
        period_s = config.every_steps * gang.pace_s if config.every_steps else config.every_s
        due_s = max(0.0, period_s - core.storage.stored_s(self._clocks()))
        until_s = min(self._timeline.next_at, self._horizon) - self._now
        return due_s + math.floor(max(0.0, until_s - due_s) / period_s) * period_s

    def _do(self, effects: list[fx.Effect]) -> None:
        """Write first, then act."""
        for effect in effects:
            if isinstance(effect, fx.Write):
                self._journals[-1].append(effect.event)
                self._note(effect.event)
        core = self._core
        for effect in effects:
            if core is not self._core:
                return
            match effect:
                case fx.Send(node=node, message=message):
                    self._agents.take(node, message)
                case fx.Ask(number=number, question=question):
                    self._ask(number, question)
                case fx.Exit(code=code):
                    self._code, self._core = code, None
                case fx.HandOver():
                    self._start_controller(self._host)

    def _note(self, event: ev.AnyEvent) -> None:
        """Note what an event of the journal means for what is pretended."""
        match event:
            case ev.NodeEvicted(node=node):
                if node in self._site.broken or node in self._site.down:
                    self._right += 1
                else:
                    self._wrong += 1
            case ev.RunEnded(code=0):
                self._is_done = True
            case ev.UpdateApplied(release=release):
                self._run_release(release)

    # -- questions -------------------------------------------------------------------------------------

    def _ask(self, number: int, asked: qs.Question[Any]) -> None:
        """Answer after as long as that takes."""
        tests, core = self.spec.diagnostics, self._core
        if isinstance(asked, qs.BorrowNodes):
            self._asks += 1
            self._borrow(number, asked)
            return
        if isinstance(asked, qs.BeginRequeue):
            self._asks += 1
            self._timeline.after(SLURM_S, partial(self._requeue, core, number, asked))
            return
        is_urgent = not isinstance(asked, BESIDE)
        match asked:
            case qs.TestNodes(quick=True):
                took_s = self._draw(tests.quick)
            case qs.TestNodes():
                took_s = self._draw(tests.takes)
            case qs.ReplayTraining():
                took_s = self._draw(tests.replay)
            case qs.ProbeKernels(each_kind=True):  # what it shows counts only when a node dies
                self._heard.append((number, self._probe_kernels(asked), True))
                return
            case qs.ProbeKernels(for_s=for_s):
                took_s = for_s
            case _:
                took_s = SLURM_S
        if not is_urgent:
            self._heard.append((number, self._answers[type(asked)](asked), True))
            return
        self._asks += 1

        def answer() -> None:
            if core is not None and core is self._core:
                self._tell(core, number, self._answers[type(asked)](asked))

        self._timeline.after(took_s, answer)

    def _tell(self, core: Core | None, number: int, answer: object, *, is_last: bool = True) -> None:
        """Have the controller that asked hear ``answer``."""
        if core is not None and core is self._core:
            self._asks -= is_last
            self._heard.append((number, answer, is_last))
            self._wake()

    def _start_agents(self, asked: qs.StartAgents) -> dict[str, str]:
        phases = self.spec.phases
        after_s = self._draw(phases.first_start if self._is_first_start else phases.agents)
        self._is_first_start = False
        nodes = [node for node in asked.nodes if node not in self._site.down]
        self._agents.starting += 1
        self._timeline.after(after_s, partial(self._agents_start, self._core, nodes))
        return {}

    def _agents_start(self, core: Core | None, nodes: list[str]) -> None:
        self._agents.starting -= 1
        if self._core is not None and (core is self._core or self._epoch > 1):
            for node in nodes:
                if node not in self._site.down:
                    self._agents.start(node)

    @property
    def _some_are_cut(self) -> bool:
        return bool(self._damage.away) and max(self._damage.away.values()) > self._now

    def _is_cut(self, node: str) -> bool:
        return bool(self._damage.away) and self._damage.away.get(self._site.rack(node), 0.0) > self._now

    def _passes(self, node: str, other: str) -> bool:
        """Return whether ``node`` reaches the kernel of ``other``."""
        if other in self._site.down:
            return False
        if not self._damage.away or self._site.rack(node) == self._site.rack(other):
            return True
        return not (self._is_cut(node) or self._is_cut(other))

    def _is_reached(self, node: str) -> bool:
        return self._passes(self._host, node)

    def _is_lost_host(self) -> bool:
        return self._host in self._site.down or self._is_cut(self._host)

    def _probe_ports(self, asked: qs.ProbePorts) -> PortsProbed:
        near = [node for node in asked.places if self._is_reached(node)]
        taken = frozenset(node for node in near if node in self._agents.nodes)
        return PortsProbed(taken, frozenset(near) - taken)

    def _probe_kernels(self, asked: qs.ProbeKernels) -> Answers:
        found = {node: 0.001 for node in asked.places if self._is_reached(node)}
        return Answers(tcp=found, asked=frozenset(asked.places))

    def _about_nodes(self, asked: qs.AskAboutNodes) -> tuple[Witness, ...]:
        died = {node: t for t, node in self._damage.died}

        def of(node: str) -> Witness:
            gone = node in self._site.down and self._clock.now - died.get(node, math.inf) > SLURM_GIVES_UP_S
            return Witness(
                node=node, message="DOWN: Not responding" if gone else "ALLOCATED", against=gone, gone=gone
            )

        return tuple(of(node) for node in asked.nodes)

    def _about_run(self, asked: qs.AskAboutRun) -> Sentence:
        left_s = self._run_ends - self._now
        return Sentence(
            running=True, left_s=left_s if left_s < math.inf else None, requeued=self._is_requeued
        )

    def _give_back(self, asked: qs.GiveBack) -> qs.SlurmAnswer:
        self._agents.end(asked.node)
        if not self._site.has(asked.node):
            self._site.give_back(asked.node)
        return qs.SlurmAnswer(said=qs.RequeueStatus.DONE, detail="by shrinking the job")

    def _test(self, nodes: tuple[str, ...], tests: tuple[str, ...], recall: float) -> Diagnosis:
        tested = [node for node in nodes if self._is_reached(node)]
        failed = {node for node in tested if self._damage.finds(node, recall)}
        results = tuple(
            TestResult(
                test=test,
                node=node,
                outcome=Outcome.FAIL if node in failed else Outcome.PASS,
                text="wrong result" if node in failed else "",
            )
            for node in tested
            for test in tests
        )
        suspects = tuple(node for node in tested if node in failed)
        reason = f"{', '.join(suspects)} failed" if suspects else f"all {len(tested)} nodes passed"
        return Diagnosis(results=results, suspects=suspects, reason=reason)

    def _borrow(self, number: int, asked: qs.BorrowNodes) -> None:
        core, jobs, lent = self._core, list[tuple[int, Any]](), dict[int, str]()
        for source in asked.sources:
            nodes = self._site.take(
                asked.missing - len(lent), reserved=bool(source.reservation), without=asked.exclude
            )
            for node in nodes:
                self._companions += 1
                jobs.append((900_000 + self._companions, source))
                lent[jobs[-1][0]] = node
        enough = len(lent) >= asked.missing
        refusals = () if enough else tuple((source, "no node is free") for source in asked.sources)

        def answer() -> None:
            if core is not self._core:
                for node in lent.values():
                    self._site.give_back(node)
                return
            self._lent |= lent
            for job, source in jobs:
                self._tell(core, number, qs.SubmittedCompanion(job_id=job, source=source), is_last=False)
            self._tell(core, number, qs.BorrowAnswer(nodes=lent, refusals=refusals))

        most_s = self.spec.policy.companions.wait_s
        self._timeline.after(self._draw(self.spec.cluster.lend) if enough else most_s, answer)

    def _end_companions(self, asked: qs.EndCompanions) -> str:
        for job in asked.jobs:
            node = self._lent.pop(job, None)
            if node is not None and not self._site.has(node):
                self._agents.end(node)
                self._site.give_back(node)
        return ""

    def _requeue(self, core: Core | None, number: int, asked: qs.BeginRequeue) -> None:
        if core is None or core is not self._core:
            return
        self._is_requeued, self._excluded = True, asked.exclude
        self._tell(core, number, qs.SlurmAnswer(said=qs.RequeueStatus.TAKEN), is_last=False)
        self._tell(core, number, qs.SlurmAnswer(said=qs.RequeueStatus.DONE))
        self._timeline.after(SLURM_S, partial(self._term, core))

    def _term(self, core: Core) -> None:
        if core is self._core:
            self._turn()
            self._do(core.on_leave("ordered to end by SIGTERM", self._clocks()))
            self._wake()

    def _warn(self, run: int) -> None:
        if self._core is not None and run == self._restart_count:
            self._turn()
            self._do(self._core.on_end_approaching("the end of this run is near (USR1)", self._clocks()))
            self._wake()

    def _kill(self, run: int) -> None:
        if self._code is None and run == self._restart_count:
            self._code, self._core = 137, None

    # -- what goes wrong -------------------------------------------------------------------------------

    def _strike(self, fault: SimulatedFault) -> None:
        """Have ``fault`` strike nodes of the cluster, or the job as it is now."""
        state, kind = self._state, fault.source.kind
        world, job = state.world, {*state.held, *state.lenders}
        nodes = self._damage.nodes_of(fault, world, state.spares)
        if not nodes:
            return
        if self._core is not None and job.intersection(nodes):
            self._turn()  # all is well until now
            self._are_beacons_read = kind in (FaultOf.NODE, FaultOf.SWITCH)
            if kind is FaultOf.NODE and self._has_beacons:
                self._know_kernel(nodes[0], len(world.slots))
        nodes = self._damage.do(fault, nodes, world)
        for node in nodes:
            if kind is FaultOf.NODE and node in job:
                self._lose_node(node)
            elif kind in ENDS_NODES and self._site.has(node):
                self._site.repair_idle(node)
            elif kind is FaultOf.GPU and node in state.spares:
                self._see_gpu(node, self._now)
        mine = tuple(node for node in nodes if world.placement.holds(node))
        if world.running and mine and self._core is not None:
            self._hit(fault, mine)
        elif self._core is None and mine:
            self._struck += 1

    def _know_kernel(self, node: str, nodes: int) -> None:
        """Have it known whether the kernel of ``node`` answers probes, as it always is in a real job."""
        for _ in range(2 + nodes // MAX_PROBED):
            if self._core is None or self._core.liveness.is_proved(node, self._clocks()):
                return
            self._turn()
            self._are_beacons_read = True

    def _plan_given(self) -> None:
        """Plan what comes when the job has trained for a given time."""
        gang = self._agents.gang
        for due, act in (
            (self._given[0].t if self._given else math.inf, lambda: self._strike(self._given.popleft())),
            (
                self._updates[0] if self._updates else math.inf,
                lambda: self._do_given(self._updates, self._update),
            ),
            (self._preemptions[0] if self._preemptions else math.inf, self._preempt),
        ):
            if due < math.inf:
                after_s = due - self._trained_s
                self._timeline.after(after_s, partial(self._if_trains, gang, due, act))

    def _if_trains(self, gang: Gang | None, due: float, act: Callable[[], None]) -> None:
        if gang is self._agents.gang and gang is not None and gang.moves and self._core is not None:
            if self._trained_s >= due - REST_S:
                self._turn()
                act()
            self._plan_given()

    def _do_given(self, times: deque[float], act: Callable[[], None]) -> None:
        times.popleft()
        act()

    def _preempt(self) -> None:
        self._preemptions.popleft()
        if self._core is not None:
            self._do(self._core.on_end_approaching("Slurm preempts the job", self._clocks()))
            self._wake()

    def _add_trained(self, s: float) -> None:
        self._trained_before_s += s

    @property
    def _trained_s(self) -> float:
        """For how long the job has trained in all."""
        gang = self._agents.gang
        since = gang.begun if gang is not None and gang.moves else self._now
        return self._trained_before_s + self._now - since

    def _lose_node(self, node: str) -> None:
        self._agents.die(node)
        self._watch_host()
        self._have_trouble()

    def _have_trouble(self) -> None:
        self._is_trouble = True
        self._wake()

    def _watch_host(self) -> None:
        """Have another node take over if the controller's is lost."""
        after_s = self.spec.policy.timings.takeover_s
        if self._is_lost_host() and self._core is not None:
            if self._host in self._site.down:
                self._core = None
            lost, since, run = self._host, self._clock.now, self._restart_count
            self._timeline.after(
                (after_s or SLURM_GIVES_UP_S) + PROBE_S, partial(self._take_over, lost, since, run)
            )

    def _take_over(self, lost: str, since: float, run: int) -> None:
        if (
            self._code is not None
            or self._restart_count != run
            or self._host != lost
            or not self._is_lost_host()
        ):
            return
        state = fold(self._journals[-1])
        voters = [
            node for node in state.world.slots if node not in self._site.down and not self._is_cut(node)
        ]
        if voters:
            self._start_controller(voters[0], taken_from=lost, silent_since=since)

    def _hit(self, fault: SimulatedFault, nodes: tuple[str, ...]) -> None:
        """Have ``fault`` strike these nodes of the job, whose ranks may run."""
        gang, source, node = self._agents.gang, fault.source, nodes[0]
        self._struck += 1
        if gang is None or gang.is_over:
            return
        detect_s = self._draw(source.detect)

        def then(act: Callable[[], None]) -> None:
            self._undetected += 1

            def act_if() -> None:
                self._undetected -= 1
                if gang is self._agents.gang:
                    act()

            self._timeline.after(detect_s, act_if)

        rank = next(iter(self._state.world.placement.ranks_of(node)), 0)
        match source.kind:
            case FaultOf.GPU:
                gang.hold_up(self._now)
                then(partial(self._see_gpu, node, self._now))
            case FaultOf.NETWORK:
                gang.hold_up(self._now)
                then(partial(self._see_links, node, self._now))
            case FaultOf.SWITCH:
                gang.hold_up(self._now)
                self._watch_host()
                self._have_trouble()
                lasts_s = self._damage.away[self._site.rack(node)] - self._now
                self._timeline.after(lasts_s, partial(self._heal, gang))
            case FaultOf.STORAGE:
                gang.hold_up(self._now)
                self._stands_still = True
                self._timeline.after(self._draw(source.lasts), partial(self._heal, gang))
            case FaultOf.AGENT:
                self._agents.end(node)
                then(partial(self._tell_end, node))
            case FaultOf.CRASH | FaultOf.EXCEPTION | FaultOf.OUT_OF_MEMORY:
                gang.hold_up(self._now)
                then(partial(self._agents.exit, node, self._exit(fault, rank)))
            case FaultOf.HANG:
                gang.hold_up(self._now)
                self._stands_still = True
                self._stand(fault, node)
            case FaultOf.SLOW:
                gang.slow_down(source.factor, self._now)
                self._stand(fault, node)
            case FaultOf.NAN | FaultOf.CORRUPTION:
                if self._agents.wrong is None:
                    wrong = WrongNumbers(gang.newest(self._now) + 1, self._now + detect_s)
                    self._agents.wrong = wrong
        self._have_trouble()

    def _exit(self, fault: SimulatedFault, rank: int) -> WorkerExit:
        source = fault.source
        if source.kind is FaultOf.EXCEPTION:
            error = WorkerError(
                type="RuntimeError", message="wrong shape", file="train.py", line=1 + fault.number % 997
            )
            return WorkerExit(rank=rank, code=1, error=error)
        if source.kind is FaultOf.OUT_OF_MEMORY:
            return WorkerExit(rank=rank, signal=9, oom="killed by the kernel")
        names = fault.at_node and self._chance.random() < source.named
        line = "CUDA error: uncorrectable ECC error encountered" if names else ""
        return WorkerExit(rank=rank, signal=6, tail=(line,) if line else ())

    def _see_gpu(self, node: str, since: float) -> None:
        alert = Alert(
            check="gpu.xid",
            text="XID 79, fell off the bus",
            outcome=Outcome.FAIL,
            suggestion=Suggestion.REBOOT,
            number=1,
            age_s=0.0,
        )
        self._agents.alert(node, (alert, since))
        self._have_trouble()

    def _see_links(self, node: str, since: float) -> None:
        age_s = 2 * self.spec.policy.detect.network_s + 10
        for number, before_s in ((1, age_s), (2, 0.0)):
            alert = Alert(
                check="network.port",
                text="the link went down",
                outcome=Outcome.FAIL,
                blame=Party.FABRIC,
                suggestion=Suggestion.RESET,
                number=number,
                age_s=before_s,
            )
            self._agents.alert(node, (alert, since))
        self._have_trouble()

    def _heal(self, gang: Gang) -> None:
        if gang is self._agents.gang:
            gang.go_on(self._now)
        self._have_trouble()

    def _tell_end(self, node: str) -> None:
        if self._core is not None:
            end = StepEnd(nodes=(node,), code=137, message="task 0: Killed", is_task=True)
            self._core.on_step_end(end, self._clocks())
            self._have_trouble()

    def _stand(self, fault: SimulatedFault, node: str) -> None:
        """Let the stacks of the rank on ``node`` differ from all others, if they are to place the fault."""
        if self._chance.random() >= fault.source.placed:
            return
        is_halted = fault.at_node and self._chance.random() < fault.source.named
        where = "wait@kernel.py" if fault.at_node else f"step{1 + fault.number % 997}@train.py"
        state = "T" if is_halted else "S"

        def show(rank: int, node: str) -> RankStacks:
            return doing(rank, node, where, "main@train.py", state=state)

        self._agents.stands[node] = show

    def _plan_repeats(self, gang: Gang) -> None:
        """Plan when what is wrong with nodes and the code strikes the generation that has just begun."""
        for after_s, fault, node in self._damage.repeats(self._state.world):
            self._timeline.after(after_s, partial(self._again, gang, fault, node))

    def _again(self, gang: Gang, fault: SimulatedFault, node: str) -> None:
        if gang is not self._agents.gang or gang.is_over or self._core is None:
            return
        if self._damage.is_there(fault, node, world := self._state.world):
            self._turn()
            self._hit(fault, (node or self._chance.choice(world.slots),))

    # -- times of a start ------------------------------------------------------------------------------

    def _start_s(self) -> float:
        """Return how long ranks take that run now until they have restored."""
        phases, spec = self.spec.phases, self.spec.checkpoints
        self._is_trouble = self._stands_still = False
        launches = [agent.launch for agent in self._agents.nodes.values() if agent.launch is not None]
        tiers = {s.tier if s.tier.is_shared else s.address for launch in launches for s in launch.sources}
        has_restore = any(launch.restore is not None for launch in launches)
        restore_s = 0.0
        if has_restore and (Tier.STORAGE in tiers or not tiers):
            restore_s = len(launches) * spec.node_gb / spec.storage_gb_s
        elif has_restore:
            restore_s = spec.node_gb / (spec.memory_gb_s if tiers == {""} else spec.peer_gb_s)
        start_s = self._draw(phases.start) + seconds(phases.start_per_1000_nodes) * len(launches) / 1000
        return start_s + restore_s

    # -- the owner -------------------------------------------------------------------------------------

    def _plan_owner(self, what: str, act: Callable[[], None]) -> None:
        nodes = self.spec.job.nodes
        often = rate(getattr(self.spec.owner, what)).of_job(nodes, nodes * self.spec.job.gpus_per_node)

        def happen() -> None:
            if self._core is not None and self._state.world.running:
                self._turn()
                act()
            self._plan_owner(what, act)

        if often:
            self._timeline.after(self._chance.expovariate(often), happen)

    def _cancel(self) -> None:
        if self._core is not None:
            self._term(self._core)

    def _update(self) -> None:
        if self._core is None:
            return
        brings = self._damage.brought_by(len(self._releases))
        name = f"{len(self._releases):012x}"
        self._releases[name] = brings
        wish = msg.UpdateJob(
            release=name,
            when=When.NOW,
            by=Requester(user="owner", uid=1000, host="login"),
            token=f"update {name}",
        )
        self._do(self._core.on_update_request(wish, self._clocks()))
        self._wake()

    def _run_release(self, name: str) -> None:
        """Have the ranks run ``name``: what other releases brought is gone."""
        for number in [number for number in self._damage.bugs if number <= 0]:
            del self._damage.bugs[number]
        self._damage.change_code()
        if (brings := self._releases.get(name)) is not None:
            self._damage.bugs[brings.number] = brings
