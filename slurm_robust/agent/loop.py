"""The agent's event loop: gathers stimuli for the state machine and carries out its instructions."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType

import zmq
from msgspec import structs

from slurm_robust.agent import drills, rankenv
from slurm_robust.agent.answering import Answering
from slurm_robust.agent.code import CodeCopies
from slurm_robust.agent.copies.flush import FlushRequest
from slurm_robust.agent.copies.leftovers import job_is_over
from slurm_robust.agent.copies.service import CopyService
from slurm_robust.agent.deaths import DeathWatch, OomKills
from slurm_robust.agent.fabric import FabricWatch, block_of
from slurm_robust.agent.folders import (
    EpochRead,
    NextLogs,
    RuntimeFolder,
    make_log_folders,
    make_logs_ahead,
    read_epoch,
)
from slurm_robust.agent.gpumemory import FREE, GpuWait
from slurm_robust.agent.heartbeat import HeartbeatState
from slurm_robust.agent.launcher import Gone, Launcher, LauncherMessage, LoadOver, TryOver
from slurm_robust.agent.link import ControllerLink
from slurm_robust.agent.liveness import LivenessPorts, probe_nodes
from slurm_robust.agent.orphan import OrphanWatch
from slurm_robust.agent.progress import StepWatch
from slurm_robust.agent.rehearsal import POLL_S, Rehearsals, free_share
from slurm_robust.agent.stacks.taker import StackTaking, take_stacks
from slurm_robust.agent.state import AgentState
from slurm_robust.agent.stimuli import (
    EndAgent,
    EndRehearsal,
    EndWorker,
    EpochSeen,
    ForgetRecords,
    GpusReported,
    Instruction,
    ReadTail,
    RehearsalOver,
    RenewPort,
    SendHeartbeat,
    StartLauncher,
    Stimulus,
    SweepGroups,
    TailRead,
    TermCame,
    Ticked,
    WatchGpus,
)
from slurm_robust.agent.takeover import TakeoverWatch
from slurm_robust.inspector.inspection import Inspection
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import without_room
from slurm_robust.model.job import CommandKind, JobDirectory, JobSpec
from slurm_robust.model.nodefolders import REHEARSAL, SHARED_MEMORY
from slurm_robust.model.probes import ProbeTarget
from slurm_robust.model.standby import RehearsalState
from slurm_robust.slurm.process import lacking_commands
from slurm_robust.util.files import read_tail
from slurm_robust.util.process import file_shortage
from slurm_robust.util.text import one_line
from slurm_robust.util.threads import Executor
from slurm_robust.util.wakeup import WakeUp
from slurm_robust.version import __version__
from slurm_robust.wire.keys import ClientKeys
from slurm_robust.wire.messages import (
    Ack,
    DrillReply,
    Flush,
    Foreign,
    FromController,
    Inject,
    Launch,
    Load,
    NodesProbed,
    Pace,
    Phase,
    Pong,
    ProbeNodes,
    Refused,
    Rehearse,
    RequestCheckpoint,
    Save,
    StacksShown,
    StacksTaken,
    TakeStacks,
    TryRelease,
    UpdateReply,
)
from slurm_robust.wire.network import PortHolder, local_address, taken_by
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import AgentSocket
from slurm_robust.worker.imports import read_names
from slurm_robust.worker.lookup import missing
from slurm_robust.worker.outside import read_outside
from slurm_robust.worker.rendezvous import BACKLOG
from slurm_robust.worker.spawning import Exited, RankProgram, SpawnFailed

# Slurm's KillWait, after which it kills the step, is 30 s by default.
TERM_GRACE_S = 10.0
# How often records are read: until the first step often, since the recovery ends with it.
_FIRST_STEP_POLL_S = 0.02
_STEP_POLL_S = 0.05


MAX_PROBES = 8
"""How many questions about other nodes are answered: a controller never suspects more at a time."""

MIN_TO_LOAD = 0.1
"""Share of the node's memory, or of the job's, that must be free for a second zygote."""


COPY_S = 120.0
"""Seconds for the copy of a release on the node: storage is slow then."""


@dataclass
class _Awaiting:
    """What waits for the copy of a release, with the monotonic time until which it does."""

    launcher: float | None = None
    launch: tuple[Launch, float] | None = None
    rehearsal: tuple[Rehearse, float] | None = None
    trial: tuple[TryRelease, float] | None = None


@dataclass(frozen=True)
class Setup:
    """Which job and node an agent serves."""

    spec: JobSpec
    job: JobDirectory
    keys: ClientKeys
    node: str
    agent: str  # unique for each start of an agent process
    address: str = ""  # how other nodes reach this one; "": as this one reaches the controller
    data_address: str = ""  # the same for copies of checkpoints; "": ``address``
    image: str = ""  # container image that it was started in for a release; "": that of the configuration


class Agent:
    """One node's agent. :meth:`run` returns when the job or the step is over."""

    def __init__(
        self,
        setup: Setup,
        launcher: Launcher,
        runtime: RuntimeFolder,
        ports: PortHolder,
        copies: CopyService,
        stacks: StackTaking,
        inspection: Inspection,
        liveness: LivenessPorts,
    ) -> None:
        spec = setup.spec
        self._setup = setup
        self._launcher = launcher
        self._runtime = runtime
        self._ports = ports
        self._copies = copies
        self._inspection = inspection
        self._liveness = liveness
        self._gpus = GpuWait()
        self._fabric = FabricWatch(possible=self._gpus.possible)
        self._state = AgentState(kill_wait_s=spec.kill_wait_s, waits_for_gpus=lambda: self._gpus.possible)
        self._book = HeartbeatState(setup.node, setup.agent, always_ready=spec.kind is CommandKind.EXEC)
        self._book.address, self._book.port = setup.address, ports.port
        self._book.image = setup.image
        self._book.data_address, self._book.probe_port = setup.data_address, liveness.port
        self._book.block = block_of(os.environ)
        self._link = ControllerLink()
        self._socket = AgentSocket(setup.keys, setup.agent)
        self._files: Executor[EpochRead | TailRead] = Executor("files")
        self._taker = stacks
        self._stacks: Answering[StacksTaken] = Answering("stacks")
        self._probes: Answering[NodesProbed] = Answering("probes", keep=MAX_PROBES)
        self._steps = StepWatch()
        self._is_unkept = False  # as the job's log was told
        self._code = CodeCopies(spec, setup.job, setup.node)
        self._rehearsals = Rehearsals(
            spec, setup.job, setup.node, runtime.path / REHEARSAL, copy_code=self._code.private
        )
        self._awaiting = _Awaiting()
        self._deaths = DeathWatch()
        self._oom_kills = OomKills()
        self._orphan = OrphanWatch(setup.node, setup.job)
        lacking = lacking_commands(os.environ.get("PATH", ""))
        self._takeover = TakeoverWatch(spec, setup.job, setup.node, lacking=lacking)
        if self._takeover.note:
            self._book.note(self._takeover.note)
        if spec.version not in ("", __version__):
            self._book.note(
                f"this agent is of slurm_robust {__version__}, its controller of {spec.version}: install the "
                "same one for srobust run and for agents, in the image if there is one"
            )
        self._wakeup = WakeUp()
        self._heartbeat_wanted = True
        self._heartbeat_due = 0.0
        self._polled = 0.0
        self._terms = 0
        self._is_termed = False
        self._ended = False
        self._keep_copies = True
        self._answer: tuple[FlushRequest | None, str] = (None, "")  # to the newest order to save
        self._flush = -1
        self._master_port = 0  # of the present workers
        self._controller_speaks: int | None = None  # its version of the protocol, as its newest Ack says
        self._noted: set[str] = set()  # what was noted of versions
        self._next_logs: NextLogs | None = None  # of the generation that runs, until they are made
        self._modules: Path | None = None  # file with what rank 0 has imported, until it is read
        self._outside: Path | None = None  # file with the code that it reads outside of its release, likewise
        self._settled = 0  # the newest generation whose code was settled
        self._told = -1  # the newest generation of whose files in a copy the job's log tells

    def run(self) -> None:
        """Serve until an order, or TERM from Slurm, ends it. Main thread only."""
        self._wakeup.on_signals()
        self._copies.wake_by(self._wakeup.wake)
        self._copies.fork_by(self._launcher.fork_writer)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_term)
        # A job's early warning (--signal) is for the controller, and comes here without B:. A handler and not
        # SIG_IGN, since workers would inherit that.
        signal.signal(signal.SIGUSR1, self._on_warning)
        for number in (signal.SIGUSR2, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        try:
            for note in rankenv.find_shortage(os.environ, len(os.sched_getaffinity(0)), os.cpu_count() or 1):
                self._book.note(note)
            self._carry_out(StartLauncher())
            while not self._ended:
                self._turn()
        finally:
            self._close()
        self._takeover.guard(lambda: self._is_termed)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self._terms += 1
        self._is_termed = True

    def _on_warning(self, number: int, frame: FrameType | None) -> None:
        self._state.warned = self._heartbeat_wanted = True

    def _close(self) -> None:
        self._socket.close()
        self._liveness.close()
        self._rehearsals.close()
        self._launcher.close()
        self._code.close()
        self._steps.forget()
        self._ports.close()
        self._files.close()
        self._stacks.close()
        self._probes.close()
        self._gpus.end()
        self._fabric.close()
        self._inspection.close()
        self._copies.close(remove=not self._keep_copies or job_is_over(os.environ))
        self._runtime.close()

    # -- one turn ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._wait()
        if self._terms:
            self._terms = 0
            self._take(TermCame(grace_s=TERM_GRACE_S))
        # The workers' ends before the controller's orders, which may be the answer to them.
        for message in self._launcher.read():
            self._take(self._heard(message))
        while (order := self._socket.recv()) is not None:
            self._on_message(order)
        for result in self._files.results():
            self._on_result(result)
        if (held := self._gpus.read()) is not None:
            self._take(GpusReported(held="" if held == FREE else held))
        if (seen := self._fabric.read()) is not None:
            self._book.clique, self._book.imex = seen
            self._heartbeat_wanted = True
        answers: list[StacksTaken | NodesProbed] = [*self._stacks.finished(), *self._probes.finished()]
        for answer in answers:
            self._socket.send(answer)  # if it is lost, the question may come again
        now = time.monotonic()
        if (over := self._rehearsals.read(now)) is not None:
            self._take(over)
        if self._state.deadline is not None and now >= self._state.deadline:
            self._take(Ticked())
        self._follow_copies()
        self._follow_code(now)
        self._follow_inspection(now)
        self._watch_steps(now)
        self._follow_controller(now)
        self._heartbeat(now)

    def _heard(self, message: LauncherMessage) -> LauncherMessage:
        """Add what this node knows of a worker's end."""
        if not isinstance(message, Exited) or message.code == 0:
            return message
        # The killed process may be a child, say a data loader's worker, of which the rank cannot know.
        taken = taken_by(self._master_port) if message.rank == 0 else ""
        places = (str(SHARED_MEMORY), os.environ.get("TMPDIR", "/tmp"))
        full = next(iter(without_room(Host(), places)), "")
        return structs.replace(message, oom=self._oom_kills.reason(), taken=taken, full=full)

    def _wait(self) -> None:
        poller = zmq.Poller()
        for socket, flags in self._socket.pollers(writing=self._heartbeat_wanted):
            poller.register(socket, flags)
        sources = (self._wakeup, self._files, self._stacks, self._probes, self._launcher, self._inspection)
        for source in (*sources, self._gpus, self._fabric, self._code):
            if (descriptor := source.fileno()) >= 0:
                poller.register(descriptor, zmq.POLLIN)
        poller.poll(max(0, int(1000 * self._patience(time.monotonic())) + 1))
        self._wakeup.clear()

    def _patience(self, now: float) -> float:
        """Return the seconds until something is due without any news."""
        due = [self._heartbeat_due - now, 1.0]
        if self._state.deadline is not None:
            due.append(self._state.deadline - now)
        if self._steps.expects_news:
            due.append(self._polled + self._poll_interval() - now)
        if self._state.rehearses:
            due.append(POLL_S)
        return max(0.0, min(due))

    def _poll_interval(self) -> float:
        return _FIRST_STEP_POLL_S if self._steps.waiting_for_steps else _STEP_POLL_S

    def _watch_steps(self, now: float) -> None:
        if self._steps.expects_news and now - self._polled >= self._poll_interval():
            self._polled = now
            self._heartbeat_wanted |= self._steps.has_news(now)
        if self._modules is not None and self._steps.has_stepped:
            self._learn(self._modules)
        if self._outside is not None and self._steps.has_stepped:
            self._tell_outside(self._outside)
        if self._next_logs is not None and self._next_logs.is_due(now, has_stepped=self._steps.has_stepped):
            self._make_next_logs(self._next_logs)

    def _make_next_logs(self, logs: NextLogs) -> None:
        """Make the files that a restart in place opens, so that it waits for no storage to make them."""
        self._next_logs = None
        if self._state.phase is Phase.RUNNING:
            self._files.submit(partial(make_logs_ahead, self._setup.job, logs.generation, logs.ranks))

    def _learn(self, path: Path) -> None:
        """Learn what rank 0, which is here and has made its first step, has imported."""
        names = read_names(path)
        if names is None:
            return  # it is about to leave them, or never does
        self._modules = None
        if names:
            self._book.learn(names)
            self._heartbeat_wanted = True

    def _tell_outside(self, path: Path) -> None:
        """Tell which code rank 0, which has made its first step, has read from its place."""
        files = read_outside(path)
        if files is None:
            return
        self._outside = None
        if files:
            self._book.tell_outside(files)
            self._heartbeat_wanted = True

    @property
    def _are_starting(self) -> bool:
        """Whether workers are on their way to their first step: nothing may take processors from them."""
        phase = self._state.phase
        return phase in (Phase.FREEING, Phase.STARTING) or (
            phase is Phase.RUNNING and not self._steps.has_stepped
        )

    def _follow_copies(self) -> None:
        self._copies.follow(self._state.phase, self._state.generation)
        if not self._are_starting:
            self._copies.write_saves()
        if (answer := self._copies.answer) != self._answer:
            self._answer, self._heartbeat_wanted = answer, True  # the job may wait for nothing else
        for text in self._copies.notes():
            self._book.note(text)
            self._heartbeat_wanted = True
        if 0 <= self._flush <= self._copies.flush_over:
            self._flush = -1
            self._steps.ask_flush(-1)  # workers need not keep it any more
            self._heartbeat_wanted = True

    def _follow_inspection(self, now: float) -> None:
        phase = self._state.phase
        starts = phase is Phase.STARTING or (phase is Phase.RUNNING and self._steps.waiting_for_steps)
        busy = starts or phase is Phase.STOPPING or self._state.rehearses
        self._heartbeat_wanted |= self._inspection.follow(now, self._state.generation, busy=busy)
        for text in self._inspection.notes():
            self._book.note(text)

    # -- the code of releases ----------------------------------------------------------------------

    def _follow_code(self, now: float) -> None:
        """Do what had to wait for a copy of a release's code."""
        self._code.follow()
        for text in self._code.notes():
            if self._state.generation > self._told:
                self._told = self._state.generation
                self._book.tell(text)
            else:
                self._book.note(text)
            self._heartbeat_wanted = True
        state, awaiting = self._state, self._awaiting
        if state.phase is Phase.ENDED and state.generation > self._settled:
            self._settled = state.generation
            self._code.ended()
        if awaiting.launcher is not None:
            copied = self._code.get(self._setup.spec.code)
            if copied is not None or now > awaiting.launcher:
                awaiting.launcher = None
                self._begin_launcher(copied.program if copied is not None else None)
        if awaiting.launch is not None:
            self._follow_launch(*awaiting.launch, now)
        if awaiting.rehearsal is not None:
            self._follow_rehearsal(*awaiting.rehearsal, now)
        if awaiting.trial is not None:
            self._follow_trial(*awaiting.trial, now)

    def _follow_launch(self, launch: Launch, until: float, now: float) -> None:
        copied, state = self._code.get(launch.release), self._state
        is_wanted = (state.generation, state.phase) == (launch.generation, Phase.STARTING)
        if is_wanted and copied is None and now <= until:
            return
        self._awaiting.launch = None
        if is_wanted and copied is not None and copied.program is not None:
            self._spawn(launch, copied.program)
            return
        why = copied.why if copied is not None else f"it was not there within {COPY_S:.0f} s"
        text = f"release {launch.release} has no copy on this node: {why}"
        for rank in launch.ranks:
            self._take(SpawnFailed(generation=launch.generation, rank=rank, reason=text))

    def _follow_rehearsal(self, order: Rehearse, until: float, now: float) -> None:
        rehearsal = self._state.rehearsal
        if not self._state.rehearses or rehearsal is None or rehearsal.number != order.number:
            self._awaiting.rehearsal = None
            return
        copied = self._code.get(order.release)
        if copied is None and now <= until:
            return
        self._awaiting.rehearsal = None
        if copied is not None and copied.program is not None:
            self._rehearsals.start(order, now, copied.program)
            return
        why = copied.why if copied is not None else "it was not there in time"
        failed = structs.replace(
            rehearsal, state=RehearsalState.FAILED, reason=f"its code has no copy on this node: {why}"
        )
        self._take(RehearsalOver(rehearsal=failed, pid=0))

    def _follow_trial(self, order: TryRelease, until: float, now: float) -> None:
        copied = self._code.get(order.release)
        program = copied.program if copied is not None else None
        needed = self._code.needed(order.release) if program is not None and program.code is not None else ()
        if (copied is None or (program is not None and needed is None)) and now <= until:
            return
        self._awaiting.trial = None
        over = partial(TryOver, number=order.number)
        if copied is None or (program is not None and needed is None):
            self._take(over(ok=False, text=f"its code could not be copied within {order.limit_s:.0f} s"))
        elif program is None:
            self._take(over(ok=False, text=f"its code has no copy on this node: {copied.why}"))
        elif program.command_kind is CommandKind.EXEC:
            cwd = self._setup.spec.cwd
            command = (
                program.command
                if program.code is None
                else program.code.command(CommandKind.EXEC, program.command, cwd)
            )
            lacking = missing(CommandKind.EXEC, command, cwd)
            self._take(over(ok=lacking is None, text=f"{lacking.text}; {lacking.fix}" if lacking else ""))
        elif (share := free_share()) < MIN_TO_LOAD:
            self._take(over(ok=True, text=f"its imports were not tried: {share:.1%} of the memory is left"))
        else:
            try:
                self._launcher.attempt(order.number, program, needed or (), max(1.0, until - now))
            except OSError as error:
                self._take(over(ok=True, text=f"its imports were not tried: {error}"))

    # -- the controller ----------------------------------------------------------------------------

    def _on_message(self, message: FromController | Foreign) -> None:
        match message:
            case Foreign():
                self._note_once(f"{self._versions()}: {message.describe()} and is ignored")
                return
            case Refused(refused=kind):
                self._note_once(f"{self._versions()}: it refuses '{one_line(kind, 40)}'")
                return
            case Pong() | DrillReply() | UpdateReply() | StacksShown():
                return  # answers to questions that agents do not ask
            case Ack(epoch=epoch, seq=seq, protocol=protocol):
                if epoch >= self._state.epoch:
                    self._book.on_ack(seq)
                    self._controller_speaks = protocol
                    if protocol < PROTOCOL:
                        self._note_once(f"{self._versions()}: it may not know all that this agent says")
                self._take(EpochSeen(epoch=epoch))
            case _:
                self._take(message)
        self._link.on_answer(message.epoch, time.monotonic())

    def _versions(self) -> str:
        controller = "another" if self._controller_speaks is None else self._controller_speaks
        return f"this agent speaks protocol {PROTOCOL}, its controller {controller}"

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._book.note(text)

    def _follow_controller(self, now: float) -> None:
        silence_s, addresses = self._link.silence(now), (self._book.address, self._setup.node)
        self._orphan.tick(silence_s)
        place = ProbeTarget(addresses=tuple(filter(None, addresses)), port=self._liveness.port)
        self._takeover.tick(silence_s, self._link.controller, place)
        if self._link.wants_epoch(now):
            self._files.submit(partial(read_epoch, self._setup.job.epochs))
        if self._socket.endpoint:
            self._liveness.aim(self._socket.endpoint)
        if not self._setup.address and not self._book.address and self._socket.endpoint:
            self._learn_address(self._socket.endpoint)

    def _learn_address(self, endpoint: str) -> None:
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        try:
            self._book.address = local_address(host.strip("[]"), int(port))
        except OSError as error:
            self._book.note(f"no own address found on the way to {endpoint}: {error}; give --address")
        self._copies.pace_by(self._setup.data_address or self._book.address)
        self._heartbeat_wanted = True

    def _on_result(self, result: EpochRead | TailRead) -> None:
        if isinstance(result, TailRead):
            self._take(result)
        elif result.failed:
            self._link.on_epoch_failed()
        elif self._link.on_epoch(result.newest, time.monotonic()):
            controller = self._link.controller
            assert controller is not None
            self._take(EpochSeen(epoch=controller.epoch))
            self._socket.connect(controller.endpoints)
            self._book.forget()
            self._heartbeat_wanted = True

    def _heartbeat(self, now: float) -> None:
        for text in self._state.new_notes:
            self._book.note(text)
        self._state.new_notes.clear()
        if not self._heartbeat_wanted and now < self._heartbeat_due:
            return
        self._heartbeat_due = now + self._setup.spec.heartbeat_s
        if not self._socket.connected:
            self._heartbeat_wanted = True  # as soon as there is a connection
            return
        progress, seen = self._steps.read(now), self._inspection
        news = self._copies.news(progress, self._steps.keepless)
        self._tell_room(news.unkept)
        heartbeat = self._book.make(
            self._state,
            progress,
            now,
            news,
            seen.alerts(now),
            seen.traffic,
            self._deaths.still_s(self._state.killed, now),
            self._steps.start_phases,
            self._steps.spent,
            (self._steps.stride, self._steps.local_stride),
            self._steps.snapshots,
        )
        self._heartbeat_wanted = not self._socket.send(heartbeat)

    def _tell_room(self, unkept: str) -> None:
        """Say in the job's log that this node's memory has no room for snapshots, or has it again."""
        node = self._setup.node
        if unkept and not self._is_unkept:
            self._is_unkept = True
            self._book.tell(
                f"{node} has no room in memory for snapshots ({unkept}): until it has, a fault goes back to "
                "the newest checkpoint on storage; fix: remove what fills its memory (ls -lS /dev/shm)"
            )
        elif self._is_unkept and self._steps.all_keep:
            self._is_unkept = False
            self._book.tell(f"{node} has room in memory for snapshots again")

    # -- the state machine -------------------------------------------------------------------------

    def _take(self, stimulus: Stimulus) -> None:
        for instruction in self._state.handle(stimulus, time.monotonic()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendHeartbeat():
                self._heartbeat_wanted = True
            case StartLauncher():
                self._start_launcher()
            case Launch(release=""):
                self._spawn(instruction)
            case Launch(release=release):
                self._code.want(release)
                self._awaiting.launch = instruction, time.monotonic() + COPY_S
                self._follow_code(time.monotonic())
            case EndWorker(pid=pid, kill=True):
                self._launcher.kill(pid)
            case EndWorker(pid=pid):
                self._launcher.terminate(pid)
                self._gpus.prepare()
            case Inject():
                self._plant(instruction)
            case WatchGpus(workers=workers):
                self._gpus.ask(workers)
            case SweepGroups():
                self._launcher.sweep()
            case ReadTail(generation=generation, rank=rank):
                self._files.submit(partial(_tail, self._setup.job, generation, rank, time.time()))
            case RequestCheckpoint(step=step, hold_s=hold_s):
                self._steps.request_checkpoint(step, hold_s)
            case Pace(stride=stride, local_stride=local):
                self._heartbeat_wanted |= self._steps.set_stride(stride, local)
                self._copies.set_stride(stride)
            case Flush(step=step):
                self._ask_flush(step)
            case Save():
                self._copies.save(instruction, later=self._are_starting)
            case TakeStacks():
                pids = self._state.workers.living_pids
                look = partial(take_stacks, self._taker, self._setup.node, instruction, pids)
                if (taken := self._stacks.ask(instruction, look)) is not None:
                    self._socket.send(taken)
            case ProbeNodes():
                probe = partial(probe_nodes, self._setup.node, instruction)
                if (probed := self._probes.ask(instruction, probe)) is not None:
                    self._socket.send(probed)
            case Rehearse(release=""):
                self._rehearsals.start(instruction, time.monotonic())
            case Rehearse(release=release, limit_s=limit_s):
                self._code.want(release)
                self._awaiting.rehearsal = instruction, time.monotonic() + limit_s
            case TryRelease(release=release, limit_s=limit_s):
                self._code.want(release, with_imports=True)
                self._awaiting.trial = instruction, time.monotonic() + limit_s
            case EndRehearsal(watch_gpus=watch):
                pid = self._rehearsals.end()
                if watch:
                    self._gpus.ask((pid,) if pid else ())
            case Load():
                self._load(instruction)
            case RenewPort():
                self._renew_port()
            case ForgetRecords():
                self._steps.forget()
            case EndAgent(keep_copies=keep_copies):
                self._ended, self._keep_copies = True, keep_copies

    def _plant(self, order: Inject) -> None:
        """Carry out a drill, or keep the reason for the controller."""
        pid = self._state.workers.living_pids.get(order.rank)
        try:
            if order.signal and pid is not None:
                self._launcher.inject(pid, order.signal)
            else:
                drills.plant(order, pid, self._steps.path_of(order.rank))
        except drills.CannotDrill as error:
            self._book.cannot_drill(order.drill, str(error))
            self._heartbeat_wanted = True

    def _start_launcher(self) -> None:
        """Start it, when what it is to be prepared for is here."""
        code = self._setup.spec.code
        if not code:
            self._begin_launcher(None)
            return
        self._code.want(code)
        self._awaiting.launcher = time.monotonic() + COPY_S

    def _begin_launcher(self, program: RankProgram | None) -> None:
        try:
            self._launcher.start(program)
        except OSError as error:
            self._take(Gone(reason=f"the zygote cannot be started: {error}"))

    def _spawn(self, launch: Launch, program: RankProgram | None = None) -> None:
        try:
            folder = self._runtime.generation(launch.generation)
            self._steps.create(
                folder,
                launch.generation,
                launch.ranks,
                launch.announce_step,
                launch.stride,
                launch.local_stride,
            )
        except OSError as error:
            reason = f"no step records in {self._runtime.path}: {error}; is the node's memory full?"
            full = str(SHARED_MEMORY) if error.errno == errno.ENOSPC else ""
            for rank in launch.ranks:
                failed = SpawnFailed(generation=launch.generation, rank=rank, reason=reason, full=full)
                self._take(failed)
            return
        if launch.slot == 0 and (short := file_shortage(launch.world_size, "ranks at rank 0's store")):
            self._book.note(short)
        self._flush = -1
        self._gpus.end()
        self._oom_kills.begin()
        self._files.submit(partial(make_log_folders, self._setup.job, launch.generation, launch.ranks))
        self._next_logs = NextLogs(launch, time.monotonic())
        self._copies.launched(launch)  # parts of other nodes come in while the workers start
        spec, job = self._setup.spec, self._setup.job
        self._master_port = launch.master_port
        # For rank 0, which listens there; the next one is held when the order is under way.
        is_ours = launch.master_port == self._ports.port and launch.slot == 0
        listener = self._ports.open(BACKLOG) if is_ours else None
        order = rankenv.build_spawn(spec, job, launch, folder, self._copies.memory, program)
        self._modules = next((Path(worker.modules) for worker in order.workers if worker.modules), None)
        self._outside = next((Path(worker.outside) for worker in order.workers if worker.outside), None)
        self._code.launched(launch.release)
        self._book.release = launch.release
        self._launcher.spawn(order, listener)

    def _load(self, order: Load) -> None:
        why = ""
        if (share := free_share()) < MIN_TO_LOAD:
            why = f"{share:.1%} of the memory is left"
        else:
            try:
                self._launcher.load(order.number, order.modules)
            except OSError as error:
                why = str(error)
        if why:
            note = f"modules that the job imports are not imported before the next start: {why}"
            self._take(LoadOver(number=order.number, notes=(note,)))

    def _ask_flush(self, step: int) -> None:
        if step > self._copies.flush_over:  # else an order that was repeated before its effect was reported
            self._flush = step
            self._steps.ask_flush(step)
            self._copies.ask_flush(step, self._steps.keepless)

    def _renew_port(self) -> None:
        try:
            self._ports.renew()
        except OSError as error:
            self._book.note(f"{error}; the next launch may find its port taken")
        self._book.port = self._ports.port


def _tail(job: JobDirectory, generation: int, rank: int, ended: float) -> TailRead:
    """Read the last lines of a worker that had ``ended`` by the wall clock."""
    paths = tuple(job.worker_log(generation, rank, stream) for stream in ("err", "out"))
    lines = read_tail(paths)
    found = [path.stat() for path in paths if lines and path.exists()]
    wrote = next((one.st_mtime for one in found if one.st_size), None)
    quiet_s = None if wrote is None else max(0.0, ended - wrote)
    return TailRead(generation=generation, rank=rank, lines=lines, quiet_s=quiet_s)
