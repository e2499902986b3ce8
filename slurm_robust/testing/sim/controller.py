"""A controller of a simulated job: the real core, with hands that pretend."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from slurm_robust.analysis.logs.site_rules import load_log_rules
from slurm_robust.config.plan import RunPlan
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.turns import StorageHold
from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.table import begin, build
from slurm_robust.engine.units.updates import to_asker
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import StepEnd
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.journal import fold
from slurm_robust.model.probes import Answers, PortsProbed
from slurm_robust.model.release import Release
from slurm_robust.policy.leaving import Sentence
from slurm_robust.policy.quick_test import TESTS
from slurm_robust.slurm.companion import Lent, companion_name
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.step_output import step_end, task_ends
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.environment import Environment, release_of
from slurm_robust.testing.sim.node import SimAgent, SimNode
from slurm_robust.wire import messages as msg
from slurm_robust.wire.epochs import EpochRecord

SLOW_TICK_S = 1.0

UNSEEN: Final = (
    qs.LetGo,
    qs.EndStandbyTest,
    qs.SaveEvidence,
    qs.SaveSuspect,
    qs.SaveStacks,
    qs.SaveAlerts,
)
"""What is done without any trace in a simulated job."""

LONG_TESTS = ("gemm", "memory")
"""What nodes are tested for if the test is no quick one."""


class SimController:
    """One controller process, from the moment in which it has its epoch until it ends or dies."""

    def __init__(
        self,
        env: Environment,
        plan: RunPlan,
        host: str,
        journal: list[ev.AnyEvent],
        nodes: Mapping[str, SimNode],
        slurm: FakeSlurm,
        allocation: Allocation,
        *,
        say: Callable[[str], None],
        over: Callable[[SimController, int], None],
        start_agent: Callable[[RunPlan, str, str], None],
        requeue: Callable[[SimController, qs.BeginRequeue, Callable[[object], None]], None],
        asked: Callable[[qs.Question[Any]], None],
        wrote: Callable[[SimController], None],
        taken_from: str = "",
        why: str = "",
        silent_since: float = 0.0,
    ) -> None:
        """``journal`` is that of the job, and grows. ``over``: told the exit code; ``start_agent``: starts an
        agent while that run goes on; ``requeue``: has Slurm requeue the job; ``asked``: told questions;
        ``wrote``: told when one more event is in the journal.
        """
        self.env, self.plan, self.host, self.journal = env, plan, host, journal
        self.nodes, self.slurm = nodes, slurm
        self.is_alive = True
        self.stalled_until = 0.0
        self.asks = 0
        """Questions that are not answered yet."""
        self._say, self._over, self._start_agent = say, over, start_agent
        self._requeue, self._note, self._wrote = requeue, asked, wrote
        self._turns_at = -1.0
        self._turned = env.now
        self._inbox: list[tuple[str, bytes]] = []
        self._posted: list[Callable[[], None]] = []  # what threads have found out
        self._agents: dict[str, SimAgent] = {}  # by node and by id
        self._beacons: dict[str, tuple[SimNode, float]] = {}  # by agent: its node, and the newest beacon
        self._gone_noted = False
        self._starting = 0  # sruns and agents that are about to start
        self._hold = StorageHold(self._clocks)
        self.now = self._hold.now
        self._unwritten: list[ev.AnyEvent] = []  # storage did not take them, and they are not waited for
        self._held: deque[tuple[list[ev.AnyEvent], list[fx.Effect]]] = deque()
        self._is_fenced = False
        self.epoch = len(env.epochs) + 1
        self._hands: dict[type[fx.Effect], Callable[[Any], None]] = {
            fx.Send: self._send,
            fx.Ask: self._ask,
            fx.Say: lambda effect: self._say(effect.text),
            fx.Exit: lambda effect: self.end(effect.code),
            fx.HandOver: lambda effect: self.end(fx.HANDED_OVER),
        }
        self._answers: dict[type[qs.Question[Any]], Callable[[Any], object]] = {
            qs.FindSwitches: lambda asked: {
                node: one.name for one in slurm.topology() if not one.level for node in one.nodes
            },
            qs.FindKillWait: lambda asked: env.pace.kill_wait_s,
            qs.StartAgents: self._start_agents,
            qs.ProbePorts: self._probe_ports,
            qs.ProbeKernels: self._probe,
            qs.AskAboutNodes: lambda asked: self._steps.witnesses(asked.nodes),
            qs.AskAboutRun: self._about_run,
            qs.AskForDrains: lambda asked: self._steps.drains(asked.nodes),
            qs.FindCheckpoint: self._find_checkpoint,
            qs.Prune: self._prune,
            qs.ReadRelease: self._read_release,
            qs.GiveBack: self._give_back,
            qs.ShrinkJob: lambda asked: self._shrink(asked.nodes),
            qs.TestNodes: lambda asked: self._tested(asked.nodes, TESTS if asked.quick else LONG_TESTS),
            qs.ReplayTraining: lambda asked: Diagnosis(reason="the replay showed no difference"),
            qs.EndCompanions: self._end_companions,
            qs.SweepCompanions: self._sweep,
        }
        self._answers |= dict.fromkeys(UNSEEN, lambda asked: None)
        env.epochs.append(
            EpochRecord(
                epoch=self.epoch,
                host=host,
                addresses=(nodes[host].address,),
                port=7000 + self.epoch,
                pid=env.next_pid(),
                run_id=plan.run_id,
                node=host,
            )
        )
        env.mailboxes[self.epoch] = host, self._receive
        wall = self.now().wall
        if not journal:
            journal.append(plan.started(wall, "simulated"))
            if plan.release is not None:
                journal.append(ev.ReleaseTaken(t=wall, release=plan.release))
        if fold(journal).own_node != taken_from:
            taken_from = why = ""
        journal.append(
            ev.ControllerStarted(
                t=wall,
                epoch=self.epoch,
                host=host,
                pid=env.epochs[-1].pid,
                port=env.epochs[-1].port,
                node=host,
                known=len(journal),
                taken_from=taken_from,
                reason=why,
                silent_since=silent_since if taken_from else 0.0,
                start=plan.start,
            )
        )
        news, first = begin(journal, plan, wall)
        journal.extend(news)
        state = fold(journal)
        self._lent = Lent(allocation, state.lenders)
        self._steps = AgentSteps(slurm, allocation, (), Path("/nonexistent"), self._lent)
        rules, _ = load_log_rules(plan.config, Path(plan.cwd))
        self.core = Core(plan.config, state, build, first, self.now(), rules)
        self._do(self.core.on_tick(self.now()))
        self._plan_turn(env.pace.turn_s)
        env.timeline.after(SLOW_TICK_S, self._slow_tick)

    def _clocks(self) -> Now:
        mono = self.env.now + self.nodes[self.host].clock_s
        return Now(mono=mono, wall=self.env.timeline.clock.now + self.nodes[self.host].ahead_s)

    # -- its life ----------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill the controller: it dies without a word."""
        self.is_alive = False
        self.env.mailboxes.pop(self.epoch, None)

    def end(self, code: int) -> None:
        """End the controller with ``code``."""
        if self.is_alive:
            self.kill()
            self._over(self, code)

    def stall(self, seconds: float) -> None:
        """Stall the controller: it does nothing for so long, and does not know."""
        self.stalled_until = self.env.now + seconds

    def order_to_end(self, reason: str, code: ExitCode = ExitCode.TERMINATED) -> None:
        """Order the controller to end: SIGTERM or SIGINT has come."""
        self._post(lambda: self._do(self.core.on_leave(reason, self.now(), code)))

    def warn(self, reason: str) -> None:
        """Warn the controller: USR1 has come, the end of the run is near."""
        self._post(lambda: self._do(self.core.on_end_approaching(reason, self.now())))

    def skip(self) -> None:
        """Skip time that has leapt while all was well: the next turn is soon, and none was missed."""
        self.stalled_until = self._turned = self.env.now + 0.1  # agents have spoken by then

    def hurry(self) -> None:
        """Hurry the controller: a second SIGINT has come."""
        self._post(lambda: self._do(self.core.on_second_order(self.now())))

    def drill(self, drill: msg.Drill) -> msg.DrillReply:
        """Answer a drill, and do what it asks for."""
        reply, effects = self.core.on_drill(drill, self.now())
        self._do(effects)
        return reply

    def update(self, wish: msg.UpdateJob) -> None:
        """Take in that the owner wants another release."""
        self._post(lambda: self._do(self.core.on_update_request(wish, self.now())))

    def hear_step(
        self, nodes: tuple[str, ...], code: int, lines: tuple[str, ...], *, is_task: bool, age_s: float = 0.0
    ) -> None:
        """Hear that the srun of agents, or one of its tasks, has ended with this output.

        ``age_s``: how long ago an earlier controller heard it.
        """
        ends = task_ends(nodes, lines, lines) if is_task else (step_end(nodes, code, lines),)
        for end in ends:
            self._post(partial(self._on_step_end, structs.replace(end, age_s=age_s)))

    def hear_refusal(self, node: str, text: str, code: ExitCode = ExitCode.JOB_DIR) -> None:
        """Hear that the agent of ``node`` could not begin, and why; its srun ends.

        ``code``: of the job, if too many agents are refused.
        """
        self._post(lambda: self.core.on_refusal(node, text, code))
        self.hear_step((node,), 78, (f"srun: error: {node}: task 0: Exited with exit code 78",), is_task=True)

    def _on_step_end(self, end: StepEnd) -> None:
        self.core.on_step_end(end, self.now())

    def show_stacks(self, wish: msg.ShowStacks) -> msg.StacksShown:
        """Answer the owner, who wants to see what all ranks do."""
        shown, effects = self.core.on_stacks_request(wish, self.now())
        self._do(effects)
        return shown

    # -- its loop ----------------------------------------------------------------------------------

    def _receive(self, agent: str, data: bytes) -> None:
        self._inbox.append((agent, data))
        self._plan_turn(self.env.pace.rest_s)

    def _post(self, act: Callable[[], None]) -> None:
        """Have ``act`` done in the next turn, which is now."""
        self._posted.append(act)
        self._plan_turn(0.0)

    def _plan_turn(self, seconds: float) -> None:
        at = self.env.now + seconds
        if self._turns_at < self.env.now or at < self._turns_at:
            self._turns_at = at
            self.env.timeline.after(seconds, partial(self._wake, at))

    def _wake(self, at: float) -> None:
        if self.is_alive and at == self._turns_at:
            self.turn()

    def turn(self) -> None:
        """Take in all that has come, then decide."""
        env = self.env
        self._turns_at = -1.0
        if not self.is_alive:
            return
        if env.now < self.stalled_until:
            self._plan_turn(self.stalled_until - env.now + 0.001)
            return
        stalled, self._turned = env.now - self._turned, env.now
        if stalled > 1.0:
            self.core.on_stall(stalled, self.now())
        inbox, self._inbox = self._inbox, []
        for agent, data in inbox:
            self._take(agent, msg.decode_to_controller(data))
        posted, self._posted = self._posted, []
        for act in posted:
            if self.is_alive:
                act()
        if not self.is_alive:
            return
        if env.config.timings.verdict_s != 0:
            self.core.on_beacons(self._beacon_ages())
        self._follow_journal()
        self._do(self.core.on_tick(self.now()))
        if self.is_alive:
            self._plan_turn(self.env.pace.turn_s)

    def _take(self, agent: str, message: msg.ToController | msg.Foreign) -> None:
        now = self.now()
        match message:
            case msg.Heartbeat(node=node):
                found = self.nodes[node].agents.get(agent)
                if found is not None:
                    self._agents[node] = self._agents[agent] = found
                    if found.node.beacons is not False:
                        self._beacons.setdefault(agent, (found.node, self.env.now))
                self.core.on_heartbeat(message, now)
            case msg.Pulse():
                self.core.on_pulse(message, now)
            case msg.AgentAnswer():
                self.core.on_agent_answer(message, now)
            case msg.Foreign():
                self.core.on_foreign(message, now)
            case _:
                raise AssertionError(f"agents send no {type(message).__name__}")

    def _beacon_ages(self) -> dict[str, float]:
        """Return the seconds since the newest beacon of each agent: they come ten times a second, or not at
        all.
        """
        for agent, (node, _) in self._beacons.items():
            found = node.agents.get(agent)
            if found is None or node.beacons is False:
                continue
            runs = not found.is_stopped and self.env.network.passes(node.name, self.host)
            if runs or node.beacons:
                self._beacons[agent] = node, self.env.now
        return {agent: self.env.now - at for agent, (_, at) in self._beacons.items()}

    def _slow_tick(self) -> None:
        if not self.is_alive:
            return
        if self.env.now >= self.stalled_until and not self.env.storage.hangs:
            if self.env.epochs[-1].epoch > self.epoch:
                self.end(ExitCode.OTHER_CONTROLLER)
                return
            is_gone = not (self._starting or any(n.agents for n in self.nodes.values() if n.is_up))
            if is_gone and not self._gone_noted:
                self._gone_noted = True
                self._post(lambda: self._do(self.core.on_agents_gone(self.now())))
        self.env.timeline.after(SLOW_TICK_S, self._slow_tick)

    def _follow_journal(self) -> None:
        """Decide nothing while storage has not taken what was decided before, as in the real loop."""
        core = self.core
        behind = self.env.storage.hangs and (bool(self._held) or bool(self._unwritten))
        held_s = self._hold.follow(behind=behind, urgent=core.leaving is not None or core.ending is not None)
        core.hold(self._hold.holds)
        if held_s:
            core.on_hold_over(held_s, self.now())
        self._release()

    def _do(self, effects: list[fx.Effect]) -> None:
        """Write first: nothing is done about what the journal does not hold."""
        events = [effect.event for effect in effects if isinstance(effect, fx.Write)]
        acts: list[fx.Effect] = [effect for effect in effects if not isinstance(effect, fx.Write)]
        self._held.append((events, acts))
        self._release()
        if self._held and self._held[-1][1] is acts:  # an agent must learn that its controller lives
            for effect in acts:
                if isinstance(effect, fx.Send) and isinstance(effect.message, msg.Ack):
                    self._send(structs.replace(effect, message=structs.replace(effect.message, seq=0)))

    def _release(self) -> None:
        """Do what was decided, in that order, once the journal holds it, or cannot be waited for."""
        while self._held and self.is_alive and not self._is_fenced:
            events, acts = self._held[0]
            if events and self.env.storage.hangs and not self._hold.gave_up:
                return
            if events and self.env.epochs[-1].epoch > self.epoch:
                self._is_fenced = True  # the journal is another controller's
                return
            self._held.popleft()
            self._unwritten.extend(events)
            while self._unwritten and self.is_alive and not self.env.storage.hangs:
                self.journal.append(self._unwritten.pop(0))
                self._wrote(self)
            for effect in acts:
                if self.is_alive:
                    self._hands[type(effect)](effect)

    def _ask(self, effect: fx.Ask) -> None:
        """Have the core hear an answer after as long as Slurm, or the test, takes."""
        asked, number = effect.question, effect.number
        self._note(asked)
        if (reply := self.env.replies.get(type(asked))) is not None:
            reply(asked, partial(self.tell, number))
        elif isinstance(asked, qs.BeginRequeue):
            self._requeue(self, asked, partial(self.tell, number, is_last=False))
        elif isinstance(asked, qs.BorrowNodes):
            self._borrow(number, asked)
        elif isinstance(asked, qs.ProbeKernels):
            self._answer(number, asked, asked.for_s)
        elif isinstance(asked, qs.TestNodes | qs.ReplayTraining):
            self._answer(number, asked, self.env.chance.uniform(*self.env.pace.test_s))
        else:
            self._answer(number, asked, self.env.chance.uniform(*self.env.pace.slurm_s))

    def _answer(self, number: int, asked: qs.Question[Any], seconds: float) -> None:
        self.asks += 1
        if isinstance(asked, qs.StartAgents):
            self._gone_noted = False
            self._starting += 1

        def answer() -> None:
            if isinstance(asked, qs.FindCheckpoint) and self.env.storage.hangs:
                self.env.timeline.after(0.5, answer)
                return
            self.asks -= 1
            self._post(lambda: self._hear(number, partial(self._answers[type(asked)], asked)))

        self.env.timeline.after(seconds, answer)

    def _hear(self, number: int, answer: Callable[[], object]) -> None:
        try:
            found = answer()
        except (SlurmError, OSError) as error:
            found = qs.NoAnswer(reason=str(error))
        self._do(self.core.on_answer(number, found, self.now()))

    def tell(self, number: int, answer: object, *, is_last: bool = True) -> None:
        """Have the core hear an answer in the next turn."""
        self._post(lambda: self._do(self.core.on_answer(number, answer, self.now(), is_last=is_last)))

    # -- its hands ---------------------------------------------------------------------------------

    def _send(self, effect: fx.Send) -> None:
        if isinstance(effect.message, msg.UpdateReply):
            self.env.answers[effect.node.removeprefix(to_asker(""))] = effect.message
            return
        self.env.note_sent(effect.node, effect.message)
        agent = self._agents.get(effect.node)
        if agent is not None:
            data = msg.encode(effect.message)
            self.env.network.send(self.host, agent.node.name, data, agent.receive)

    def _start_agents(self, asked: qs.StartAgents) -> dict[str, str]:
        self._starting -= 1
        try:
            job = self.slurm.job(self.plan.job_id)
        except SlurmError as error:  # as srun says it
            text = f"srun: error: Unable to create step for job {self.plan.job_id}: {error}"
            self._on_step_end(step_end(asked.nodes, 1, [text]))
            return {}
        near = [n for n in asked.nodes if n in job.nodes or n in self.core.state.lenders]
        together = tuple(name for name in near if name not in asked.apart)
        for step in (together, *((name,) for name in near if name in asked.apart)):
            self._start_step(step if job.is_running else (), asked.image)
        return {}

    def _start_step(self, nodes: tuple[str, ...], image: str) -> None:
        """Start agents by one srun."""
        dead = [name for name in nodes if not self.nodes[name].is_up]
        ends_s = self.env.pace.srun_aborts_s if dead else math.inf
        for name in nodes:
            seconds = self.env.chance.uniform(*self.env.pace.agent_s)
            if seconds < ends_s:
                self._starting += 1
                self.env.timeline.after(seconds, partial(self._agent_starts, name, image))
        if ends_s < math.inf:
            self.env.timeline.after(ends_s, partial(self._abort_step, nodes, dead))

    def _agent_starts(self, name: str, image: str) -> None:
        self._starting -= 1
        self._start_agent(self.plan, name, image)

    def _abort_step(self, nodes: tuple[str, ...], dead: list[str]) -> None:
        """End an srun on all of its nodes, as it cannot start a task on some."""
        why = "Communication connection failure"
        lines = (
            *(f"srun: error: Task launch for StepId=7.0 failed on node {name}: {why}" for name in dead),
            f"srun: error: Application launch failed: {why}",
            "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.",
            f"slurmstepd-{nodes[0]}: error: *** STEP 7.0 ON {nodes[0]} CANCELLED AT 2026-11-28T22:08:04 ***",
            *(f"srun: error: {name}: task 0: Killed" for name in nodes if name not in dead),
        )
        if self.is_alive:
            self.hear_step(nodes, 1, lines, is_task=False)
        for name in nodes:
            self.nodes[name].end_agents()

    def _probe_ports(self, asked: qs.ProbePorts) -> PortsProbed:
        near = [n for n in asked.places if self._reaches(n)]
        taken = frozenset(n for n in near if self.nodes[n].agents)
        return PortsProbed(taken, frozenset(near) - taken)

    def _reaches(self, name: str) -> bool:
        return self.nodes[name].is_up and self.env.network.passes(self.host, name)

    def _probe(self, asked: qs.ProbeKernels) -> Answers:
        found = {name: 0.001 for name in asked.places if self.nodes[self.host].gets_answer(name)}
        return Answers(tcp=found, asked=frozenset(asked.places))

    def _about_run(self, asked: qs.AskAboutRun) -> Sentence:
        job = self.slurm.job(self.plan.job_id)
        return Sentence(
            running=job.is_running,
            left_s=None if job.end_time is None else max(0.0, job.end_time - self.slurm.cluster.clock.now),
            requeued=job.restart_count > self.plan.restart_count and not job.is_finished,
        )

    def _find_checkpoint(self, asked: qs.FindCheckpoint) -> dict[CheckpointId, Tier]:
        if self.env.storage.fails:
            raise OSError("storage fails")
        return self.env.storage.listed()

    def _prune(self, asked: qs.Prune) -> None:
        if not (self.env.storage.hangs or self.env.storage.fails):
            keep = self.plan.config.checkpoint.keep
            self.env.storage.prune(asked, keep)

    def _read_release(self, asked: qs.ReadRelease) -> Release:
        if self.env.storage.fails or asked.name not in self.env.releases:
            raise OSError(f"releases/{asked.name}/release.json: No such file or directory")
        return release_of(asked.name, self.env.releases[asked.name])

    def _give_back(self, asked: qs.GiveBack) -> qs.SlurmAnswer:
        self._shrink((asked.node,))
        self.nodes[asked.node].end_agents()  # Slurm ends all that the job has there
        return qs.SlurmAnswer(said=qs.RequeueStatus.DONE, detail="the epilog tests it")

    def _shrink(self, without: tuple[str, ...]) -> None:
        kept = [n for n in self.slurm.job(self.plan.job_id).nodes if n not in without]
        self.slurm.shrink(self.plan.job_id, kept)

    # -- tests of nodes, and nodes of others -------------------------------------------------------

    def _tested(self, nodes: tuple[str, ...], tests: tuple[str, ...]) -> Diagnosis:
        """Return what tests show of ``nodes``, by what is wrong with them."""
        results = tuple(
            TestResult(
                test=test,
                node=name,
                outcome=Outcome.FAIL if self.nodes[name].is_broken else Outcome.PASS,
                text="computes wrong numbers" if self.nodes[name].is_broken else "",
            )
            for name in nodes
            if self._reaches(name)
            for test in tests
        )
        suspects = tuple(name for name in nodes if self.nodes[name].is_broken)
        reason = f"{', '.join(suspects)} failed" if suspects else "all passed"
        return Diagnosis(results=results, suspects=suspects, reason=reason)

    def _borrow(self, number: int, asked: qs.BorrowNodes) -> None:
        """Submit companions to the fake Slurm; companions that do not start in time are cancelled."""
        submitted: list[int] = []
        source = asked.sources[0]

        def refuse(error: SlurmError) -> None:
            self.tell(number, qs.BorrowAnswer(refusals=((source, str(error)),)))

        def submit() -> None:
            if not self.is_alive:
                return
            name = companion_name(self.plan.job_id)
            try:
                for which in range(asked.missing):
                    block = self.nodes[asked.near[which]].block if asked.near[which:] else None
                    far = (n.name for n in self.nodes.values() if block is not None and n.block != block)
                    job = self.slurm.submit(
                        SubmitRequest(
                            command=("true",),
                            name=name,
                            nodes=1,
                            reservation=source.reservation,
                            excluded_nodes=(*asked.exclude, *far),
                        )
                    )
                    submitted.append(job)
                    self.tell(number, qs.SubmittedCompanion(job_id=job, source=source), is_last=False)
            except SlurmError as error:
                refuse(error)
                return
            self.env.timeline.after(self.env.pace.lend_s, answer)

        def answer() -> None:
            if not self.is_alive:
                return
            try:
                jobs = {job: self.slurm.job(job) for job in submitted}
                for job, found in jobs.items():
                    if not found.is_running:
                        self.slurm.cancel(job)
            except SlurmError as error:
                refuse(error)
                return
            lent = {job: found.nodes[0] for job, found in jobs.items() if found.is_running}
            for job, node in lent.items():
                self._lent.add(job, node)
            short = ((source, "no node is free"),) if len(lent) < asked.missing else ()
            self.tell(number, qs.BorrowAnswer(nodes=lent, refusals=short))

        self.env.after(self.env.pace.slurm_s, submit)

    def _sweep(self, asked: qs.SweepCompanions) -> tuple[int, ...]:
        """Cancel companions of earlier controllers that this one does not know."""
        name = companion_name(self.plan.job_id)
        mine = [job for job in self.slurm.cluster.jobs.values() if job.name == name and not job.is_finished]
        strays = tuple(job.job_id for job in mine if job.job_id not in asked.known)
        for job_id in strays:
            self.slurm.cancel(job_id)
        return strays

    def _end_companions(self, asked: qs.EndCompanions) -> str:
        for job in asked.jobs:
            try:
                self.slurm.cancel(job)
            except SlurmError:
                pass  # it ends with this job
            for node, lender in self.core.state.lenders.items():
                if lender == job:
                    self.nodes[node].end_agents()
        return ""
