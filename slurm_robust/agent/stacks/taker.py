"""Takes the stacks of all workers of a node, within a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from slurm_robust.agent.stacks import handler, kinds, proc, pyspy, recorder
from slurm_robust.agent.stacks.pyspy import CannotTake
from slurm_robust.agent.stacks.together import together
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Collective, ProcessKind, ProcessStacks, RankStacks, ThreadStack
from slurm_robust.worker.dump import RECORDER_SUFFIX, STACKS_SUFFIX

BY_PYSPY, BY_SIGNAL = "py-spy", "signal"

# Shares of the budget: of one run of py-spy, of all of them, and of everything. The rest is for the system.
_ONE_SHARE, _PYSPY_SHARE, _SHARE = 0.3, 0.6, 0.9

# States of proc_pid_stat(5); a signal wakes the first two.
_RUNNING, _SLEEPING, _UNINTERRUPTIBLE = "R", "S", "D"


class StackTaker:
    """Takes the stacks of workers and of the processes that fetch data or write checkpoints for them.

    By py-spy, which reads their memory and stops nothing; where it may not, by the handler that
    :mod:`slurm_robust.worker.dump` has installed in them. ``runtime`` is the agent's runtime folder, where
    the handlers write: needed only on a kernel that hides the workers' open files from the agent. With
    ``native`` the calls in libraries are there too, at the price of a pause of each process. ``program`` is
    py-spy, by default this environment's or that in PATH.
    """

    def __init__(self, runtime: Path | None = None, *, native: bool = False, program: str = "") -> None:
        self._runtime = runtime
        self._native = native
        self._program = program or pyspy.find_pyspy()

    def take(self, workers: Mapping[int, int], *, node: str, budget_s: float) -> tuple[RankStacks, ...]:
        """What each worker (rank to pid) does, within ``budget_s`` seconds whatever the processes do.

        Stops and continues no process (but see ``native``), and no signal is sent where none is handled.
        """
        taking = _Taking(self._program, self._native, node, budget_s)
        looks = taking.read_all(sorted(_candidates(workers), key=_urgency))
        ranks = [
            _Rank(
                rank=rank,
                looks=tuple(look for look in looks if look.rank == rank),
                known=self._known_file(rank),
            )
            for rank in workers
        ]
        return taking.finish_all(ranks)

    def _known_file(self, rank: int) -> Path | None:
        if self._runtime is None:
            return None
        return max(self._runtime.glob(f"gen-*/rank-{rank:05d}{STACKS_SUFFIX}"), default=None)


class _Look(Record):
    """A process of a rank and what was seen of it; ``source`` as in :class:`RankStacks`."""

    rank: int
    stacks: ProcessStacks
    source: str = ""

    def seen(self, threads: tuple[ThreadStack, ...], source: str) -> _Look:
        kind = self.stacks.kind
        if kind is ProcessKind.OTHER:
            kind = kinds.kind_by_stack(threads)
        stacks = msgspec.structs.replace(self.stacks, kind=kind, threads=threads, error="")
        return _Look(rank=self.rank, stacks=stacks, source=source)

    def failed(self, error: str) -> _Look:
        both = "; ".join(filter(None, (self.stacks.error, error)))
        return _Look(rank=self.rank, stacks=msgspec.structs.replace(self.stacks, error=both))


class _Rank(Record):
    """The looks at a rank's processes, the worker's first; ``known`` is the file of its handler."""

    looks: tuple[_Look, ...]
    rank: int
    known: Path | None


class _Taking:
    """One order and its deadlines."""

    def __init__(self, program: str, native: bool, node: str, budget_s: float) -> None:
        self._program = program
        self._native = native
        self._node = node
        self._began = time.monotonic()
        self._one_s = _ONE_SHARE * budget_s
        self._end_of_reading = self._began + _PYSPY_SHARE * budget_s
        self._deadline = self._began + _SHARE * budget_s

    def read_all(self, looks: Sequence[_Look]) -> tuple[_Look, ...]:
        """Read the memory of all processes."""
        return together(self._read, looks, deadline=self._end_of_reading, otherwise=_too_late)

    def finish_all(self, ranks: Sequence[_Rank]) -> tuple[RankStacks, ...]:
        """Ask the processes that could not be read, and the workers' flight recorders."""
        return together(self._finish, ranks, deadline=self._deadline, otherwise=self._stacks)

    def _read(self, look: _Look) -> _Look:
        pid, state = look.stacks.pid, look.stacks.state
        if not state or state in proc.DEAD:
            return look.failed("the process has ended")
        if not self._program:
            return look.failed("py-spy is not installed")
        deadline = min(time.monotonic() + self._one_s, self._end_of_reading)
        try:
            threads = pyspy.take(self._program, pid, deadline)
        except CannotTake as error:
            return look.failed(str(error))
        if self._native and state in (_RUNNING, _SLEEPING):
            try:
                threads = pyspy.take(self._program, pid, deadline, native=True)
            except CannotTake:
                pass  # what the interpreter calls is known
        return look.seen(threads, BY_PYSPY)

    def _finish(self, rank: _Rank) -> RankStacks:
        looks = tuple(self._ask(_settled(look), rank.known) for look in rank.looks)
        asked = msgspec.structs.replace(rank, looks=looks)
        return self._stacks(asked, self._collectives(looks[0].stacks, rank.known))

    def _stacks(self, rank: _Rank, collectives: tuple[Collective, ...] = ()) -> RankStacks:
        return RankStacks(
            rank=rank.rank,
            node=self._node,
            processes=tuple(look.stacks for look in rank.looks if look.stacks.kind is not ProcessKind.OTHER),
            collectives=collectives,
            source=next((look.source for look in rank.looks if look.source), ""),
            took_s=time.monotonic() - self._began,
        )

    def _ask(self, look: _Look, known: Path | None) -> _Look:
        if look.stacks.threads or look.stacks.state not in (_RUNNING, _SLEEPING):
            return look
        try:
            return look.seen(handler.take(look.stacks.pid, known, self._deadline), BY_SIGNAL)
        except CannotTake as error:
            return look.failed(str(error))

    def _collectives(self, worker: ProcessStacks, known: Path | None) -> tuple[Collective, ...]:
        # The server's threads are stopped with the others.
        if not worker.state or worker.state in proc.STOPPED | proc.DEAD:
            return ()
        try:
            file = proc.stacks_file(worker.pid, known)
        except OSError:
            return ()
        return recorder.take(file.with_suffix(RECORDER_SUFFIX), self._deadline) if file else ()


def _candidates(workers: Mapping[int, int]) -> Iterator[_Look]:
    table = proc.process_table()
    for rank, pid in workers.items():
        state = table[pid].state if pid in table else ""
        yield _Look(rank=rank, stacks=ProcessStacks(pid=pid, kind=ProcessKind.WORKER, state=state))
        for child in proc.descendants(table, pid):
            kind = kinds.kind_by_name(child.name)
            yield _Look(rank=rank, stacks=ProcessStacks(pid=child.pid, kind=kind, state=child.state))


def _settled(look: _Look) -> _Look:
    """With its state of now where it was in the kernel: that may have been for a page of its program."""
    if look.stacks.state != _UNINTERRUPTIBLE:
        return look
    process = proc.read_process(look.stacks.pid)
    stacks = msgspec.structs.replace(look.stacks, state=process.state if process else "")
    return msgspec.structs.replace(look, stacks=stacks)


def _too_late(look: _Look) -> _Look:
    return look.failed("it was not read in time")


def _urgency(look: _Look) -> int:
    """Workers first; last what may be anything, such as dozens of compilers."""
    return (ProcessKind.WORKER, ProcessKind.LOADER, ProcessKind.OTHER).index(look.stacks.kind)
