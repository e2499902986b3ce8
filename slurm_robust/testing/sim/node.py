"""A node of a simulated job: its memory, its worker processes, and the agent, whose deciding half is real."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from msgspec import structs

from slurm_robust.agent import stimuli as do
from slurm_robust.agent.copies.service import CopyNews
from slurm_robust.agent.heartbeat import HeartbeatState
from slurm_robust.agent.launcher import LauncherMessage, LoadOver
from slurm_robust.agent.link import ControllerLink
from slurm_robust.agent.state import AgentState
from slurm_robust.model import startup
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, RestoreSource, Tier
from slurm_robust.model.errors import UNUSABLE_COPY
from slurm_robust.model.exits import WorkerError
from slurm_robust.model.findings import Alert
from slurm_robust.model.progress import SnapshotTimes, Traffic
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.testing.sim.environment import Environment, SimulatedRelease
from slurm_robust.testing.sim.training import Rank, SimulatedTraining, stuck_in
from slurm_robust.wire import messages as msg
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.worker.spawning import Exited, Fatal, Ready, Spawned

OWN_BUFFERS, STRIDE_BUFFERS, PEER_BUFFERS = 3, 2, 2
"""How many steps of one rank a node keeps, of its own ranks and for others."""

REPORT_S = (0.002, 0.02)
"""Until an agent hears of its own node's processes and files."""

_UNCHANGED = SimulatedRelease()
REHEARSAL_S = (5.0, 20.0)
COPY_PORT, PROBE_PORT, FIRST_PORT = 5000, 6000, 4000
LOST_PEER = WorkerError(
    type="torch.distributed.DistBackendError",
    message="NCCL error: remote process exited or there was a network error",
)


class SimNode:
    """A machine. A test may set its plain attributes; :class:`~.job.Sim` has words for most of it."""

    def __init__(
        self,
        env: Environment,
        name: str,
        number: int,
        training: SimulatedTraining,
        others: Mapping[str, SimNode],
    ) -> None:
        """``others``: all nodes by name, this one too."""
        self.env, self.name, self.training, self.others = env, name, training, others
        self.address = f"10.0.{number // 250}.{number % 250 + 1}"
        self.clock_s = env.chance.uniform(1e3, 1e6)
        """By how much its monotonic clock differs from the timeline."""
        self.is_up = True
        self.agents: dict[str, SimAgent] = {}
        """That live, by their ids: one, or for a moment two."""
        self.workers: dict[int, Rank] = {}
        """Processes that live, by pid."""
        self.alerts: tuple[Alert, ...] = ()
        """What the inspection of the node sees."""
        self.traffic: Traffic | None = None
        """What its links carry, None if that is not known."""
        self.is_broken = False
        """Tests of it fail."""
        self.unfit = ""
        """Why an agent that begins here can start no worker."""
        self.rehearsal = ""
        """Why rehearsals fail here; they pass without."""
        self.spoils = False
        """Numbers that it computes are not finite."""
        self.is_mute = False
        """Its agent answers no question: it sends neither stacks nor what it has found by probes."""
        self.answers_probes = True
        """Its kernel answers probes; False: something drops them."""
        self.beacons: bool | None = None
        """Whether beacons of its agent come; None: as long as that runs and is reached."""
        self.holds_gpus = False
        """The driver does not give the memory of ended workers back."""
        self.data_address = ""
        """Address at which others fetch its copies, if it is another one."""
        self.lag_s: float | None = None
        """Seconds that its agent says copies take to its peer; None: what the pace says."""
        self.writes = True
        """Whether it writes to storage as it is told; if False, it writes nothing and reports no error."""
        self.refuses = ""
        """Why it can put nothing on storage, as it says itself; "" if it can."""
        self.unwritable: set[int] = set()
        """Steps of which alone it can put nothing on storage, since that is full, as it says itself."""
        self.unkept = ""
        """Why its memory has no room for snapshots of its ranks; "" if it has."""
        self.zygote_s: tuple[float, float] | None = None
        """Seconds from the start of a zygote here until it can fork workers; None: as everywhere."""
        self.clique = self.block = self.imex = ""
        """How its GPUs reach those of other nodes, as its agents tell; "" if they do not."""
        self.protocol = PROTOCOL
        """The version of the messages that its agents say they speak."""
        self.shows_strides = True
        """Whether its agents show the strides that their ranks know, and obey a local one."""
        self.dying_s = 0.0
        """Seconds for which workers that are told to end give memory back before they do."""
        self.spent: dict[str, float] = {}
        """Seconds that its ranks have spent in phases, by their step records."""
        self.ahead_s = 0.0
        """By how much its time of day is ahead of Slurm's."""
        self.locked: set[CheckpointId] = set()  # that its agent puts on storage
        self._copies: dict[tuple[int, Tier], list[Copy]] = {}
        self._listed: tuple[Copy, ...] | None = None
        self._agents = 0

    @property
    def agent(self) -> SimAgent | None:
        """The newest that lives."""
        return next(reversed(self.agents.values()), None)

    def gets_answer(self, name: str) -> bool:
        """Return whether the kernel of node ``name`` answers a probe from here."""
        other = self.others[name]
        return other.is_up and other.answers_probes and self.env.network.passes(self.name, name)

    # -- memory ------------------------------------------------------------------------------------

    @property
    def copies(self) -> tuple[Copy, ...]:
        """What its memory holds."""
        if self._listed is None:
            self._listed = tuple(copy for buffers in self._copies.values() for copy in buffers)
        return self._listed

    def snapshots(self, stride: int) -> SnapshotTimes | None:
        """What its ranks say of their snapshots; None if these take no time."""
        training = self.training
        if not training.whole_s:
            return None
        apart_s = stride * training.step_s
        return SnapshotTimes(
            stride=stride, apart_s=apart_s, whole_s=training.whole_s, blocked_s=training.blocked_s
        )

    def keep(self, rank: int, tier: Tier, ref: CheckpointId, stride: int = 1) -> None:
        """Hold one more copy. The oldest makes room, but for the newest two and these of the ``stride``."""
        buffers = self._copies.setdefault((rank, tier), [])
        copy = Copy(rank=rank, generation=ref.generation, step=ref.step, tier=tier)
        if copy in buffers:
            return
        own = OWN_BUFFERS + (STRIDE_BUFFERS if stride > 1 else 0)
        while len(buffers) >= (PEER_BUFFERS if tier is Tier.PEER else own):
            kept = {*buffers[-2:], *[c for c in buffers if c.step % stride == 0][-2:]}
            free = [c for c in buffers if c.checkpoint not in self.locked]
            if not free:
                return
            buffers.remove(next((c for c in free if c not in kept), free[0]))
        buffers.append(copy)
        self._listed = None

    def has(self, rank: int, ref: CheckpointId) -> bool:
        """Return whether its memory holds that part."""
        return any((copy.rank, copy.checkpoint) == (rank, ref) for copy in self.copies)

    def lose(self, rank: int, step: int) -> None:
        """Lose all copies of that part, as if they were damaged."""
        for key, buffers in self._copies.items():
            kept = [copy for copy in buffers if (copy.rank, copy.step) != (rank, step)]
            self._copies[key] = kept
        self._listed = None

    def forget_copies(self) -> None:
        """Forget all that its memory holds."""
        self._copies.clear()
        self._listed = None

    # -- life and death ----------------------------------------------------------------------------

    def start_agent(self, image: str = "") -> None:
        """Start an agent here, as Slurm does; a second one may come beside the first."""
        if self.is_up:
            self._agents += 1
            agent = SimAgent(self, f"agent {self._agents} of {self.name}", image)
            self.agents[agent.id] = agent

    def die(self) -> None:
        """Cut the power."""
        self.is_up = False
        self.end_agents()
        self.forget_copies()

    def boot(self) -> None:
        """Boot: the node is back, with nothing in memory."""
        self.is_up = True

    def end_agents(self) -> None:
        """Kill its agents, and their workers with them, as the kernel does."""
        for agent in list(self.agents.values()):
            self.end_agent(agent)

    def end_agent(self, agent: SimAgent) -> None:
        """End ``agent``, and its workers with it."""
        agent.is_alive = False
        self.locked.clear()
        self.agents.pop(agent.id, None)
        for rank in agent.ranks.values():
            if self.workers.pop(rank.pid, None) is not None:
                self.training.leave(rank)

    def end_worker(
        self,
        rank: Rank,
        code: int | None = None,
        number: int | None = None,
        error: WorkerError | None = None,
        oom: str = "",
    ) -> None:
        """End a worker process, by itself or by a signal; its agent learns it."""
        if self.workers.get(rank.pid) is not rank:
            return
        del self.workers[rank.pid]
        self.training.leave(rank)
        agent = next((a for a in self.agents.values() if a.ranks.get(rank.rank) is rank), None)
        if agent is not None:
            report = Exited(
                generation=rank.generation,
                rank=rank.rank,
                pid=rank.pid,
                ended=self.env.now + self.clock_s,
                code=code,
                signal=number,
                error=error,
                oom=oom,
            )
            agent.hear_launcher(report)
        notice_s = self.env.pace.peers_notice_s
        if notice_s is not None and code != 0 and rank.killed is None and error is not LOST_PEER:
            self.env.after(notice_s, partial(self._lose_peer, rank))

    def _lose_peer(self, lost: Rank) -> None:
        for node in self.others.values():
            for rank in list(node.workers.values()):
                if rank.generation == lost.generation and not (rank.stopped or rank.unkillable):
                    node.end_worker(rank, code=1, error=LOST_PEER)


class SimAgent:
    """The agent of one node: the real :class:`AgentState`, heartbeats and link, with hands that pretend."""

    def __init__(self, node: SimNode, agent: str, image: str) -> None:
        self.node, self.id, self.is_alive = node, agent, True
        self.is_stopped = False
        """It stands still, as by SIGSTOP, while its node and its ranks go on."""
        self._hears_at = 0.0  # when the newest message of the zygote comes
        self._unread: list[Callable[[], None]] = []  # what came while it stood still
        self._env = env = node.env
        self.state = AgentState(
            kill_wait_s=env.config.timings.kill_wait_s, waits_for_gpus=lambda: self.node.holds_gpus
        )
        self.link = ControllerLink()
        self.ranks: dict[int, Rank] = {}
        """Those of its generation, ended ones too, as their step records are."""
        self._book = HeartbeatState(node.name, agent, always_ready=False)
        self._book.address, self._book.data_address = node.address, node.data_address
        self._book.port, self._book.probe_port = FIRST_PORT, PROBE_PORT
        self._book.clique, self._book.block, self._book.imex = node.clique, node.block, node.imex
        self.image = self._book.image = image
        self._connected: int | None = None  # the epoch of a controller
        self._wanted, self._due = True, 0.0
        self._wakes_at = 0.0
        self._flush = self._flushed = self._flush_asked = -1
        self._unflushed = ""
        self._saving: msg.Save | None = None
        self._save: dict[str, Any] = {}  # the answer to the newest order, as fields of a heartbeat
        self._stacks: dict[int, msg.StacksTaken] = {}
        self._hands: dict[type[do.Instruction], Callable[[Any], None]] = {
            do.StartLauncher: self._start_launcher,
            msg.Launch: self._spawn,
            do.EndWorker: lambda order: self._signal(
                order.pid, signal.SIGKILL if order.kill else signal.SIGTERM
            ),
            msg.Inject: self._inject,
            do.WatchGpus: lambda order: self._watch_gpus(),
            do.SweepGroups: lambda order: None,
            do.ReadTail: self._read_tail,
            msg.RequestCheckpoint: self._ask_checkpoint,
            msg.Pace: self._set_strides,
            msg.Flush: self._ask_flush,
            msg.Save: self._save_copies,
            msg.TakeStacks: self._sample,
            msg.ProbeNodes: self._probe,
            msg.Rehearse: self._rehearse,
            do.EndRehearsal: lambda order: self._watch_gpus() if order.watch_gpus else None,
            msg.Load: self._load,
            msg.TryRelease: self._try_release,
            do.RenewPort: lambda order: self._renew_port(),
            do.ForgetRecords: lambda order: self.ranks.clear(),
            do.SendHeartbeat: lambda order: self._want(),
            do.EndAgent: self._end,
        }
        self._start_launcher(None)
        self._turn()

    def _inject(self, order: msg.Inject) -> None:
        pid = self.state.workers.living_pids.get(order.rank)
        if order.signal and pid is not None:
            self._signal(pid, order.signal)
        else:
            self._book.cannot_drill(order.drill, f"simulated ranks cannot {order.fault}")
            self._want()

    @property
    def mono(self) -> float:
        """Its node's monotonic clock."""
        return self._env.now + self.node.clock_s

    @property
    def is_busy(self) -> bool:
        """Whether it does more than to watch: it rehearses, or a later step will go to storage."""
        stores = self._flush >= 0 or any(rank.wanted >= 0 for rank in self.ranks.values())
        return self.state.rehearses or (self.state.phase is msg.Phase.RUNNING and stores)

    # -- what happens to it ------------------------------------------------------------------------

    def take(self, stimulus: do.Stimulus) -> None:
        """Hand ``stimulus`` to the real half, do what it says, and send what is due."""
        if self.is_stopped:
            self._unread.append(partial(self.take, stimulus))
        elif self.is_alive:
            self._take(stimulus)
            self._turn()

    def receive(self, data: bytes) -> None:
        """Receive a message of a controller."""
        if self.is_stopped:
            self._unread.append(partial(self.receive, data))
            return
        if not self.is_alive:
            return
        message = msg.decode_from_controller(data)
        match message:
            case (
                msg.Foreign()
                | msg.Refused()
                | msg.Pong()
                | msg.DrillReply()
                | msg.UpdateReply()
                | msg.StacksShown()
            ):
                raise AssertionError(f"controllers of this release send agents no {type(message).__name__}")
            case msg.Ack(epoch=epoch, seq=seq):
                if epoch >= self.state.epoch:
                    self._book.on_ack(seq)
                self._take(do.EpochSeen(epoch=epoch))
            case _:
                self._take(message)
        self.link.on_answer(message.epoch, self.mono)
        if self.is_alive:
            self._turn()

    def hear_launcher(self, message: LauncherMessage) -> None:
        """Hear news of the zygote, which come in order."""
        self._hears_at = max(self._hears_at, self._env.now + self._env.chance.uniform(*REPORT_S))
        self._env.timeline.after(self._hears_at - self._env.now, lambda: self.take(message))

    def stop(self) -> None:
        """Stop the agent's process (SIGSTOP)."""
        self.is_stopped = True

    def resume(self) -> None:
        """Let the agent go on: it takes in all that has come meanwhile."""
        self.is_stopped = False
        unread, self._unread = self._unread, []
        for take in unread:
            take()
        if self.is_alive:
            self._turn()

    def warn(self) -> None:
        """Warn of the end of the run (USR1), as Slurm does."""
        self.state.warned = self._wanted = True
        self._turn()

    def learn(self, *modules: str) -> None:
        """Learn what rank 0 has imported besides numpy, which it imports by its first step."""
        self._book.learn(modules)
        self.beat()

    def tell(self, text: str) -> None:
        """Have a fact for the journal and the job's log."""
        self._book.tell(text)

    def tell_outside(self, *files: str) -> None:
        """Learn which code rank 0 has read from its place."""
        self._book.tell_outside(files)
        self.beat()

    def on_step(self, step: int) -> None:
        """Take in that its ranks have completed ``step`` with all others."""
        some = next(iter(self.ranks.values()))
        launch, first = (
            some.launch,
            some.step - 1 == (some.launch.restore.step if some.launch.restore else -1),
        )
        ref = CheckpointId(step=step, generation=launch.generation)
        if first and launch.slot == 0 and self._env.config.standby.learn:
            self._book.learn(("numpy",))
        if first or step == launch.announce_step:
            self._wanted = True
        if self.node.training.reports:
            self._store(ref, launch)
        if self._wanted:
            self._turn()

    def _store(self, ref: CheckpointId, launch: msg.Launch) -> None:
        """Begin what was ordered for this step or an earlier one."""
        if 0 <= self._flush <= ref.step:
            if ref.step == self._flush:  # else a leap has passed over it
                self._after(self._env.pace.write_s, partial(self._write_flush, ref, launch))
            self._flush = -1
        for rank in self.ranks.values():
            if 0 <= rank.wanted <= ref.step:
                rank.wanted = -1
                if rank.hold_s and rank.kept >= ref.step and not self.node.unkept:
                    rank.published = ref.step  # in memory, which is enough
                    self._wanted = True
                    continue
                self._after(self._env.pace.write_s, partial(self._publish, rank, ref))

    # -- its turns ---------------------------------------------------------------------------------

    def _after(self, bounds: tuple[float, float], act: Callable[[], None]) -> None:
        """Plan ``act`` if the agent still lives then."""
        self._env.after(bounds, lambda: act() if self.is_alive else None)

    def _want(self) -> None:
        self._wanted = True

    def _take(self, stimulus: do.Stimulus) -> None:
        for instruction in self.state.handle(stimulus, self.mono):
            self._hands[type(instruction)](instruction)

    def _turn(self) -> None:
        """End a turn as the real loop does: what is due, the controller, a heartbeat."""
        if self.is_stopped:
            return
        now = self.mono
        if self.state.deadline is not None and now >= self.state.deadline:
            self._take(do.Ticked())
        if not self.is_alive:
            return
        if self.link.wants_epoch(now):
            self._after(REPORT_S, self._read_epoch)
        for text in self.state.new_notes:
            self._book.note(text)
        self.state.new_notes.clear()
        if self._wanted or now >= self._due:
            self._due = now + self._env.config.timings.heartbeat_s
            self._wanted = self._connected is None
            if self._connected is not None:
                self._post(self._heartbeat(now))
        wake = self._due if self.state.deadline is None else min(self._due, self.state.deadline)
        if not now < self._wakes_at <= wake:
            self._wakes_at = wake
            self._env.timeline.after(wake - now, partial(self._wake, wake))

    def _wake(self, at: float) -> None:
        if self.is_alive and at == self._wakes_at:
            self._wakes_at = 0.0
            self._turn()

    def _read_epoch(self) -> None:
        storage = self._env.storage
        if storage.hangs:
            self._after((0.5, 1.0), self._read_epoch)
        elif storage.fails:
            self.link.on_epoch_failed()
        elif self.link.on_epoch(self._env.epochs[-1] if self._env.epochs else None, self.mono):
            assert self.link.controller is not None
            self._connected = self.link.controller.epoch
            self._take(do.EpochSeen(epoch=self._connected))
            self._book.forget()
            self._wanted = True
            self._turn()

    def beat(self) -> None:
        """Send a heartbeat now, whether one is due or not."""
        self._wanted = True
        self._turn()

    def _heartbeat(self, now: float) -> msg.Heartbeat | msg.Pulse:
        reported = self.node.training.reports
        progress = tuple(
            rank.progress(self._env.now, reported=reported)
            for rank in self.ranks.values()
            if not self._env.releases.get(rank.launch.release, _UNCHANGED).stepless
        )
        killed = [
            r.killed for r in self.ranks.values() if r.killed is not None and r.pid in self.node.workers
        ]
        still_s = self._env.now - min(killed) if killed and self.state.killed else None
        still_s = 0.0 if killed and self.node.dying_s else still_s
        news = CopyNews(
            port=COPY_PORT,
            copies=self.node.copies,
            lag_s=self._env.pace.copy_s[1] if self.node.lag_s is None else self.node.lag_s,
            flushed=self._flushed,
            unflushed=self._unflushed,
            unkept=self.node.unkept if self.ranks else "",
            **self._save,
        )
        alerts, traffic, spent = self.node.alerts, self.node.traffic, self.node.spent
        restored_s = [rank.restored_s for rank in self.ranks.values() if rank.restored]
        started = {startup.RESTORE: max(restored_s)} if restored_s else {}
        some = next(iter(self.ranks.values()), None)
        strides, snapshots = (0, 0), None
        if some is not None and self.node.shows_strides:
            strides = some.stride, some.local_stride
            snapshots = self.node.snapshots(some.local_stride)
        made = self._book.make(
            self.state, progress, now, news, alerts, traffic, still_s, started, spent, strides, snapshots
        )
        is_other = isinstance(made, msg.Heartbeat) and self.node.protocol != PROTOCOL
        return structs.replace(made, protocol=self.node.protocol) if is_other else made

    def _post(self, message: msg.ToController) -> None:
        if self._connected is not None:
            self._env.post(self.node.name, self.id, self._connected, msg.encode(message))

    # -- its hands ---------------------------------------------------------------------------------

    def _start_launcher(self, _: object) -> None:
        begun = self._env.now

        def over() -> None:
            unfit = self.node.unfit
            self.take(Fatal(reason=unfit) if unfit else Ready(import_s=self._env.now - begun))

        self._after(self.node.zygote_s or self._env.pace.zygote_s, over)

    def _spawn(self, launch: msg.Launch) -> None:
        env = self._env
        env.ran[launch.generation] = launch.release
        self._flush = self._flushed = self._flush_asked = -1
        self._unflushed = ""
        self.ranks = {
            number: Rank(
                node=self.node.name,
                rank=number,
                pid=env.next_pid(),
                launch=launch,
                begun=env.now,
                spoils=self.node.spoils,
                loss=self.node.training.loss,
                stride=launch.stride,
                local_stride=launch.local_stride,
                kept=launch.restore.step if launch.restore is not None else -1,
            )
            for number in launch.ranks
        }
        for rank in self.ranks.values():
            self.node.workers[rank.pid] = rank
            self.hear_launcher(Spawned(generation=rank.generation, rank=rank.rank, pid=rank.pid))
            self._after(env.pace.restore_s, partial(self._restore, rank))

    def _restore(self, rank: Rank) -> None:
        if self.node.workers.get(rank.pid) is not rank:
            return
        restore = rank.launch.restore
        sources = [s for s in rank.launch.sources if s.rank in (rank.rank, SHARED)]
        missing = restore is not None and not all(self._reads(source, restore) for source in sources)
        if missing:
            name = "slurm_robust.checkpoint.errors.UnusableCopy"
            error = WorkerError(type=name, message=f"no part of rank {rank.rank} of {restore}")
            self.node.end_worker(rank, code=UNUSABLE_COPY, error=error)
            return
        release = self._env.releases.get(rank.launch.release, _UNCHANGED)
        if restore is not None and not release.fits and self._writer(restore) != rank.launch.release:
            error = WorkerError(
                type="slurm_robust.checkpoint.errors.EntryMismatch",
                message="head.weight is (10, 64) in the checkpoint and (12, 64) here",
                file="train.py",
                line=8,
            )
            self.node.end_worker(rank, code=1, error=error)
            return
        if restore is not None and 0 <= release.hangs_at <= restore.step:
            stuck_in(rank, "wait@train.py", "main@train.py")
        rank.restored, rank.restored_s = True, self._env.now - rank.begun
        self.node.training.enter(rank)

    def _writer(self, ref: CheckpointId) -> str:
        """Return the release that has taken this checkpoint."""
        return self._env.ran.get(ref.generation, "")

    def _reads(self, source: RestoreSource, ref: CheckpointId) -> bool:
        """Return whether what a launch names is there."""
        if source.tier.is_shared:
            return ref in self._env.storage.complete() and not self._env.storage.fails
        if not source.address:
            return self.node.has(source.rank, ref)
        others = self.node.others.values()
        (other,) = (n for n in others if source.address in (n.address, n.data_address))
        reached = self._env.network.passes(self.node.name, other.name)
        return reached and bool(other.agents) and other.has(source.rank, ref)

    def _signal(self, pid: int, number: int) -> None:
        rank = self.node.workers.get(pid)
        if rank is None:
            return
        if number == signal.SIGSTOP:
            rank.stopped = True
            return
        if number == signal.SIGCONT:
            rank.stopped = False
            self.node.training.nudge(rank.generation)
            return
        if number == signal.SIGTERM and rank.stopped:
            number = signal.SIGKILL  # as the real launcher does
        if number == signal.SIGKILL and rank.killed is None:
            rank.killed = self._env.now
        if not rank.unkillable:
            low, high = self._env.pace.term_s if number == signal.SIGTERM else REPORT_S
            bounds = low + self.node.dying_s, high + self.node.dying_s
            rank.killed = self._env.now if rank.killed is None else rank.killed
            self._after(bounds, lambda: self.node.end_worker(rank, number=number))

    def _watch_gpus(self) -> None:
        """Report memory that the driver counts to ended workers, as long as the node holds it."""
        if self.node.holds_gpus:
            self.take(do.GpusReported(held="2 GiB of GPU 0"))
            self._after((0.5, 1.0), self._watch_gpus)
        else:
            self._after(REPORT_S, lambda: self.take(do.GpusReported(held="")))

    def _read_tail(self, order: do.ReadTail) -> None:
        lines = self.ranks[order.rank].tail
        if lines:
            tail = do.TailRead(generation=order.generation, rank=order.rank, lines=lines)
            self._after(REPORT_S, lambda: self.take(tail))

    def _set_strides(self, order: msg.Pace) -> None:
        for rank in self.ranks.values():
            if self.node.shows_strides and (rank.stride, rank.local_stride) != (
                order.stride,
                order.local_stride,
            ):
                self._wanted = True
                rank.local_stride = order.local_stride
            rank.stride = order.stride

    def _ask_checkpoint(self, order: msg.RequestCheckpoint) -> None:
        for rank in self.ranks.values():
            if rank.step < order.step and rank.published < order.step:
                rank.wanted, rank.hold_s = order.step, order.hold_s

    def _publish(self, rank: Rank, ref: CheckpointId) -> None:
        if self._env.storage.hangs or not self.node.writes or self._refusal(ref.step):
            return
        self._env.storage.write(ref, (rank.rank,), rank.launch.world_size)
        rank.published = ref.step

    def _ask_flush(self, order: msg.Flush) -> None:
        if order.step <= self._flush_asked:
            return  # the order is repeated
        self._flush_asked = self._flush = order.step
        some = next(iter(self.ranks.values()))
        ref = CheckpointId(step=order.step, generation=some.generation)
        if self.node.has(some.rank, ref):  # no rank gets on
            self._store(ref, some.launch)

    def _write_flush(self, ref: CheckpointId, launch: msg.Launch) -> None:
        if ref.generation != self.state.generation or not self.node.writes:
            return
        if self._env.storage.hangs:
            self._after((0.5, 1.0), partial(self._write_flush, ref, launch))
        elif why := self._refusal(ref.step):
            self._unflushed = f"step {ref.step}: {why}"
        else:
            self._env.storage.write(ref, launch.ranks, launch.world_size)
            self._flushed = ref.step
            for rank in self.ranks.values() if self.node.unkept else ():
                rank.published = ref.step  # they have written it themselves
            self.beat()

    def _refusal(self, step: int) -> str:
        is_full = self._env.storage.fails or step in self.node.unwritable
        return self.node.refuses or ("No space left on device" if is_full else "")

    def _save_copies(self, order: msg.Save) -> None:
        if not self.node.writes or order == self._saving:
            return
        self._saving, ref = order, order.checkpoint
        lacks = [rank for rank in order.ranks if not self.node.has(order.anew.get(rank, rank), ref)]
        if lacks:
            self._answer_save(order, f"this node has no part of rank {lacks[0]}")
            return
        self.node.locked.add(ref)
        self._after(self._env.pace.write_s, partial(self._write_copies, order))

    def _write_copies(self, order: msg.Save) -> None:
        if self._env.storage.hangs:
            self._after((0.5, 1.0), partial(self._write_copies, order))
            return
        self.node.locked.discard(order.checkpoint)
        why = self._refusal(order.checkpoint.step)
        if not why:
            self._env.storage.write(order.checkpoint, order.ranks, order.world_size)
        self._answer_save(order, why)

    def _answer_save(self, order: msg.Save, why: str) -> None:
        ref = order.checkpoint
        self._save = {
            "saved": None if why else ref,
            "unsaved": f"{ref}: {why}" if why else "",
            "saved_ranks": () if why else order.ranks,
            "save_begun": order.begun,
        }
        self.beat()

    def _sample(self, order: msg.TakeStacks) -> None:
        if self.node.is_mute:
            return
        if order.number not in self._stacks:
            taken = tuple(rank.stacks(order) for rank in self.ranks.values())
            self._stacks[order.number] = msg.StacksTaken(
                node=self.node.name, generation=order.generation, number=order.number, stacks=taken
            )
        self._after((0.1, 0.6), lambda: self._post(self._stacks[order.number]))

    def _probe(self, order: msg.ProbeNodes) -> None:
        """Send probes until the time is over; one that is answered is enough."""

        def answering() -> set[str]:
            return {name for name in order.places if self.node.gets_answer(name)}

        first = answering()

        def tell() -> None:
            if self.is_alive and not self.node.is_mute:
                found = tuple(sorted(first | answering()))
                asked = tuple(sorted(order.places))
                self._post(
                    msg.NodesProbed(node=self.node.name, number=order.number, answering=found, asked=asked)
                )

        self._env.timeline.after(order.for_s, tell)

    def _rehearse(self, order: msg.Rehearse) -> None:
        number, begun = order.number, self._env.now
        release = self._env.releases.get(order.release, _UNCHANGED)

        def over() -> None:
            took_s = self._env.now - begun
            why = self.node.rehearsal or release.rehearsal
            why = why or ("it was not done in time" if release.stepless else "")
            short = RehearsalState.IMPOSSIBLE if order.beside and release.stepless else RehearsalState.FAILED
            state = short if why else RehearsalState.PASSED
            rehearsal = Rehearsal(
                number=number, state=state, reason=why, took_s=took_s, confined=release.confined
            )
            self.take(do.RehearsalOver(rehearsal=rehearsal, pid=0))

        self._after((order.limit_s, order.limit_s + 0.5) if release.stepless else REHEARSAL_S, over)

    def _load(self, order: msg.Load) -> None:
        self._after(self._env.pace.zygote_s, lambda: self.take(LoadOver(number=order.number)))

    def _try_release(self, order: msg.TryRelease) -> None:
        why = self._env.releases[order.release].imports.get(self.node.name, "")
        tried = msg.Tried(number=order.number, ok=not why, text=why)
        self._after(self._env.pace.zygote_s, lambda: self.take(do.ReleaseTried(tried=tried)))

    def _renew_port(self) -> None:
        self._book.port += 1

    def _end(self, order: do.EndAgent) -> None:
        if self.is_alive:
            self._post(self._heartbeat(self.mono))
            self.node.end_agent(self)
            if not order.keep_copies:
                self.node.forget_copies()
