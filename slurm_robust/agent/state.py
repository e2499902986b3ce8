"""The agent's state machine: stimuli in, instructions out. No clock, no process, no file.

The workers of at most one generation exist at a time. Orders are idempotent, because the controller
repeats them until a heartbeat shows that they were carried out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from msgspec import structs

from slurm_robust.agent.launcher import Gone, LoadOver, TryOver
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
    ReleaseTried,
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
from slurm_robust.model import startup
from slurm_robust.model.exits import WorkerError, WorkerExit
from slurm_robust.model.job import LEAVING_S
from slurm_robust.model.standby import Rehearsal, RehearsalState
from slurm_robust.policy.leaving import STAY_LEAST_S
from slurm_robust.wire.messages import (
    Flush,
    Inject,
    Launch,
    Load,
    Order,
    Pace,
    Phase,
    ProbeNodes,
    Rehearse,
    RequestCheckpoint,
    Save,
    Shutdown,
    Stay,
    Stop,
    TakeStacks,
    Tried,
    TryRelease,
)
from slurm_robust.worker.spawning import Exited, Fatal, Ready, Spawned, SpawnFailed


@dataclass
class Worker:
    """One rank."""

    rank: int
    pid: int | None = None  # None while its start is ordered and not confirmed
    ended: float = 0.0  # monotonic seconds, when there is an exit
    exit: WorkerExit | None = None

    def bury_unstarted(self, reason: str, now: float, full: str = "") -> None:
        """Record that it could not be started; ``full``: as in :class:`.spawning.SpawnFailed`."""
        error = WorkerError(type="LaunchError", message=reason, full=full)
        self.ended, self.exit = now, WorkerExit(rank=self.rank, code=1, error=error)


class Workers(dict[int, Worker]):
    """The workers of one generation on this node, by rank: all that were ordered, ended ones too."""

    @classmethod
    def ordered(cls, ranks: Iterable[int]) -> Workers:
        """Make the workers of a launch that was just ordered."""
        return cls({rank: Worker(rank) for rank in ranks})

    @property
    def living(self) -> list[Worker]:
        """The workers that have not ended."""
        return [worker for worker in self.values() if worker.exit is None]

    @property
    def living_pids(self) -> dict[int, int]:
        """Process ids by rank of the workers that were started and have not ended."""
        return {worker.rank: worker.pid for worker in self.living if worker.pid is not None}

    @property
    def are_starting(self) -> bool:
        """Whether the start of any is not confirmed."""
        return any(worker.pid is None for worker in self.living)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of all workers that were started."""
        return tuple(worker.pid for worker in self.values() if worker.pid is not None)

    @property
    def last_end(self) -> float:
        """When the last one ended, if all have."""
        return max(worker.ended for worker in self.values())

    def exits(self, now: float) -> tuple[WorkerExit, ...]:
        """Return how they ended, with their age at ``now``."""
        return tuple(
            structs.replace(worker.exit, age_s=max(0.0, now - worker.ended))
            for worker in self.values()
            if worker.exit is not None
        )


# Figures of others: 0.4 to 0.8 s for device memory, more than 30 s in bad cases (sgl-project/sglang#31871).
GPUS_S = 60.0


class Freeing:
    """The time from the end of workers until nothing of theirs is left on the GPUs, 60 s at most.

    Decides only; times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._held = ""

    @property
    def deadline(self) -> float | None:
        """When waiting is over in any case; None while nothing is waited for."""
        return None if self._since is None else self._since + GPUS_S

    def begin(self, now: float) -> None:
        """Begin to wait: the workers have ended."""
        self._since, self._held = now, "the driver does not answer"

    def hold(self, held: str) -> None:
        """Remember what they still hold, as a text for people."""
        self._held = held

    def end(self, now: float) -> float:
        """End the wait and return how long it took."""
        since, self._since = self._since, None
        return 0.0 if since is None else now - since

    def complaint(self) -> str:
        """Say that waiting ends at its bound."""
        return f"GPUs are not free {GPUS_S:.0f} s after their workers ended: {self._held}"


LAUNCHER_STARTS = 3
# A launcher that lived this long did not fail at its start: its end is counted anew.
LAUNCHER_PROVEN_S = 600.0
_EVERYTHING = 2**62


class AgentState:
    """All that an agent knows of its workers; changed by :meth:`handle` only.

    Times are monotonic seconds given by the caller.
    """

    def __init__(self, *, kill_wait_s: float, waits_for_gpus: Callable[[], bool] = lambda: False) -> None:
        """``waits_for_gpus``: whether there are GPUs that ended workers may still hold."""
        self.epoch = 0
        self.phase = Phase.IDLE
        self.generation = 0
        self.ready = False
        self.fatal = ""
        self.workers = Workers()
        self.timings: dict[str, float] = {}  # of start phases that are not the workers' own
        self.rehearsal: Rehearsal | None = None
        self.loaded = 0  # the newest order to load modules that is over
        self._load_ordered = 0
        self.tried: Tried | None = None
        self._try_ordered = 0
        self._try_began = 0.0
        self.new_notes: list[str] = []  # the caller takes them out
        self._kill_wait_s = kill_wait_s
        self._stopped_through = 0
        self._pending: Launch | None = None
        self._ordered = 0.0  # when the launch in progress was ordered
        self._stop_began: float | None = None
        self._kill_at: float | None = None
        self._killed_at = 0.0
        self._give_up_at: float | None = None
        self._waits_for_gpus = waits_for_gpus
        self._freeing = Freeing()
        self._ending = False
        self.termed = False  # by Slurm
        self.warned = False  # by Slurm, of the end of the run; the caller sets it
        self._stays_until = -math.inf  # set if only Slurm has told it to end
        self._is_shut_down = False  # by the controller
        # Only an order to end says that the job does not come back; the end of a step may be a requeue.
        self._keep_copies = True
        self._launcher_failures = 0
        self._ready_since = 0.0

    # -- questions ---------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When a Ticked is due at the latest; None when only stimuli matter."""
        stays = self._stays_until if self._ending and not self.workers.living else None
        limits = (self._kill_at, self._give_up_at, self._freeing.deadline, stays)
        times = [t for t in limits if t is not None]
        return min(times, default=None)

    @property
    def killed(self) -> tuple[int, ...]:
        """Pids of workers that got SIGKILL and are still there."""
        if self._stop_began is None or self._kill_at is not None:
            return ()
        return tuple(self.workers.living_pids.values())

    # -- the one way to change ---------------------------------------------------------------------

    def handle(self, stimulus: Stimulus, now: float) -> list[Instruction]:
        """Take in ``stimulus`` at time ``now``; what must be done about it, in this order."""
        match stimulus:
            case EpochSeen(epoch=epoch):
                self.epoch = max(self.epoch, epoch)
                return []
            case Ready():
                return self._on_ready(stimulus, now)
            case Fatal(reason=reason):
                self.fatal, self.ready = reason, False
                return [SendHeartbeat()]
            case Spawned():
                return self._on_spawned(stimulus, now)
            case SpawnFailed():
                return self._on_spawn_failed(stimulus, now)
            case Exited():
                return self._on_exited(stimulus, now)
            case LoadOver():
                return self._on_load_over(stimulus)
            case Gone(reason=reason):
                return self._on_gone(reason, now)
            case TailRead():
                return self._on_tail(stimulus)
            case GpusReported(held=held):
                return self._on_gpus(held, now)
            case RehearsalOver(rehearsal=rehearsal, pid=pid):
                return self._on_rehearsal_over(rehearsal, pid, now)
            case TryOver(number=number, ok=ok, text=text, traceback=trace):
                took_s = round(now - self._try_began, 1)
                tried = Tried(number=number, ok=ok, text=text, traceback=trace, took_s=took_s)
                return self.handle(ReleaseTried(tried=tried), now)
            case ReleaseTried(tried=tried):
                self.tried = tried if tried.number == self._try_ordered else self.tried
                return [SendHeartbeat()]
            case TermCame(grace_s=grace_s):
                self.termed = True
                self._stays_until = max(self._stays_until, now + STAY_LEAST_S)
                return [*self._shut_down(grace_s, now), SendHeartbeat()]
            case Ticked():
                return self._on_tick(now)
            case _:
                return self._on_order(stimulus, now)

    # -- orders ------------------------------------------------------------------------------------

    def _on_order(self, order: Order, now: float) -> list[Instruction]:
        if order.epoch < self.epoch:
            return []
        self.epoch = order.epoch
        match order:
            case Launch():
                return self._on_launch(order, now)
            case Stop(generation=generation, grace_s=grace_s):
                return self._stop(generation, grace_s, now)
            case Shutdown(grace_s=grace_s, keep_copies=keep_copies):
                self._keep_copies, self._is_shut_down = keep_copies, True
                return self._shut_down(grace_s, now)
            case RequestCheckpoint() | Pace() | Flush() | TakeStacks():
                runs = order.generation == self.generation and self.phase is Phase.RUNNING
                return [order] if runs else []
            case ProbeNodes():
                return [order]
            case Save():
                return [order]  # workers leave images alone that are being read
            case Stay(for_s=for_s):
                self._stays_until = now + for_s
                return []
            case Rehearse():
                return self._on_rehearse(order)
            case Load(number=number):
                if number <= self._load_ordered or self._ending or not self.ready:
                    return []
                self._load_ordered = number
                return [order]
            case TryRelease(number=number):
                if number <= self._try_ordered or self._ending or self.fatal:
                    return []
                self._try_ordered, self._try_began = number, now
                return [order]
            case Inject():
                return [order]

    def _on_launch(self, launch: Launch, now: float) -> list[Instruction]:
        known = self._pending.generation if self._pending else self.generation
        if self._ending or self.fatal or launch.generation <= max(known, self._stopped_through):
            return []
        self._pending, self._ordered = launch, now
        if not self.workers.living:
            return [*self._end_rehearsal(now), *self._begin(now)]
        # Their generation is over for the controller, so there is nothing to be gentle for.
        self.new_notes.append(
            f"generation {launch.generation} was ordered while workers of generation "
            f"{self.generation} lived: they were killed"
        )
        return self._stop_workers(0.0, now)

    def _begin(self, now: float) -> list[Instruction]:
        """Start the pending launch, for which no worker stands in the way."""
        launch = self._pending
        assert launch is not None
        done: list[Instruction] = [SweepGroups()] if self.workers else []
        self.workers = Workers()
        self.generation, self.phase = launch.generation, Phase.STARTING
        done.append(ForgetRecords())
        if self._freeing.deadline is not None:
            self.phase = Phase.FREEING
        elif self.ready:
            self._pending = None
            self.workers = Workers.ordered(launch.ranks)
            done.append(launch)
            if launch.slot == 0:
                done.append(RenewPort())
        return [*done, SendHeartbeat()]

    def _stop(self, generation: int, grace_s: float, now: float) -> list[Instruction]:
        self._stopped_through = max(self._stopped_through, generation)
        if self._pending is not None and self._pending.generation <= generation:
            self._pending = None
            if not self.workers.living:
                self.phase = Phase.IDLE
                return [SendHeartbeat()]
        if self.workers.living:
            return self._stop_workers(grace_s, now) if self.generation <= generation else []
        if self.generation < generation < _EVERYTHING:
            # Nothing of that generation ever was here, which is as good as stopped.
            self.generation, self.phase = generation, Phase.IDLE
            done: list[Instruction] = [SweepGroups()] if self.workers else []
            self.workers = Workers()
            return [*done, ForgetRecords(), SendHeartbeat()]
        if self.generation <= generation and self.workers:
            return [SweepGroups(), SendHeartbeat()]
        return [SendHeartbeat()]

    def _stop_workers(self, grace_s: float, now: float) -> list[Instruction]:
        if self._stop_began is not None:
            if self._kill_at is not None:
                self._kill_at = min(self._kill_at, now + grace_s)
            elif self._ending:
                self._give_up_at = min(self._give_up_at or math.inf, now + LEAVING_S)
            return []
        self.phase = Phase.STOPPING
        self._stop_began, self._kill_at = now, now + grace_s
        done: list[Instruction] = [EndWorker(pid=pid) for pid in self.workers.living_pids.values()]
        if grace_s <= 0:
            done = self._kill_all(now)
        return [*self._end_rehearsal(now), *done, SendHeartbeat()]

    def _shut_down(self, grace_s: float, now: float) -> list[Instruction]:
        self._ending = True
        self._pending = None
        self._stopped_through = _EVERYTHING
        if self.workers.living:
            return self._stop_workers(grace_s, now)
        return [*self._end_rehearsal(now), *self._end(now)]

    def _end(self, now: float) -> list[Instruction]:
        """End, unless the controller may need what is here: only Slurm has given the order."""
        if not self._is_shut_down and now < self._stays_until:
            return [SendHeartbeat()]
        return [SendHeartbeat(), EndAgent(keep_copies=self._keep_copies)]

    # -- rehearsals --------------------------------------------------------------------------------

    @property
    def rehearses(self) -> bool:
        """Whether a rehearsal runs."""
        return self.rehearsal is not None and self.rehearsal.state is RehearsalState.RUNNING

    def _on_rehearse(self, order: Rehearse) -> list[Instruction]:
        known = self.rehearsal.number if self.rehearsal is not None else 0
        is_taken = bool(self.workers.living) and not order.beside
        if is_taken or self._pending or self._ending or self.fatal or order.number <= known:
            return []
        self.rehearsal = Rehearsal(number=order.number, state=RehearsalState.RUNNING, release=order.release)
        return [order, SendHeartbeat()]

    def _end_rehearsal(self, now: float) -> list[Instruction]:
        """End the rehearsal: the node is needed for something else."""
        if self.rehearsal is None or not self.rehearses:
            return []
        self.rehearsal = structs.replace(self.rehearsal, state=RehearsalState.ENDED)
        watch = not self._ending and not self.workers.living and self._waits_for_gpus()
        if watch:
            self._freeing.begin(now)
        return [EndRehearsal(watch_gpus=watch)]

    def _on_rehearsal_over(self, rehearsal: Rehearsal, pid: int, now: float) -> list[Instruction]:
        if self.rehearsal is None or not self.rehearses or rehearsal.number != self.rehearsal.number:
            return []
        self.rehearsal = structs.replace(rehearsal, release=self.rehearsal.release)
        pids = (pid,) if pid and not self.workers.living else ()  # beside workers it had no GPU
        return [*self._watch_gpus(pids, now), SendHeartbeat()]

    def _on_load_over(self, over: LoadOver) -> list[Instruction]:
        self.loaded = max(self.loaded, over.number)
        self.new_notes.extend(over.notes)
        return [SendHeartbeat()]

    # -- the launcher's news -----------------------------------------------------------------------

    def _on_ready(self, ready: Ready, now: float) -> list[Instruction]:
        self.ready, self._ready_since = True, now
        self.timings[startup.ZYGOTE] = ready.import_s
        self.new_notes.extend(ready.notes)
        if self._pending is not None and not self.workers.living:
            return self._begin(now)
        return [SendHeartbeat()]

    def _on_spawned(self, spawned: Spawned, now: float) -> list[Instruction]:
        worker = self.workers.get(spawned.rank)
        if worker is None or spawned.generation != self.generation:
            return [EndWorker(pid=spawned.pid, kill=True)]  # of no generation that is wanted
        worker.pid = spawned.pid
        if self.phase is Phase.STOPPING:
            return [EndWorker(pid=spawned.pid, kill=self._kill_at is None)]
        return self._if_all_started(now)

    def _on_spawn_failed(self, failed: SpawnFailed, now: float) -> list[Instruction]:
        worker = self.workers.get(failed.rank)
        if worker is None or failed.generation != self.generation:
            return []
        worker.bury_unstarted(failed.reason, now, failed.full)
        return [*self._if_all_started(now), *self._if_all_ended(now), SendHeartbeat()]

    def _on_exited(self, exited: Exited, now: float) -> list[Instruction]:
        worker = self.workers.get(exited.rank)
        if worker is None or worker.pid != exited.pid or exited.generation != self.generation:
            return []
        worker.ended = exited.ended
        # A worker that we end ourselves does not end for want of memory, of its port or of room.
        ours = self.phase is Phase.STOPPING
        worker.exit = WorkerExit(
            rank=exited.rank,
            code=exited.code,
            signal=exited.signal,
            error=exited.error,
            oom="" if ours else exited.oom,
            taken="" if ours else exited.taken,
            full="" if ours else exited.full,
        )
        done: list[Instruction] = [SendHeartbeat()]
        if worker.exit.failed and self.phase is not Phase.STOPPING:
            done.append(ReadTail(generation=self.generation, rank=exited.rank))
        return [*self._if_all_ended(now), *done]

    def _on_gone(self, reason: str, now: float) -> list[Instruction]:
        self.ready = False
        self.loaded = self._load_ordered  # what was being imported ended with it
        done: list[Instruction] = []
        for worker in self.workers.living:
            if worker.pid is None:
                worker.bury_unstarted(reason, now)
                continue
            # The kernel kills the worker with its parent; what it started itself needs us.
            done.append(EndWorker(pid=worker.pid, kill=True))
            worker.ended, worker.exit = now, WorkerExit(rank=worker.rank, signal=9)
        done.extend(self._if_all_ended(now))
        if self._ending or self.fatal:
            return [*done, SendHeartbeat()]
        if self._ready_since and now - self._ready_since > LAUNCHER_PROVEN_S:
            self._launcher_failures = 0
        self._launcher_failures += 1
        if self._launcher_failures >= LAUNCHER_STARTS:
            self.fatal = f"{reason}, {self._launcher_failures} times; no further workers are started here"
            return [*done, SendHeartbeat()]
        self.new_notes.append(f"{reason}; it is started again")
        return [*done, StartLauncher(), SendHeartbeat()]

    def _on_tail(self, tail: TailRead) -> list[Instruction]:
        worker = self.workers.get(tail.rank)
        if worker is None or worker.exit is None or tail.generation != self.generation or not tail.lines:
            return []
        worker.exit = structs.replace(worker.exit, tail=tail.lines, quiet_s=tail.quiet_s)
        return [SendHeartbeat()]

    def _on_gpus(self, held: str, now: float) -> list[Instruction]:
        if held:
            self._freeing.hold(held)
            return []
        if self._freeing.deadline is not None:
            self.timings[startup.GPUS] = self._freeing.end(now)
        return self._begin(now) if self._pending is not None and not self.workers.living else []

    # -- time --------------------------------------------------------------------------------------

    def _on_tick(self, now: float) -> list[Instruction]:
        if self._kill_at is not None and now >= self._kill_at:
            return self._kill_all(now)
        if self._give_up_at is not None and now >= self._give_up_at:
            self._give_up_at = None
            stuck = ", ".join(f"rank {w.rank} (pid {w.pid})" for w in self.workers.living)
            self.new_notes.append(
                f"unkillable: {stuck} of generation {self.generation} still there "
                f"{now - self._killed_at:.0f} s after SIGKILL; a device or file system hangs"
            )
            return self._end(now) if self._ending else [SendHeartbeat()]
        if self._ending and not self.workers.living and now >= self._stays_until:
            return self._end(now)
        if self._freeing.deadline is not None and now >= self._freeing.deadline:
            self.new_notes.append(self._freeing.complaint())
            return self._on_gpus("", now)
        return []

    def _kill_all(self, now: float) -> list[Instruction]:
        patience_s = min(self._kill_wait_s, LEAVING_S) if self._ending else self._kill_wait_s
        self._kill_at, self._killed_at, self._give_up_at = None, now, now + patience_s
        return [EndWorker(pid=pid, kill=True) for pid in self.workers.living_pids.values()]

    # -- transitions that several stimuli lead to --------------------------------------------------

    def _if_all_started(self, now: float) -> list[Instruction]:
        if self.phase is not Phase.STARTING or self.workers.are_starting:
            return []
        self.phase = Phase.RUNNING
        self.timings[startup.LAUNCH] = now - self._ordered
        return [SendHeartbeat()]

    def _if_all_ended(self, now: float) -> list[Instruction]:
        if not self.workers or self.workers.living:
            return []
        watch, done = self._watch_gpus(self.workers.pids, now), list[Instruction]()
        for phase in (startup.STOP, startup.GPUS):
            self.timings.pop(phase, None)  # of an end before this one
        if self._stop_began is not None:
            self.timings[startup.STOP] = max(0.0, self.workers.last_end - self._stop_began)
            done.append(SweepGroups())
        self._stop_began = self._kill_at = self._give_up_at = None
        self.phase = Phase.ENDED
        if self._pending is not None:
            return [*watch, *self._begin(now)]  # sweeps as well
        if self._ending:
            return [*done, *self._end(now)]
        return [*watch, *done]

    def _watch_gpus(self, pids: tuple[int, ...], now: float) -> list[Instruction]:
        """Watch the GPUs: what these workers held must be free before others are started."""
        if not pids or self._ending or not self._waits_for_gpus():
            return []
        self._freeing.begin(now)
        return [WatchGpus(workers=pids)]
