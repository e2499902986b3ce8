"""One Slurm job in memory, from its first launch to its end, by a clock that jumps.

The deciding halves are the real ones: the controller's :class:`~slurm_robust.engine.core.Core`, which begins
from its journal by :func:`~slurm_robust.engine.stages.table.begin`, and each agent's
:class:`~slurm_robust.agent.state.AgentState`, heartbeats and link. They talk by the real messages, as bytes,
through a network that delays them. Slurm is :class:`~slurm_robust.testing.fake_slurm.FakeSlurm`. Worker
processes, memory, storage and everything else outside are pretended.

.. code-block:: python

    sim = Sim(nodes=4, spares=1, seed=7)
    sim.run_until(lambda: sim.step >= 10, within_s=300)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.step >= 20, within_s=300)
    assert "n2" in sim.state.evicted
    assert sim.run_to_end() == 0

Nothing sleeps, no thread runs, and the same seed gives the same life, event by event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

from slurm_robust.agent import stimuli
from slurm_robust.agent.loop import TERM_GRACE_S
from slurm_robust.config.job import JobConfig
from slurm_robust.config.plan import RunPlan
from slurm_robust.engine import questions as qs
from slurm_robust.engine.effects import HANDED_OVER
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.findings import Alert
from slurm_robust.model.job import CommandKind
from slurm_robust.model.release import Requester, When
from slurm_robust.model.stacks import RankStacks
from slurm_robust.model.state import JobState, apply
from slurm_robust.policy import takeover
from slurm_robust.slurm.errors import RequeueDisabled, SlurmError
from slurm_robust.slurm.need import Need, Size
from slurm_robust.slurm.records import Allocation, Switch
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.slurm.requeue_plan import RequeueRequest, wanted_of
from slurm_robust.testing.clock import FakeClock
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.controller import SimController
from slurm_robust.testing.sim.environment import (
    Environment,
    Reply,
    SimulatedPace,
    SimulatedRelease,
    release_of,
)
from slurm_robust.testing.sim.node import SimNode
from slurm_robust.testing.sim.training import Rank, SimulatedTraining, stuck_in
from slurm_robust.wire.messages import (
    Drill,
    DrillReply,
    FromController,
    Phase,
    TakeStacks,
    UpdateJob,
    UpdateReply,
)

E = TypeVar("E", bound=ev.AnyEvent)

BEGUN = 1.7e9
"""When every simulated world begins, in seconds since 1970."""

WATCH_S = 1.0
"""How often the supervisor, voters and Slurm look whether there is something to do."""

SLURMCTLD = "slurmctld"
"""The node of Slurm's own controller, which no job gets."""

REST_S = 2.5
"""Seconds between two leaps: all agents are heard once more."""

LEAST_STEPS = 4
"""How many steps a leap passes over at least."""

RESTART_S = 1.0
"""Until the supervisor starts a controller that has died again."""


class NotWithin(AssertionError):
    """What a test waits for has not come in time; the message says how far the job is."""


NO_IMAGE = "srun: error: {node}: task 0: Exited with exit code 1"


class Sim:
    """A job and its cluster. Nodes are ``n1``, ``n2``, …; the first controller runs on ``n1``.

    A test lets time pass by :meth:`run`, :meth:`run_until` and :meth:`run_to_end`, breaks things by the
    methods in between, and looks at :attr:`state`, :attr:`journal`, :attr:`said` and :attr:`code`.
    """

    def __init__(
        self,
        nodes: int = 2,
        spares: int = 0,
        *,
        seed: int = 0,
        ranks_per_node: int = 1,
        gpus_per_node: int = 0,
        steps: int = 60,
        others: int = 0,
        config: JobConfig | None = None,
        pace: SimulatedPace | None = None,
        time_limit_s: float | None = None,
        leap_s: float = 0.0,
        required: tuple[str, ...] = (),
        shared: bool = False,
        racks: Collection[Collection[str]] = (),
        segment: int = 0,
        batch_host: str = "",
        replies: Mapping[type[qs.Question[Any]], Reply] | None = None,
        release: str = "",
        history: Iterable[ev.AnyEvent] = (),
    ) -> None:
        """``nodes`` hold ranks, ``spares`` stand by, and ``others`` are free for a next run.

        ``steps``: the number of steps until training ends. ``leap_s``: while all is well time jumps by so
        much, and steps are not played one by one; for jobs of days. ``required``: nodes that the owner asks
        for by name. ``shared``: checkpoints have a part that all ranks share. ``racks``: the nodes of each
        rack, which is a block of Slurm's and an NVLink clique; ``segment``: nodes of each segment that the
        owner asks for. ``batch_host``: where the
        batch script runs, if not on the first node of the job. ``replies``: what the test answers to
        questions of a kind, from the first one on, see :meth:`answer`. ``release``: the first release of the
        job, "" for a job without. ``history``: the journal so far.
        """
        self.clock = FakeClock(BEGUN)
        self.config = config or JobConfig()
        self.env = Environment(self.config, pace or SimulatedPace(), seed, self.clock)
        self.env.replies.update(replies or {})
        self.network, self.storage = self.env.network, self.env.storage
        self.training = SimulatedTraining(
            self.env.timeline,
            self.env.chance,
            steps=steps,
            step_s=self.env.pace.step_s,
            reaches=self._train_together,
            on_step=self._on_step,
            on_done=self._on_done,
        )
        self.nodes: dict[str, SimNode] = {}
        names = [f"n{number + 1}" for number in range(nodes + spares + others)]
        for number, name in enumerate(names):
            self.nodes[name] = SimNode(self.env, name, number, self.training, self.nodes)
        # Slurm waits for the end of the batch script and of all steps, which have KillWait.
        completing_s = self.env.pace.kill_wait_s + 2.0
        self.cluster = FakeCluster(names, clock=self.clock, completing_s=completing_s)
        self.slurm = FakeSlurm(self.cluster)
        self._rack(racks)
        self.journal: list[ev.AnyEvent] = list(history)
        """All events of the job, as its journal holds them."""
        self.said: list[str] = []
        """The job's own output, line by line."""
        self.asked: list[qs.Question[Any]] = []
        """All that controllers have asked the world outside."""
        self.code: int | None = None
        """The exit code of the job; None while it has not ended, or is queued again."""
        self.runs = 0
        self.refuses_requeue = False
        """Slurm refuses to requeue the job (``--no-requeue``)."""
        self.no_agent: dict[str, str] = {}
        self.bad_images: set[str] = set()
        """In which no agent begins."""
        """Nodes on which srun starts no agent, and the line with which its task there ends, "" for none."""
        self.takes_snapshots = True
        """Ranks keep their state of each step in memory, as far as ``checkpoint.memory`` wants it."""
        self.refusals: dict[str, tuple[str, ExitCode]] = {}
        """Nodes on which an agent refuses to begin, why, and the job's exit code if too many do."""
        self.refused: set[str] = set()
        """Nodes on which an agent has refused to begin since storage failed: they look broken."""
        self.deaths: list[int] = []
        """How many events each controller writes before it dies, in turn; it does not act on the last one."""
        self._given: list[Callable[[SimController], None]] = []  # signals to the batch script of this run
        self._fabric: set[str] = set()  # nodes that the collectives of others do not reach
        self._slots, self._spares = nodes, spares
        self._ranks_per_node, self._gpus_per_node = ranks_per_node, gpus_per_node
        self._leap_s, self._shared, self._batch_host = leap_s, shared, batch_host
        self._release = release
        self._requests = 0
        if release:
            self.has_release(release)
        self._planned: list[float] = []
        self._controllers: list[SimController] = []  # that live
        self._plan: RunPlan | None = None
        self._allocation: Allocation | None = None
        self._is_over = True  # the run
        self._agreed_at: tuple[int, float] | None = None
        self._leapt = 0.0
        self._folded = 0, JobState()  # the first events of the journal, how many, and their fold
        self._in_the_way = ""  # the node that last stood in the way of a leap
        self.job_id = self.slurm.submit(
            SubmitRequest(
                command=("train.py",),
                nodes=nodes + spares,
                options=("--no-kill", *((f"--segment={segment}",) if segment else ())),
                required_nodes=required,
                time_limit_s=time_limit_s,
            )
        )
        self._watch()

    def _rack(self, racks: Collection[Collection[str]]) -> None:
        for number, names in enumerate(racks, 1):
            rack = f"rack{number}"
            self.cluster.switches += (Switch(name=rack, level=0, nodes=tuple(names), is_block=True),)
            for name in names:
                node = self.nodes[name]
                node.clique, node.block, node.imex = f"{rack}/1", rack, "READY"

    # -- what a test looks at ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.env.now

    @property
    def controller(self) -> SimController | None:
        """The newest controller that lives."""
        return self._controllers[-1] if self._controllers else None

    @property
    def state(self) -> JobState:
        """The job as its controller knows it, or as the journal tells it while there is none."""
        controller = self.controller
        return controller.core.state if controller is not None else self._fold()

    def _fold(self) -> JobState:
        """Fold the journal, which only grows."""
        known, state = self._folded
        for event in self.journal[known:]:
            state = apply(event, state)
        self._folded = len(self.journal), state
        return state

    @property
    def stage(self) -> str:
        """The name of the stage of the controller, "" without one."""
        return type(self.controller.core.stage).__name__ if self.controller is not None else ""

    @property
    def ranks(self) -> dict[int, Rank]:
        """The worker processes of the newest generation that live, by rank."""
        generation = self.state.world.generation
        living = (rank for node in self.nodes.values() for rank in node.workers.values())
        return {rank.rank: rank for rank in living if rank.generation == generation}

    @property
    def step(self) -> int:
        """The newest step that all ranks of the newest generation have completed, -1 before their first."""
        world = self.state.world
        return self.training.step_of(world.generation, world.placement.world_size)

    @property
    def sent(self) -> list[tuple[str, FromController]]:
        """What controllers have sent to the agents of nodes, without acknowledgements."""
        return self.env.sent

    @property
    def waits_for_nodes(self) -> bool:
        """Whether the job is queued, and cannot start with the nodes that are left."""
        job = self.cluster.jobs[self.job_id]
        return job.is_pending and job.reason == "Resources"

    def events(self, kind: type[E]) -> list[E]:
        """Return all events of one kind."""
        return [event for event in self.journal if isinstance(event, kind)]

    def has_been_well(self, seconds: float) -> bool:
        """Return whether the job has been in its stage Running for so long, and nothing is wrong now."""
        controller = self.controller
        if controller is None or self.stage != "Running" or self.state.world.incident is not None:
            return False
        whole = len(self.ranks) == self.state.world.placement.world_size and not controller.core.held
        long = controller.now().mono - controller.core.stage_since >= seconds
        return whole and long and self.network.is_calm and self.now >= controller.stalled_until

    def disagreement(self) -> str:
        """Say in what the two real halves differ about a generation that trains, "" if in nothing.

        Messages are under way at any time: ask when all has been well for some seconds.
        """
        state = self.state
        if not state.world.running or self.code is not None:
            return ""
        for node in state.world.slots:
            if found := self._disagreement_about(node, state):
                return found
        strays = [
            f"rank {rank.rank} of generation {rank.generation} on {rank.node}"
            for node in self.nodes.values()
            for rank in node.workers.values()
            if not rank.unkillable
            and (rank.generation != state.world.generation or node.name not in state.world.slots)
        ]
        return f"still there: {', '.join(strays)}" if strays else ""

    def _disagreement_about(self, node: str, state: JobState) -> str:
        agent = self.nodes[node].agent
        if agent is None:
            return f"{node} holds a slot and has no agent"
        theirs = (agent.state.epoch, agent.state.generation, agent.state.phase)
        ours = (state.epoch, state.world.generation, Phase.RUNNING)
        if theirs != ours:
            return f"the controller has {node} at {ours}, its agent is at {theirs}"
        living = (r for r in self.nodes[node].workers.values() if r.generation == state.world.generation)
        ranks = tuple(sorted(rank.rank for rank in living))
        if ranks != state.world.placement.ranks_of(node):
            return f"{node} has ranks {ranks} and should have {state.world.placement.ranks_of(node)}"
        return ""

    # -- time --------------------------------------------------------------------------------------

    def at(self, seconds: float, act: Callable[[], None]) -> None:
        """Plan ``act`` for ``seconds`` after the beginning."""
        self._planned.append(seconds)
        self.env.timeline.after(seconds - self.now, act)

    def run(self, seconds: float) -> None:
        """Let ``seconds`` pass, or less if the job ends before."""
        until = self.now + seconds
        while self.code is None and self._step(until):
            pass

    def run_until(self, condition: Callable[[], bool], within_s: float) -> None:
        """Let time pass until ``condition`` holds. Raises :class:`NotWithin`."""
        until = self.now + within_s
        while not condition():
            if self.code is not None or not self._step(until):
                if condition():
                    return
                raise NotWithin(f"not within {within_s:g} s: {self.describe()}")

    def run_to_end(self, within_s: float = 86400.0) -> int:
        """Let time pass until the job has ended; its exit code. Raises :class:`NotWithin`."""
        self.run_until(lambda: self.code is not None, within_s)
        assert self.code is not None
        return self.code

    def describe(self) -> str:
        """Say how far the job is, for a failed test."""
        lines = "".join(f"\n  {line}" for line in self.said[-12:])
        return f"{self.now:.1f} s, stage {self.stage or 'none'}, step {self.step}, code {self.code}{lines}"

    def _step(self, until: float) -> bool:
        if self._leap_s and self.now > self._leapt + REST_S and self._may_be_quiet():
            planned = min((t for t in self._planned if t > self.now), default=math.inf)
            to = min(self.now + self._leap_s, until, planned) - 1.0
            if to - self.now >= LEAST_STEPS * self.training.step_s and self._is_quiet():
                self._leap(to)
        return self.env.timeline.step(until)

    def suspend(self, seconds: float) -> None:
        """Stop all of the job, the controller too, for so long, as Slurm does when nodes are shared in turns.

        Time passes, and nothing happens in it.
        """
        self.env.timeline.suspend(seconds)

    # -- what a test breaks ------------------------------------------------------------------------

    def rank(self, number: int) -> Rank:
        """Return the worker process of a rank. Raises ``KeyError`` if it does not live."""
        return self.ranks[number]

    def kill_rank(self, number: int, signal: int = 9, *, oom: str = "") -> None:
        """End a rank by a signal from outside; ``oom``: the kernel sent it, for want of memory."""
        rank = self.rank(number)
        self.nodes[rank.node].end_worker(rank, number=signal, oom=oom)

    def exit_rank(
        self, number: int, code: int = 1, error: WorkerError | None = None, tail: tuple[str, ...] = ()
    ) -> None:
        """Let a rank end by itself; ``error``: the exception that it leaves behind; ``tail``: its last lines
        of output.
        """
        rank = self.rank(number)
        rank.tail = tail
        self.nodes[rank.node].end_worker(rank, code=code, error=error)

    def hang_rank(
        self,
        number: int,
        *,
        unkillable: bool = False,
        shows: Callable[[TakeStacks], RankStacks] | None = None,
    ) -> None:
        """Let a rank stand still while all others wait for it; ``unkillable``: no signal ends it.

        ``shows`` makes its stacks; without, its process is stopped.
        """
        rank = self.rank(number)
        rank.stopped, rank.unkillable, rank.shows = True, unkillable, shows

    def resume_rank(self, number: int) -> None:
        """Let a rank that hung go on."""
        rank = self.rank(number)
        rank.stopped = rank.unkillable = False
        rank.shows = None
        self.training.nudge(rank.generation)

    def spoil_rank(self, number: int) -> None:
        """Make the loss of a rank, and then of all, NaN from its next step on, until it is started again."""
        self.rank(number).spoils = True

    def node_dies(self, name: str) -> None:
        """Cut the power of a node, with all that ran there."""
        node = self.nodes[name]
        if not node.is_up:
            return
        for controller in [c for c in self._controllers if c.host == name]:
            self._lose(controller)
        node.die()
        self.env.timeline.after(self.env.pace.slurm_gives_up_s, partial(self._give_up_node, name))

    def node_returns(self, name: str) -> None:
        """Boot a dead node; Slurm takes it from the job and gives it to the next ones."""
        node = self.nodes[name]
        if not node.is_up:
            node.boot()
            self._take_from_job(name, "Node unexpectedly rebooted")
            self.cluster.resumed(name)

    def agent_dies(self, name: str, *, told: bool = True, how: str = "Killed") -> None:
        """End the agent of a node, and its workers with it; srun says ``how``, unless it is gone, too."""
        self.nodes[name].end_agents()
        if told:
            self.env.after(self.env.pace.slurm_s, partial(self._tell_end, name, how))

    def srun_ends(self, *names: str, says: str = "", apart_s: float = 0.0, after_s: float = 1.0) -> None:
        """End the srun that started the agents of ``names``, and these, one ``apart_s`` after the other.

        ``says``: its last line; ``after_s``: for how long the first agent lives on.
        """
        if (controller := self.controller) is not None:
            controller.hear_step(names, 1, (says,) if says else (), is_task=False)
        for number, name in enumerate(names):
            self.env.timeline.after(after_s + number * apart_s, self.nodes[name].end_agents)

    def agent_stalls(self, *names: str, stalls: bool = True) -> None:
        """Stop the agents of ``names``, while their nodes and ranks go on, or let them go on."""
        for name in names:
            for agent in list(self.nodes[name].agents.values()):
                agent.stop() if stalls else agent.resume()

    def _tell_end(self, name: str, how: str) -> None:
        """Have srun say how the agent of ``name`` has ended."""
        controller = self.controller
        if controller is not None and self.nodes[name].is_up:
            line = f"srun: error: {name}: task 0: {how}"
            controller.hear_step((name,), 137, (line,), is_task=True)

    def partition(self, *names: str, fabric: bool = False) -> None:
        """Cut ``names`` off the other nodes. ``fabric``: the collectives between them fail, too."""
        self.network.part(*names)
        self._fabric.update(names if fabric else ())

    def heal(self, *names: str) -> None:
        """Bring ``names`` (all, without any) back to the others."""
        self.network.heal(*names)
        self._fabric.difference_update(names or tuple(self._fabric))
        self.training.nudge_all()

    def controller_dies(self) -> None:
        """Kill the controller process; its supervisor starts the next one."""
        if self.controller is not None:
            self._lose(self.controller)

    def controller_stalls(self, seconds: float) -> None:
        """Stop the controller process for so long."""
        if self.controller is not None:
            self.controller.stall(seconds)

    def answer(self, kind: type[qs.Question[Any]], reply: Reply | None) -> None:
        """Have ``reply`` answer all questions of ``kind`` from now on; None: the pretended world, again.

        :func:`~.environment.always` and :func:`~.environment.never` make the usual ones.
        """
        if reply is None:
            self.env.replies.pop(kind, None)
        else:
            self.env.replies[kind] = reply

    def slurm_is_silent(self, silent: bool = True) -> None:
        """Stop slurmctld from answering, or let it answer again."""
        self.cluster.unreachable = silent

    def storage_hangs(self, hangs: bool = True) -> None:
        """Stop shared storage from answering, or let it answer again."""
        self.storage.hangs = hangs

    def storage_fails(self, fails: bool = True) -> None:
        """Let shared storage refuse, or take again."""
        self.storage.fails = fails

    def alert(self, name: str, alert: Alert) -> None:
        """Let the inspection of a node see something."""
        self.nodes[name].alerts = (*self.nodes[name].alerts, alert)
        for agent in self.nodes[name].agents.values():
            agent.beat()

    def warn(self, reason: str = "the end of this run is near (USR1)") -> None:
        """Warn the batch script of the end of the run, as Slurm does."""
        self._give(lambda controller: controller.warn(reason))

    def order_to_end(self) -> None:
        """Press Ctrl-C, as the owner does; a second call is the second order."""
        controller = self.controller
        if controller is not None and controller.core.leaving is not None:
            self._give(SimController.hurry)
        else:
            self._give(lambda controller: controller.order_to_end("ordered to end by SIGINT", ExitCode(130)))

    def term(self) -> None:
        """Send SIGTERM to the batch script alone (``scancel --batch --signal=TERM``)."""
        self._give(lambda controller: controller.order_to_end("ordered to end by SIGTERM"))

    def term_agents(self, *names: str) -> None:
        """Send SIGTERM to the agents of ``names`` (all, without any), which end their ranks."""
        for name in names or self.nodes:
            for agent in list(self.nodes[name].agents.values()):
                agent.take(stimuli.TermCame(grace_s=TERM_GRACE_S))

    def drill(self, rank: int, fault: str = "kill-rank") -> DrillReply:
        """Try a fault on a rank, as the owner does by ``srobust drill``. Only while a controller lives."""
        assert self.controller is not None
        return self.controller.drill(Drill(fault=fault, rank=rank))

    def has_release(self, name: str, release: SimulatedRelease | None = None) -> None:
        """Put a release into the job's folder; without ``release`` nothing is wrong with it."""
        self.env.releases[name] = release or SimulatedRelease()
        self.training.factors[name] = self.env.releases[name].factor

    def update(
        self,
        name: str,
        when: When = When.NOW,
        *,
        deadline_s: float | None = None,
        rollback: bool = False,
        from_step: int = -1,
        withdraw: bool = False,
        running: str = "",
        updates: int = -1,
    ) -> str:
        """Ask for a release, as the owner does; the token by which :meth:`reply` finds the answer.

        Nobody hears it while there is no controller.
        """
        self._requests += 1
        wish = UpdateJob(
            release=name,
            when=when,
            by=Requester(user="ada", uid=1000, host="login1"),
            deadline_s=deadline_s,
            rollback=rollback,
            from_step=from_step,
            token=f"request {self._requests}",
            withdraw=withdraw,
            running=running,
            updates=updates,
        )
        self.ask_update(wish)
        return wish.token

    def ask_update(self, wish: UpdateJob) -> None:
        """Send a request for an update, the first time or again."""
        if self.controller is not None:
            self.controller.update(wish)

    def reply(self, token: str) -> UpdateReply:
        """Let the answer to a request come."""
        self.run_until(lambda: token in self.env.answers, within_s=60.0)
        return self.env.answers[token]

    def run_dies(self) -> None:
        """Kill all of this run in one moment, and requeue the job: nothing of the run prepares the next one.

        Nodes keep what they have in memory.
        """
        self.cluster.end_run(self.cluster.jobs[self.job_id], "NODE_FAIL", hold=False)
        self._end_run()
        self.env.timeline.after(self.cluster.completing_s + 1.5, self._start_now)

    def resize(self, nodes: int) -> None:
        """Have the next run get ``nodes`` nodes, all with ranks; only while the job is queued."""
        self._slots, self._spares = nodes, 0
        self.slurm.set_size(self.job_id, Size(least=nodes, most=nodes, tasks=nodes, cpus=nodes))

    def cancel(self, *, interactive: bool = False) -> None:
        """Cancel the job (scancel). ``interactive``: salloc started it, so Slurm signals only its steps."""
        self.cluster.finish(self.job_id, "CANCELLED")
        self._term(steps_only=interactive)

    # -- training ----------------------------------------------------------------------------------

    def _train_together(self, names: Collection[str]) -> bool:
        return all(self.nodes[name].is_up for name in names) and not (
            self._fabric.intersection(names) and any(name not in self._fabric for name in names)
        )

    def _on_step(self, ranks: Mapping[int, Rank], step: int) -> None:
        """Let all ranks of a generation, which have completed ``step``, keep snapshots."""
        some = next(iter(ranks.values()))
        generation = some.generation
        if self._takes_snapshots:
            # A leap passes over steps; of those that are kept only the newest matter.
            strides = {stride for rank in ranks.values() for stride in (rank.stride, rank.local_stride)}
            held = {step} if any(self.env.now < rank.held_until for rank in ranks.values()) else set[int]()
            for newest in sorted({step - step % stride for stride in strides} | held):
                self._keep(ranks, CheckpointId(step=newest, generation=generation))
        self._misbehave(ranks, step)
        for name in {rank.node: None for rank in ranks.values()}:
            for agent in list(self.nodes[name].agents.values()):
                if any(rank.generation == generation for rank in agent.ranks.values()):
                    agent.on_step(step)

    def _misbehave(self, ranks: Mapping[int, Rank], step: int) -> None:
        """Do what is wrong with the release that these ranks run."""
        rank = next(iter(ranks.values()))
        release = self.env.releases.get(rank.launch.release)
        if release is None:
            return
        if 0 <= release.fails_at <= step:
            error = WorkerError(type="ValueError", message="unknown option", file="train.py", line=40)
            self.env.timeline.after(0.0, partial(self.nodes[rank.node].end_worker, rank, code=1, error=error))
        if 0 <= release.hangs_at <= step:
            stuck_in(rank, "wait@train.py", "main@train.py")
        if 0 <= release.spoils_at <= step + 1:
            rank.spoils = True

    @property
    def _takes_snapshots(self) -> bool:
        return self.config.checkpoint.memory and self.takes_snapshots and self.training.reports

    def _keep(self, ranks: Mapping[int, Rank], ref: CheckpointId) -> None:
        """Keep what each rank keeps of a step, and have it sent to peers if it goes there."""
        sent = {}
        for number, rank in ranks.items():
            if self.nodes[rank.node].unkept:
                continue
            is_held = ref.step == rank.step and self.env.now < rank.held_until
            if ref.step > rank.kept and (is_held or ref.step % rank.local_stride == 0):
                rank.kept = ref.step
                self._hold(rank, ref)
                if ref.step % rank.stride == 0:
                    sent[number] = rank
        if sent:
            self.env.after(self.env.pace.copy_s, partial(self._copy_to_peers, sent, ref))

    def _hold(self, rank: Rank, ref: CheckpointId) -> None:
        for part in (rank.rank, *((SHARED,) if self._shared else ())):
            self.nodes[rank.node].keep(part, Tier.MEMORY, ref, rank.stride)

    def _on_done(self, ranks: Mapping[int, Rank]) -> None:
        """End the ranks, since training is done. The last step is kept, whatever its number."""
        for rank in ranks.values():
            if self._takes_snapshots and rank.kept < rank.step:
                self._hold(rank, CheckpointId(step=rank.step, generation=rank.generation))
            self.env.after((0.1, 1.0), partial(self.nodes[rank.node].end_worker, rank, code=0))

    def _copy_to_peers(self, ranks: Mapping[int, Rank], ref: CheckpointId) -> None:
        for rank in ranks.values():
            for peer in rank.launch.peers:
                near = peer.rank == rank.rank and self.network.passes(rank.node, peer.node)
                if near and self.nodes[rank.node].is_up and self.nodes[peer.node].agents:
                    self.nodes[peer.node].keep(rank.rank, Tier.PEER, ref)

    # -- controllers -------------------------------------------------------------------------------

    def _start_controller(
        self, host: str, taken_from: str = "", why: str = "", silent_since: float = 0.0
    ) -> None:
        assert self._plan is not None
        assert self._allocation is not None
        controller = SimController(
            self.env,
            self._plan,
            host,
            self.journal,
            self.nodes,
            FakeSlurm(self.cluster, reaches=lambda: self.network.passes(host, SLURMCTLD)),
            self._allocation,
            say=self.said.append,
            over=self._on_exit,
            start_agent=self._start_agent,
            requeue=self._requeue,
            asked=self.asked.append,
            wrote=self._on_written,
            taken_from=taken_from,
            why=why,
            silent_since=silent_since,
        )
        if controller.is_alive:
            self._controllers.append(controller)

    def _start_agent(self, plan: RunPlan, name: str, image: str = "") -> None:
        if plan is not self._plan or self._is_over:
            return
        if image in self.bad_images and self.controller is not None:
            self.controller.hear_step((name,), 1, (NO_IMAGE.format(node=name),), is_task=True)
        elif name in self.no_agent and self.controller is not None:
            self.controller.hear_step((name,), 1, (self.no_agent[name],), is_task=True)
        elif name in self.refusals and self.controller is not None:
            self.controller.hear_refusal(name, *self.refusals[name])
        elif self.storage.hangs:  # which has the job's keys
            self.env.timeline.after(RESTART_S, partial(self._start_agent, plan, name, image))
        elif not self.storage.fails:
            self.nodes[name].start_agent(image)
        elif self.nodes[name].is_up and self.controller is not None:
            self.refused.add(name)
            self.controller.hear_refusal(name, "the job's folder cannot be read: Permission denied")

    def _on_written(self, controller: SimController) -> None:
        if self.deaths:
            self.deaths[0] -= 1
            if self.deaths[0] <= 0:
                self.deaths.pop(0)
                self._lose(controller)

    def _lose(self, controller: SimController) -> None:
        controller.kill()
        if controller in self._controllers:
            self._controllers.remove(controller)
        if self.nodes[controller.host].is_up:
            self.env.timeline.after(RESTART_S, partial(self._supervise, controller))

    def _supervise(self, lost: SimController) -> None:
        newest = self.env.epochs[-1].epoch == lost.epoch
        is_same = self._plan is not None and lost.plan.restart_count == self._plan.restart_count
        if not (newest and is_same and self.nodes[lost.host].is_up) or self._is_over:
            return
        if self.storage.hangs or self.storage.fails:  # no controller begins without its journal
            self.env.timeline.after(RESTART_S, partial(self._supervise, lost))
        else:
            self._start_controller(lost.host)
            for controller in self._controllers[-1:]:
                for signal in self._given:
                    signal(controller)

    def _give(self, signal: Callable[[SimController], None]) -> None:
        """Give a signal to the controllers, and to those that the supervisor starts later in this run."""
        self._given.append(signal)
        for controller in self._controllers:
            signal(controller)

    def _on_exit(self, controller: SimController, code: int) -> None:
        if controller in self._controllers:
            self._controllers.remove(controller)
        if code == ExitCode.OTHER_CONTROLLER or self._is_over:
            return
        if code == HANDED_OVER:
            self.env.timeline.after(RESTART_S, partial(self._supervise, controller))
            return
        assert self._plan is not None
        job = self.cluster.jobs[self.job_id]
        self._end_run()
        if job.restart_count == self._plan.restart_count and not job.is_finished:
            self.cluster.finish(self.job_id, "FAILED" if code else "COMPLETED")
        if job.restart_count == self._plan.restart_count:
            self.code = code

    # -- Slurm's part ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Look once a second whether Slurm has started a run, and whether a controller is missing."""
        if not self.cluster.unreachable:
            self.cluster.settle()
        job = self.cluster.jobs[self.job_id]
        known = self._plan.restart_count if self._plan is not None else -1
        if job.is_running and job.restart_count != known and self._is_over:
            self._begin_run()
        elif not self._is_over and job.is_running and (job.end_time or math.inf) <= self.clock.now:
            self.cluster.finish(self.job_id, "TIMEOUT")
            self._term()
        if not self._is_over and self.config.timings.takeover_s:
            self._vote()
        if self.code is None:
            self.env.timeline.after(WATCH_S, self._watch)

    def _begin_run(self) -> None:
        job = self.cluster.jobs[self.job_id]
        self._allocation = Allocation.of(job, dict.fromkeys(self.nodes, self._gpus_per_node))
        self._plan = RunPlan(
            run_id="simulated",
            job_id=self.job_id,
            kind=CommandKind.SCRIPT,
            command=("train.py",),
            cwd="/",
            slots=min(self._slots, len(job.nodes)),
            spares=self._spares,
            nproc_per_node=self._ranks_per_node,
            restart_count=job.restart_count,
            nodes=job.nodes,
            config=self.config,
            time_limit_s=job.time_limit_s,
            submitted=job.submit_time,
            gpus=len(job.nodes) * self._gpus_per_node,
            required=job.required_nodes,
            segment=job.segment,
            requeues=job.requeue,
            blocks={node: block.name for block in self.cluster.switches for node in block.nodes},
            start=f"start {job.restart_count}",
            release=release_of(self._release, SimulatedRelease()) if self._release else None,
        )
        self._is_over = False
        self._given.clear()
        self.runs += 1
        self._start_controller(self._batch_host or job.batch_host)

    def _end_run(self) -> None:
        """Kill what is left of the run, as Slurm does once the batch script has ended."""
        self._is_over = True
        for controller in self._controllers:
            controller.kill()
        self._controllers.clear()
        for node in self.nodes.values():
            node.end_agents()
            node.alerts = ()

    def _term(self, *, steps_only: bool = False) -> None:
        """End the run as Slurm does: TERM to the batch script and to all steps, KILL after KillWait."""
        plan = self._plan
        if not steps_only:
            self.term()
        self.term_agents()

        def kill() -> None:
            if not self._is_over and plan is self._plan:
                self._end_run()
                if self.cluster.jobs[self.job_id].is_finished:
                    self.code = 137

        self.env.timeline.after(self.env.pace.kill_wait_s, kill)

    def _requeue(
        self, controller: SimController, asked: qs.BeginRequeue, tell: Callable[[object], None]
    ) -> None:
        def answer(said: qs.RequeueStatus, detail: str = "") -> None:
            if controller.is_alive:
                tell(qs.SlurmAnswer(said=said, detail=detail))

        def ask() -> None:
            if self._is_over or controller is not self.controller:
                return
            if self.refuses_requeue:
                answer(qs.RequeueStatus.REFUSED, "Requested operation is presently disabled")
                return
            try:
                slurm = controller.slurm
                is_new = slurm.job(self.job_id).restart_count == controller.plan.restart_count
                if is_new:
                    slurm.requeue(self.job_id)
                most = self._slots + self._spares
                job = slurm.job(self.job_id)
                order = RequeueRequest(
                    job_id=self.job_id,
                    ending_run=controller.plan.restart_count,
                    exclude=asked.exclude,
                    need=Need(least=self._slots, most=most),
                )
                wanted = wanted_of(order, (), job, slurm.nodes(), slurm.topology())
                if wanted.size is not None:
                    slurm.set_size(self.job_id, wanted.size)
                slurm.set_excluded_nodes(self.job_id, wanted.exclude)
            except RequeueDisabled as error:
                answer(qs.RequeueStatus.REFUSED, str(error))
                return
            except SlurmError as error:
                answer(qs.RequeueStatus.NOTHING, str(error))
                return
            answer(qs.RequeueStatus.TAKEN)
            if is_new:
                self.env.timeline.after(self.cluster.completing_s + 1.5, self._start_now)
                self.env.after(self.env.pace.slurm_s, self._term)
            answer(qs.RequeueStatus.DONE)

        self.env.after(self.env.pace.slurm_s, ask)

    def _start_now(self) -> None:
        """Start the job now, as the watcher of a run does: it skips Slurm's begin time of two minutes."""
        try:
            self.slurm.start_now(self.job_id)
        except SlurmError:
            pass  # it starts later

    def _give_up_node(self, name: str) -> None:
        if not self.nodes[name].is_up:
            self._take_from_job(name, "Not responding")

    def _take_from_job(self, name: str, reason: str) -> None:
        self.cluster.set_node(name, states=frozenset({"DOWN", "NOT_RESPONDING"}), reason=reason)
        job = self.cluster.jobs[self.job_id]
        if not job.is_running or name not in job.nodes:
            return
        left = tuple(n for n in job.nodes if n != name)
        if left and (name != job.batch_host or self._controllers):
            self.cluster.resize(job, left)
        else:  # nothing of the job is left that would tell Slurm what to do
            self.cluster.end_run(job, "NODE_FAIL", hold=False)
            self.env.timeline.after(self.cluster.completing_s + 1.5, self._start_now)
            self._term()

    # -- takeover ----------------------------------------------------------------------------------

    def _vote(self) -> None:
        """Play the voters, by the real rules, while the controller's host is silent."""
        newest, state = self.env.epochs[-1], self.state
        host, now = newest.node, self.now
        if now < self._leapt + 20.0 or self.storage.hangs or self.storage.fails:
            return
        silent = {
            node.name: agent.link.silence(agent.mono)
            for node in self.nodes.values()
            if (agent := node.agent) is not None
            and agent.link.controller is not None
            and agent.link.controller.epoch == newest.epoch
            and agent.link.silence(agent.mono) >= self.config.timings.takeover_s
        }
        if not silent or (host in silent and len(silent) == 1):
            self._agreed_at = None
            return
        gone = {node for node in state.evicted if node not in state.world.slots}
        voters = takeover.voters(state.world.slots, state.spares, state.aside, {host, *state.lenders, *gone})
        lost = [
            name
            for name in voters
            if name in silent
            and takeover.is_lost(
                silent[name],
                answers=self.nodes[host].is_up and self.network.passes(name, host),
                is_down=self.cluster.nodes[host].is_down and not self.cluster.unreachable,
            )
        ]
        agreeing = [name for name in lost if self.network.passes(name, lost[0])]
        living = [n for n in voters if not self.cluster.nodes[n].is_down]
        slurm = self.cluster.nodes[host].is_down and not self.cluster.unreachable
        enough = len(agreeing) >= takeover.quorum(len(voters)) or (
            slurm and takeover.suffices(len(agreeing), len({*living, *agreeing}))
        )
        if not agreeing or not enough:
            self._agreed_at = None
        elif self._agreed_at is None or self._agreed_at[0] != newest.epoch:
            self._agreed_at = newest.epoch, now
        elif now - self._agreed_at[1] >= takeover.PROBE_S:
            self._agreed_at, first = None, agreeing[0]
            why = takeover.describe(
                host,
                silent[first],
                answers=False,
                agreeing=agreeing,
                slurm=f"{host} is DOWN" if slurm else "",
            )
            since = self.clock.now - silent[first]
            self._start_controller(first, taken_from=host, why=why, silent_since=since)

    # -- leaps -------------------------------------------------------------------------------------

    def _may_be_quiet(self) -> bool:
        """Return whether nothing but training goes on, by what can be seen without a look at each node."""
        if len(self._controllers) != 1 or self.stage != "Running" or not self.network.is_calm:
            return False
        if self._controllers[0].asks or self.storage.hangs or self.cluster.unreachable:
            return False
        core = self._controllers[0].core
        if not core.trains or core.world.incident is not None or core.ending is not None:
            return False
        return not (self._in_the_way and self._is_in_the_way(self._in_the_way))

    def _is_in_the_way(self, name: str) -> bool:
        """Return whether node ``name`` does more than to train, or not that, too."""
        node, state = self.nodes[name], self.state
        if any(agent.is_busy for agent in node.agents.values()):
            return True
        return name in state.world.placement.slots and bool(self._disagreement_about(name, state))

    def _is_quiet(self) -> bool:
        """Return whether nothing but training goes on, at any node."""
        self._in_the_way = next((name for name in self.nodes if self._is_in_the_way(name)), "")
        whole = len(self.ranks) == self.state.world.placement.world_size
        return not self._in_the_way and whole and not self.disagreement()

    def _leap(self, until: float) -> None:
        """Jump there, with all the steps that fit."""
        at = self.training.leap(self.state.world.generation, until)
        if at is None or at <= self.now:
            return
        self.clock.advance(at - self.now)
        self._leapt = self.now
        for node in self.nodes.values():
            for agent in tuple(node.agents.values()):  # one may end, as it cannot find its controller
                agent.link.on_answer(agent.state.epoch, agent.mono)
                agent.beat()
        for controller in self._controllers:
            controller.skip()
