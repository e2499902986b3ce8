"""A launcher that only reports workers: for tests of agents without processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from slurm_robust.agent.launcher import Gone, LauncherMessage, LoadOver, TryOver
from slurm_robust.model.record import Record
from slurm_robust.worker.spawning import Exited, Fatal, RankProgram, Ready, Spawn, Spawned, WorkerSpec


class Behaviour(Record):
    """What a fake worker does."""

    exit_code: int | None = None  # with which it ends immediately; None: it lives until a signal ends it
    ignores_term: bool = False


@dataclass
class _Worker:
    generation: int
    rank: int
    behaviour: Behaviour
    stopped: bool = False
    ended: bool = False


class FakeLauncher:
    """A :class:`~slurm_robust.agent.launcher.Launcher` in memory.

    ``behave`` says what each worker does; ``fatal`` makes it unable to prepare, with that reason.
    ``lacking``: modules that no release can import here.
    """

    def __init__(
        self,
        behave: Callable[[Spawn, WorkerSpec], Behaviour] = lambda order, worker: Behaviour(),
        *,
        fatal: str = "",
        lacking: Collection[str] = (),
    ) -> None:
        self._behave = behave
        self._lacking = lacking
        self.attempts: list[tuple[RankProgram, tuple[str, ...]]] = []
        self._fatal = fatal
        self._messages: list[LauncherMessage] = []
        self._workers: dict[int, _Worker] = {}
        self._next_pid = 100_000_000  # beyond any real process id
        self._up = False
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.starts = 0
        self.loads: list[tuple[str, ...]] = []

    # -- the contract ------------------------------------------------------------------------------

    def start(self, program: RankProgram | None = None) -> None:
        """Start: the next read has Ready, or Fatal and Gone."""
        self.starts += 1
        self._up = True
        if self._fatal:
            self._tell(Fatal(reason=self._fatal))
            self.die()
        else:
            self._tell(Ready(import_s=0.0))

    def fileno(self) -> int:
        """Return a pipe's descriptor; -1 before the start and after Gone was read."""
        return self._read if self._up or self._messages else -1

    def read(self) -> list[LauncherMessage]:
        """Return everything reported since the last call."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        found, self._messages = self._messages, []
        return found

    def spawn(self, order: Spawn, listener: socket.socket | None = None) -> None:
        """Start each worker, and end it if that is its behaviour."""
        for worker in order.workers if self._up else ():
            self._next_pid += 1
            behaviour = self._behave(order, worker)
            self._workers[self._next_pid] = _Worker(order.generation, worker.rank, behaviour)
            self._tell(Spawned(generation=order.generation, rank=worker.rank, pid=self._next_pid))
            if behaviour.exit_code is not None:
                self._end(self._next_pid, code=behaviour.exit_code)

    def load(self, number: int, modules: tuple[str, ...]) -> None:
        """Import all modules immediately."""
        if self._up:
            self.loads.append(modules)
            self._tell(LoadOver(number=number))

    def attempt(self, number: int, program: RankProgram, needed: tuple[str, ...], limit_s: float) -> None:
        """Import all modules immediately, but those that cannot be."""
        if self._up:
            self.attempts.append((program, needed))
            why = next(
                (
                    f"module {name} cannot be imported on this node"
                    for name in needed
                    if name in self._lacking
                ),
                "",
            )
            trace = f"ModuleNotFoundError: {why}" if why else ""
            self._tell(TryOver(number=number, ok=not why, text=why, traceback=trace))

    def fork_writer(self) -> None:
        """Do nothing: there is nothing to fork."""

    def sweep(self) -> None:
        """Forget ended workers."""
        self._workers = {pid: worker for pid, worker in self._workers.items() if not worker.ended}

    def terminate(self, pid: int) -> None:
        """End the worker by TERM unless it ignores that; by KILL when it is stopped."""
        worker = self._workers.get(pid)
        if worker is not None and worker.stopped:
            self.kill(pid)
        elif worker is not None and not worker.behaviour.ignores_term:
            self._end(pid, number=signal.SIGTERM)

    def kill(self, pid: int) -> None:
        """End the worker by KILL."""
        self._end(pid, number=signal.SIGKILL)

    def inject(self, pid: int, number: int) -> None:
        """Send a signal: STOP stops, CONT continues, any other ends the worker."""
        worker = self._workers.get(pid)
        if worker is None:
            return
        if number in (signal.SIGSTOP, signal.SIGCONT):
            worker.stopped = number == signal.SIGSTOP
        else:
            self._end(pid, number=number)

    def close(self) -> None:
        """Close: all workers are gone."""
        self._up = False
        self._workers.clear()
        self._messages.clear()

    # -- what a test does to it --------------------------------------------------------------------

    @property
    def pids(self) -> dict[int, int]:
        """Rank to pid of the workers that live."""
        return {worker.rank: pid for pid, worker in self._workers.items() if not worker.ended}

    def die(self) -> None:
        """End the launcher, and its workers with it."""
        self._up = False
        self._workers.clear()
        self._tell(Gone(reason="the fake zygote ended by signal SIGKILL"))

    def _end(self, pid: int, *, code: int | None = None, number: int | None = None) -> None:
        worker = self._workers.get(pid)
        if worker is None or worker.ended:
            return
        worker.ended = True
        self._tell(
            Exited(
                generation=worker.generation,
                rank=worker.rank,
                pid=pid,
                ended=time.monotonic(),
                code=code,
                signal=number,
            )
        )

    def _tell(self, message: LauncherMessage) -> None:
        self._messages.append(message)
        os.write(self._write, b"x")
