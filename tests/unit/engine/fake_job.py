"""A job on paper: scripted agents around the real core, with a clock that only the test moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import structs

from slurm_robust.analysis.logs import RuleSet
from slurm_robust.config.job import JobConfig
from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.engine.stages.table import build
from slurm_robust.engine.transitions import ToGathering, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.exits import Witness, WorkerExit
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.journal import fold
from slurm_robust.model.probes import Answers, PortsProbed
from slurm_robust.model.stacks import RankStacks
from slurm_robust.policy.quick_test import TESTS
from slurm_robust.slurm.step_output import step_end, task_ends
from slurm_robust.testing.sim.training import waiting
from slurm_robust.wire.messages import (
    Flush,
    Heartbeat,
    Launch,
    NodesProbed,
    Pace,
    Phase,
    ProbeNodes,
    Progress,
    Save,
    Shutdown,
    StacksTaken,
    Stop,
    TakeStacks,
)
from slurm_robust.wire.protocol import PROTOCOL
from tests.builders.events import run_started

OWN_BUFFERS, PEER_BUFFERS = 3, 2
BUSY = (Phase.RUNNING, Phase.STOPPING)
BROKEN = "Input/output error"
NO_ANSWER = qs.NoAnswer(reason="Slurm does not answer")
GRACE_S = JobConfig().timings.stop_grace_s


def questions(effects: Iterable[fx.Effect]) -> list[qs.Question[Any]]:
    """What is asked in ``effects``."""
    return [effect.question for effect in effects if isinstance(effect, fx.Ask)]


class Job:
    """Core plus one obedient scripted agent per node; nodes can be made dead, mute or stubborn."""

    def __init__(
        self,
        slots: tuple[str, ...] = ("n1", "n2"),
        spares: tuple[str, ...] = ("n3",),
        config: JobConfig | None = None,
        history: tuple[ev.AnyEvent, ...] = (),
        first: Transition | None = None,
        reported: bool = True,
        memory: bool = False,
        shared: bool = False,
        hears_storage: bool = True,
        storage: Iterable[CheckpointId] = (),
        copies: Mapping[str, tuple[Copy, ...]] | None = None,
        log_rules: RuleSet | None = None,
        clock: tuple[float, float] = (1000.0, 1.7e9),
        beacons: bool = False,
    ) -> None:
        """``memory``: workers keep snapshots, agents copy them to peers; ``shared``: they have that part.

        ``storage`` and ``copies`` are there from the beginning (by an earlier run). ``beacons``: agents send
        some, so time should pass in small ticks.
        """
        self.beacons = beacons
        config = config or JobConfig()
        if not beacons:
            config = structs.replace(config, timings=structs.replace(config.timings, verdict_s=0.0))
        self.beacon_at: dict[str, float] = {}  # of each agent
        self.hidden: set[str] = set()  # nodes cut from the controller, whose kernels others reach
        self.deaf: set[str] = set()  # observers that do not answer
        self.alone: set[str] = set()  # observers that reach no node
        self._probes: list[tuple[float, Callable[[], None]]] = []  # what is answered when
        self.mono, self.wall = clock
        self.reported = reported
        self.journal: list[ev.AnyEvent] = list(history) or [
            run_started(t=self.wall, job_id=7, slots=len(slots), spares=len(spares)),
            ev.ControllerStarted(t=self.wall, epoch=1, host="n1", pid=1, port=1),
            ev.AllocationTaken(
                t=self.wall, restart_count=0, nodes=(*slots, *spares), slots=slots, spares=spares
            ),
        ]
        self.heartbeats: dict[str, Heartbeat] = {}
        self.dead: set[str] = set()
        self.cut: set[str] = set()  # nodes that the controller does not hear, and that do not hear it
        self.stalled: set[str] = set()  # of those, nodes whose agent is stopped: the kernel answers
        self.agentless: set[str] = set()  # nodes whose agent has ended, while their kernels answer
        self.stubborn: set[str] = set()  # workers end by no signal, and nothing moves at them
        self.slow: dict[str, float] = {}  # workers end so many seconds after the order, and move until then
        self.freeing: set[str] = set()  # its GPUs are not free yet
        self._dying: dict[str, float] = {}  # since when the order to stop is there
        self._pending: dict[str, Launch] = {}  # until the workers before have ended
        self.mute: set[str] = set()  # sends no stacks
        self.said: list[str] = []
        self.sent: list[tuple[str, object]] = []
        self.started: list[tuple[str, ...]] = []
        self.asked: list[tuple[str, ...]] = []  # about which nodes Slurm was asked
        self.slurm_answers = True
        self.newest: dict[type, int] = {}  # the number of the newest question of each kind
        self.test_numbers: dict[int, int] = {}  # of the question for each test of a standby
        self.run_questions = 0  # whether Slurm ends the run
        self.drained: dict[str, str] = {}  # nodes that others have drained
        self.given_up: set[str] = set()  # nodes that Slurm calls down although they live
        self.requeued: list[tuple[str, ...]] = []
        self.begun_requeues: list[qs.BeginRequeue] = []
        self.given_back: list[str] = []
        self.let_go: list[str] = []  # dead nodes whose srun was killed
        self.slurm_returns = qs.SlurmAnswer(said=qs.RequeueStatus.DONE, detail="the epilog tests it")
        self.pruned = 0
        self.ages = False  # whether training that makes no step is seen to make none
        self.tested: list[qs.TestNodes] = []
        passed = TestResult(test="gemm", node=slots[0], outcome=Outcome.PASS)
        self.diagnosis: Diagnosis | None = Diagnosis(results=(passed,), reason="all passed")  # of tests
        self.quick: dict[str, Outcome | None] = {}
        self.quick_text = "x"  # of a failure
        self.standby_tests: list[qs.TestNodes] = []
        self.ended_tests: list[int] = []
        self.answers_tests = True  # those of standbys, at once
        self.saved_stacks: list[qs.SaveStacks] = []
        self.saved_alerts: list[qs.SaveAlerts] = []
        self.stacks: dict[int, RankStacks] = {}  # of ranks that do not just wait for the others
        self.lendable: tuple[str, ...] = ()  # nodes that companions get at once
        self.lends = True  # at once; else the test hands over what is in unlent
        self.unlent: list[Callable[[], None]] = []
        self.borrowed: list[qs.BorrowNodes] = []
        self.ended: list[int] = []  # companions
        self.code: int | None = None
        self.memory, self.shared, self.hears_storage = memory, shared, hears_storage
        self.checkpoints: dict[int, int] = {}  # newest step on storage of each generation
        self.storage = set(storage)  # what else is there
        self.copies = dict(copies or {})
        self.storage_broken = False
        self.orders: dict[str, Launch] = {}
        self.flush_step, self.stride = -1, 1
        self.saves: dict[str, Save] = {}
        self.restores = True  # whether workers get so far that restore() returns
        self.writes = True  # whether agents can carry out a Save
        self.shows = True  # whether the controller then sees it on storage
        self.names_order = True  # whether they say for which order and ranks, as those of this release do
        self.refuses: set[tuple[str, CheckpointId]] = set()  # agents that say they cannot write that one
        self.kept: dict[str, bool] = {}
        self.slurm_says = (
            qs.SlurmAnswer(said=qs.RequeueStatus.TAKEN),
            qs.SlurmAnswer(said=qs.RequeueStatus.DONE),
        )
        self.core = Core(
            config,
            fold(self.journal),
            build,
            first or ToGathering(start=True),
            self.now(),
            log_rules,
        )
        self.act(self.core.on_tick(self.now()))

    def now(self) -> Now:
        return Now(mono=self.mono, wall=self.wall)

    # -- the loop's part -----------------------------------------------------------------------------

    def act(self, effects: list[fx.Effect]) -> None:
        for effect in effects:
            match effect:
                case fx.Write(event=event):
                    self.journal.append(ev.decode_event(ev.encode_event(event)))
                case fx.Send(node=node, message=message):
                    self.sent.append((node, message))
                    if node not in self.dead and node not in self.cut:
                        self.obey(node, message)
                case fx.Ask(number=number, question=question):
                    self.newest[type(question)] = number
                    self.answer(number, question)
                case fx.Say(text=text):
                    self.said.append(text)
                case fx.Exit(code=code):
                    self.code = code

    def hear(self, number: int, answer: object, *, is_last: bool = True) -> None:
        """The core hears an answer."""
        self.act(self.core.on_answer(number, answer, self.now(), is_last=is_last))

    def reply(self, kind: type[qs.Question[Any]], answer: object) -> None:
        """The core hears an answer to the newest question of a kind, and may hear another one."""
        if kind in self.newest:
            self.hear(self.newest[kind], answer, is_last=False)

    def answer(self, number: int, question: qs.Question[Any]) -> None:
        """What Slurm, storage, kernels and tests say."""
        match question:
            case qs.FindSwitches():
                self.reply(qs.FindSwitches, {})
            case qs.FindKillWait():
                self.reply(qs.FindKillWait, None)
            case qs.StartAgents(nodes=nodes, apart=apart):
                self.started.append(nodes)
                self.start_agents(nodes, apart)
                self.hear(number, {})
            case qs.AskAboutNodes(nodes=nodes):
                self.asked.append(nodes)
                found = tuple(self.witness(node) for node in nodes)
                self.hear(number, found if self.slurm_answers else NO_ANSWER)
            case qs.AskAboutRun():
                self.run_questions += 1
            case qs.AskForDrains(nodes=nodes):
                if self.slurm_answers:
                    self.hear(number, {n: why for n, why in self.drained.items() if n in nodes})
            case qs.ProbePorts(places=places):
                taken = {n for n in places if n in self.heartbeats and n not in self.cut - self.stalled}
                self.hear(number, PortsProbed(frozenset(taken), frozenset(self.agentless & places.keys())))
            case qs.ProbeKernels(places=places, for_s=for_s):
                self.later(for_s, partial(self.answer_probe, number, tuple(places)))
            case qs.FindCheckpoint():
                if self.hears_storage:
                    self.tell_storage()
            case qs.BeginRequeue(exclude=exclude):
                self.requeued.append(exclude)
                self.begun_requeues.append(question)
                for answer in self.slurm_says:
                    self.hear(number, answer, is_last=False)
            case qs.GiveBack(node=node):
                self.given_back.append(node)
                self.hear(number, self.slurm_returns)
            case qs.LetGo(node=node):
                self.let_go.append(node)
            case qs.Prune():
                self.pruned += 1
            case qs.TestNodes(standby=test, nodes=(node,)) if test:
                self.standby_tests.append(question)
                self.test_numbers[test] = number
                if self.answers_tests:
                    self.answer_test(test, node)
            case qs.TestNodes():
                self.tested.append(question)
                if self.diagnosis is not None:
                    found = self.quick_answer(question.nodes) if question.quick else self.diagnosis
                    self.hear(number, found)
            case qs.EndStandbyTest(number=ended):
                self.ended_tests.append(ended)
            case qs.ReplayTraining():
                if self.diagnosis is not None:
                    self.hear(number, self.diagnosis)
            case qs.SaveStacks():
                self.saved_stacks.append(question)
            case qs.SaveAlerts():
                self.saved_alerts.append(question)
            case qs.BorrowNodes():
                self.borrowed.append(question)
                self.lend(number, question)
            case qs.EndCompanions(jobs=jobs):
                self.ended.extend(jobs)

    def start_agents(self, nodes: tuple[str, ...], apart: tuple[str, ...]) -> None:
        """They join at once."""
        for node in nodes:
            self.join(node)

    def quick_answer(self, nodes: Iterable[str]) -> Diagnosis:
        """Of the quick test: each node passes, unless ``quick`` has another outcome, None for no answer."""
        found = {node: self.quick.get(node, Outcome.PASS) for node in nodes}
        said = {outcome: "" if outcome is Outcome.PASS else self.quick_text for outcome in Outcome}
        return Diagnosis(
            results=tuple(
                TestResult(test=test, node=node, outcome=outcome, text=said[outcome])
                for node, outcome in found.items()
                if outcome is not None
                for test in TESTS
            )
        )

    def answer_test(self, number: int, node: str) -> None:
        """The quick test of a standby is over."""
        self.hear(self.test_numbers[number], self.quick_answer((node,)))

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do ``act`` when so much time has passed."""
        self._probes.append((self.mono + seconds, act))

    def answers(self, node: str) -> bool:
        """Whether the kernel of ``node`` answers the controller."""
        return node in self.heartbeats and node not in self.cut - self.stalled

    def answer_probe(self, number: int, nodes: tuple[str, ...]) -> None:
        """The controller's own probes are over."""
        answering = {node: 0.001 for node in nodes if self.answers(node)}
        found = Answers(tcp=answering, asked=frozenset(nodes))
        self.hear(number, found)

    def observe(self, observer: str, order: ProbeNodes) -> None:
        """The probes of an agent are over."""
        if observer in self.dead or observer in self.cut or observer in self.deaf:
            return
        lonely = observer in self.alone
        answering = tuple(n for n in order.places if (self.answers(n) or n in self.hidden) and not lonely)
        asked = tuple(order.places)
        found = NodesProbed(node=observer, number=order.number, answering=answering, asked=asked)
        self.core.on_agent_answer(found, self.now())
        self.tick()

    def shine(self) -> None:
        """Beacons come, and probes are over."""
        for node, heartbeat in self.heartbeats.items():
            if node not in self.dead and node not in self.cut:
                self.beacon_at[heartbeat.agent] = self.mono
        self.core.on_beacons({agent: self.mono - at for agent, at in self.beacon_at.items()})
        due = [act for at, act in self._probes if at <= self.mono]
        self._probes = [(at, act) for at, act in self._probes if at > self.mono]
        for act in due:
            act()

    def tell_storage(self) -> None:
        """Storage answers the newest question with what it holds."""
        found = {*self.storage, *(CheckpointId(step=s, generation=g) for g, s in self.checkpoints.items())}
        complete = (
            qs.NoAnswer(reason="it is broken") if self.storage_broken else dict.fromkeys(found, Tier.STORAGE)
        )
        self.reply(qs.FindCheckpoint, complete)

    def lend(self, number: int, order: qs.BorrowNodes) -> None:
        """Companions start on the nodes that can be lent."""
        nodes = [n for n in self.lendable if n not in order.exclude][: order.missing]
        self.lendable = tuple(n for n in self.lendable if n not in nodes)
        jobs = {100 + int(node[1:]): node for node in nodes}
        short = ((order.sources[-1], "0 of 1 node free"),) if len(nodes) < order.missing else ()
        for job in jobs:
            self.hear(number, qs.SubmittedCompanion(job_id=job, source=order.sources[0]), is_last=False)
        answer = qs.BorrowAnswer(nodes=jobs, refusals=short)

        def lend() -> None:
            self.hear(number, answer)

        if self.lends:
            lend()
        else:
            self.unlent.append(lend)

    def witness(self, node: str) -> Witness:
        """Slurm knows which nodes are dead."""
        gone = node in self.dead or node in self.given_up
        message = "DOWN+NOT_RESPONDING (Not responding)" if gone else "ALLOCATED"
        return Witness(node=node, message=message, against=gone, gone=gone)

    def step_ends(self, *nodes: str, message: str, code: int = 1) -> None:
        """The srun of the agents on ``nodes`` ends, with the output ``message``."""
        self.core.on_step_end(step_end(nodes, code, message.splitlines()), self.now())

    def step_dies(self, *nodes: str, message: str, heard_s: float = 1.0, apart_s: float = 0.0) -> None:
        """The srun of the agents on ``nodes`` ends, and these with it, one ``apart_s`` after the other.

        ``heard_s``: for how long the first lives on. What they keep in memory is there for the next agents.
        """
        self.step_ends(*nodes, message=message)
        for number, node in enumerate(nodes):
            self.pass_time(apart_s if number else heard_s)
            self.copies[node] = self.heartbeats.pop(node).copies

    def task_ends(self, node: str, message: str) -> None:
        """The agent on ``node`` ends, and srun says so with ``message``."""
        for end in task_ends((node,), [message], [message]):
            self.core.on_step_end(end, self.now())

    def agent_dies(self, *nodes: str) -> None:
        """The agents are killed, and no srun is left that would say so."""
        for node in nodes:
            self.copies[node] = self.heartbeats.pop(node).copies
            self.agentless.add(node)

    # -- the agents' part ----------------------------------------------------------------------------

    def join(self, node: str, agent: str = "", **changes: object) -> None:
        if node not in self.dead:
            self.agentless.discard(node)
            self.heartbeats[node] = Heartbeat(
                node=node, agent=agent or f"agent of {node}", seq=0, epoch=1, phase=Phase.IDLE,
                address=f"10.0.0.{node[1:]}", rendezvous_port=4000, ready=True, data_port=5000,
                probe_port=6000, copies=self.copies.get(node, ()), protocol=PROTOCOL,
            )  # fmt: skip
            self.change(node, **changes)

    def change(self, node: str, **changes: object) -> None:
        """The agent of ``node`` has something new to tell, and the core concludes from it alone."""
        if self.tell(node, **changes):
            self.tick()

    def tell(self, node: str, **changes: object) -> bool:
        """A heartbeat of ``node``; False if nobody hears it. Nothing is concluded before :meth:`tick`."""
        old = self.heartbeats[node]
        self.heartbeats[node] = heartbeat = structs.replace(old, seq=old.seq + 1, **changes)
        if node in self.dead or node in self.cut:
            return False
        self.core.on_heartbeat(heartbeat, self.now())
        return True

    def tick(self) -> None:
        """The core takes in what has changed."""
        self.act(self.core.on_tick(self.now()))

    def obey(self, node: str, message: object) -> None:
        heartbeat = self.heartbeats.get(node)
        if heartbeat is None:
            return
        match message:
            case Launch() if node in self._dying:
                self._pending[node] = message
            case Launch(generation=generation, ranks=ranks) if generation > heartbeat.generation:
                self.orders[node] = message
                progress = tuple(
                    Progress(rank=r, step=-1, reported=False, age_s=0.0, restored=self.restores)
                    for r in ranks
                )
                phase = Phase.FREEING if node in self.freeing else Phase.RUNNING
                self.change(node, generation=generation, phase=phase, progress=progress, exits=())
            case Stop() if node in (*self.stubborn, *self.slow) and heartbeat.phase in BUSY:
                self._dying.setdefault(node, self.mono)
                self.change(node, phase=Phase.STOPPING)
            case Stop(generation=generation) if generation < heartbeat.generation:
                pass  # of workers that are long gone
            case Stop(generation=generation) if heartbeat.phase is Phase.RUNNING:
                killed = tuple(WorkerExit(rank=p.rank, signal=15) for p in heartbeat.progress)
                ended = {e.rank for e in heartbeat.exits}
                self.change(
                    node,
                    phase=Phase.ENDED,
                    exits=(*heartbeat.exits, *(e for e in killed if e.rank not in ended)),
                )
            case Stop(generation=generation) if heartbeat.phase is Phase.FREEING:  # no worker is there yet
                generation = max(generation, heartbeat.generation)
                self.change(node, phase=Phase.IDLE, generation=generation, progress=())
            case Stop(generation=generation) if heartbeat.phase is not Phase.RUNNING:
                self.change(node, generation=max(generation, heartbeat.generation))
            case Flush(step=step):
                self.flush_step = step
            case Pace(stride=stride):
                self.stride = stride
            case ProbeNodes(for_s=for_s):
                self.later(for_s, partial(self.observe, node, message))
            case TakeStacks(number=number) if node not in self.mute:
                taken = tuple(self.stacks.get(p.rank, waiting(p.rank, node)) for p in heartbeat.progress)
                answer = StacksTaken(node=node, generation=heartbeat.generation, number=number, stacks=taken)
                self.core.on_agent_answer(answer, self.now())
                self.act(self.core.on_tick(self.now()))
            case Save(checkpoint=checkpoint):
                self.saves[node] = message
                begun = message.begun if self.names_order else 0.0
                if (node, checkpoint) in self.refuses:
                    why = f"{checkpoint}: No space left on device"
                    self.change(node, saved=None, unsaved=why, save_begun=begun)
                elif self.writes:
                    if self.shows:
                        self.storage.add(checkpoint)
                    ranks = message.ranks if self.names_order else ()
                    self.change(node, saved=checkpoint, saved_ranks=ranks, unsaved="", save_begun=begun)
            case Shutdown(keep_copies=keep):
                self.kept[node] = keep
                self.heartbeats.pop(node)
                if not self.heartbeats:
                    self.core.starts.on_all_ended()

    # -- what happens in the world -----------------------------------------------------------------------

    def pass_time(self, seconds: float, *, tick: float = 0.0, wall_jump: float = 0.0) -> None:
        """Time passes; living agents heartbeat every ``tick``, which one turn of the loop takes in."""
        tick = tick or (0.1 if self.beacons else 0.5)
        self.wall += wall_jump
        end = self.mono + seconds
        while self.mono < end - 1e-9 and self.code is None:
            step = min(tick, end - self.mono)
            self.mono += step
            self.wall += step
            if self.beacons:
                self.shine()
            for node in list(self.heartbeats):
                if node in self.heartbeats and node in self._dying:
                    self.die(node)
                if node in self.heartbeats:  # else it was told to end meanwhile
                    self.tell(node, progress=self.older(node, step))
            self.tick()

    def die(self, node: str) -> None:
        """Killed workers of ``node`` are still there, or end now."""
        dying_s = self.mono - self._dying[node]
        if dying_s < self.slow.get(node, math.inf if node in self.stubborn else 0.0):
            self.change(node, still_s=0.0 if node in self.slow else max(0.0, dying_s - GRACE_S))
            return
        del self._dying[node]
        heartbeat = self.heartbeats[node]
        ended = {e.rank for e in heartbeat.exits}
        killed = tuple(WorkerExit(rank=p.rank, signal=9) for p in heartbeat.progress if p.rank not in ended)
        self.change(node, phase=Phase.ENDED, exits=(*heartbeat.exits, *killed), still_s=None)
        if node in self._pending:
            self.obey(node, self._pending.pop(node))

    def older(self, node: str, seconds: float) -> tuple[Progress, ...]:
        """The progress on ``node`` after ``seconds`` without a step."""
        seconds = seconds if self.ages else 0.0
        return tuple(structs.replace(p, age_s=p.age_s + seconds) for p in self.heartbeats[node].progress)

    def train_to(self, step: int) -> None:
        """All ranks complete steps up to ``step``."""
        for node in self.core.world.slots:
            if node in self.dead:
                continue
            progress = tuple(
                structs.replace(p, step=step, reported=self.reported, age_s=0.0)
                for p in self.heartbeats[node].progress
            )
            self.tell(node, progress=progress)
        self.tick()
        if self.memory:
            self.snapshot(step)

    def snapshot(self, step: int, peers: bool = True) -> None:
        """All ranks keep their state of ``step``, and agents copy it to their peers."""
        generation = self.core.world.generation
        for node in [n for n in self.core.world.slots if n not in self.dead]:
            order = self.orders[node]
            self.hold(node, order.ranks, generation, step, Tier.MEMORY)
            if self.shared:
                self.hold(node, (SHARED,), generation, step, Tier.MEMORY)
            for peer in order.peers if peers and step % self.stride == 0 else ():
                if peer.node not in self.dead:
                    self.hold(peer.node, (peer.rank,), generation, step, Tier.PEER)

    def hold(self, node: str, ranks: tuple[int, ...], generation: int, step: int, tier: Tier) -> None:
        """``node`` has copies from now on; the oldest of as many buffers as there are makes room."""
        copies = list(self.heartbeats[node].copies)
        for rank in ranks:
            mine = [c for c in copies if (c.rank, c.tier) == (rank, tier)]
            if len(mine) >= (PEER_BUFFERS if tier is Tier.PEER else OWN_BUFFERS):
                copies.remove(mine[0])
            copies.append(Copy(rank=rank, generation=generation, step=step, tier=tier))
        self.change(node, copies=tuple(copies))

    def kill_rank(self, rank: int, **exit: object) -> None:
        node = self.core.world.placement.node_of(rank)
        fields: dict[str, object] = {"signal": 9, **exit}
        heartbeat = self.heartbeats[node]
        self.change(node, exits=(*heartbeat.exits, WorkerExit(rank=rank, **fields)), phase=Phase.ENDED)  # type: ignore[arg-type]

    def finish(self) -> None:
        for node in self.core.world.slots:
            exits = tuple(WorkerExit(rank=p.rank, code=0) for p in self.heartbeats[node].progress)
            self.change(node, exits=exits, phase=Phase.ENDED)

    def power_cut(self, node: str) -> None:
        self.dead.add(node)
        self.heartbeats.pop(node, None)

    # -- what the test asks ------------------------------------------------------------------------------

    @property
    def stage(self) -> str:
        return type(self.core.stage).__name__

    def events(self, kind: type) -> list:
        return [e for e in self.journal if isinstance(e, kind)]

    def until(self, condition: Callable[[], bool], limit: float = 60.0) -> None:
        start = self.mono
        while not condition():
            assert self.code is None, f"the job ended with {self.code} before; said {self.said}"
            assert self.mono - start < limit, f"not within {limit} s; stage {self.stage}, said {self.said}"
            self.pass_time(0.1 if self.beacons else 0.5)
