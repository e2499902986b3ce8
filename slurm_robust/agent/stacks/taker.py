"""Takes the stacks of all workers of a node, within a budget, when the controller orders it."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import structs

from slurm_robust.agent.stacks import handler, pyspy, ras, recorder
from slurm_robust.agent.stacks.pyspy import CannotTake
from slurm_robust.agent.stacks.recorder import Recorded
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import (
    Absent,
    Frame,
    ProcessKind,
    ProcessStacks,
    RankStacks,
    ThreadStack,
)
from slurm_robust.util import proc
from slurm_robust.util.threads import BackgroundCall, map_until
from slurm_robust.wire.messages import StacksTaken, TakeStacks
from slurm_robust.worker.dump import RECORDER_SUFFIX, STACKS_SUFFIX

BY_PYSPY, BY_SIGNAL = "py-spy", "signal"

# Shares of the budget: of one run of py-spy and of one answer, however many hang; and when all have read, all
# were asked, and nothing is waited for any more. The rest is for the system.
_READ_SHARE, _ANSWER_SHARE = 0.3, 0.15
_ALL_READ, _ALL_ASKED, _END = 0.6, 0.85, 0.95

_NOTHING = Recorded()

# States of proc_pid_stat(5); a signal wakes the first two.
_RUNNING, _SLEEPING, _UNINTERRUPTIBLE = "R", "S", "D"


class StackTaking(Protocol):
    """Takes stacks on this machine: :class:`StackTaker`."""

    def take(
        self, workers: Mapping[int, int], *, node: str, budget_s: float, native: Collection[int] = ()
    ) -> tuple[RankStacks, ...]:
        """Take what each worker (rank to pid) and its helpers do, within ``budget_s``. Changes nothing.

        For the ranks ``native``, the calls in libraries are read, too.
        """
        ...


class StackTaker:
    """Takes the stacks of workers and of the processes that fetch data or write checkpoints for them.

    It uses py-spy, which reads their memory and stops nothing; if py-spy is not allowed to, the handler that
    :mod:`slurm_robust.worker.dump` has installed in them. ``runtime`` is the agent's runtime folder, into
    which the handlers write: needed only on a kernel that hides the workers' open files from the agent.
    ``program`` is py-spy, by default the one of this environment or in PATH.
    """

    def __init__(self, runtime: Path | None = None, *, program: str = "") -> None:
        self._runtime = runtime
        self._program = program or pyspy.find_pyspy()

    def take(
        self, workers: Mapping[int, int], *, node: str, budget_s: float, native: Collection[int] = ()
    ) -> tuple[RankStacks, ...]:
        """Take what each worker (rank to pid) does, within ``budget_s`` seconds whatever the processes do.

        For the ranks ``native``, the calls in libraries are read, too: py-spy stops their processes some
        tenths of a second. No other process is stopped, and none gets a signal that it does not handle.
        """
        taking = _Taking(self._program, frozenset(native), node, budget_s)
        missed = taking.ask_ras() if 0 in workers else None
        samples = taking.read_all(sorted(_candidates(workers), key=_urgency))
        ranks = [
            _Rank(
                rank=rank,
                samples=tuple(sample for sample in samples if sample.rank == rank),
                known=self._known_file(rank),
            )
            for rank in workers
        ]
        taken = taking.finish_all(ranks)
        if missed is None:
            return taken
        absent = taking.wait_for(missed)
        return tuple(structs.replace(stack, absent=absent) if stack.rank == 0 else stack for stack in taken)

    def _known_file(self, rank: int) -> Path | None:
        if self._runtime is None:
            return None
        return max(self._runtime.glob(f"gen-*/rank-{rank:05d}{STACKS_SUFFIX}"), default=None)


class _Sample(Record):
    """A process of a rank and what was seen of it."""

    rank: int
    stacks: ProcessStacks
    source: str = ""  # as in :class:`RankStacks`

    def seen(self, threads: tuple[ThreadStack, ...], source: str) -> _Sample:
        kind = self.stacks.kind
        if kind is ProcessKind.OTHER:
            kind = kind_by_stack(threads)
        stacks = structs.replace(self.stacks, kind=kind, threads=threads, error="")
        return _Sample(rank=self.rank, stacks=stacks, source=source)

    def failed(self, error: str) -> _Sample:
        both = "; ".join(filter(None, (self.stacks.error, error)))
        return _Sample(rank=self.rank, stacks=structs.replace(self.stacks, error=both))


class _Rank(Record):
    """What was seen of one rank."""

    samples: tuple[_Sample, ...]  # one for each of its processes, the worker's first
    rank: int
    known: Path | None  # the file of its handler


class _Taking:
    """One order and its deadlines."""

    def __init__(self, program: str, native: frozenset[int], node: str, budget_s: float) -> None:
        self._program = program
        self._native = native
        self._node = node
        self._budget_s = budget_s
        self._began = time.monotonic()

    def read_all(self, samples: Sequence[_Sample]) -> tuple[_Sample, ...]:
        """Read the memory of all processes."""
        late = "it was not read in time"
        return map_until(
            self._at(_ALL_READ), self._read, samples, otherwise=lambda sample: sample.failed(late)
        )

    def finish_all(self, ranks: Sequence[_Rank]) -> tuple[RankStacks, ...]:
        """Ask the processes that could not be read, and the workers' flight recorders."""
        return map_until(self._at(_END), self._finish, ranks, otherwise=self._stacks)

    def ask_ras(self) -> BackgroundCall[tuple[Absent, ...]] | None:
        """Ask NCCL which processes it misses, beside everything else: it waits for the silent ones.

        To look up a name may take longer than any deadline. Returns None if no more threads are allowed.
        """
        deadline = self._at(_END)
        try:
            return BackgroundCall("ras", lambda: ras.take(os.environ, deadline))
        except RuntimeError:
            return None

    def wait_for(self, answer: BackgroundCall[tuple[Absent, ...]]) -> tuple[Absent, ...]:
        """Return the answer to :meth:`ask_ras`; nothing if that has not come by the end."""
        try:
            return answer.result(max(0.0, self._at(_END) - time.monotonic()))
        except TimeoutError:
            return ()

    def _read(self, sample: _Sample) -> _Sample:
        pid, state = sample.stacks.pid, sample.stacks.state
        if not state or state in proc.DEAD:
            return sample.failed("the process has ended")
        if not self._program:
            return sample.failed("py-spy is not installed")
        deadline = self._soon(_READ_SHARE, _ALL_READ)
        try:
            threads = pyspy.take(self._program, pid, deadline)
        except CannotTake as error:
            return sample.failed(str(error))
        if sample.rank in self._native and state in (_RUNNING, _SLEEPING):
            try:
                threads = pyspy.take(self._program, pid, deadline, native=True)
            except CannotTake:
                pass  # what the interpreter calls is known
        return sample.seen(threads, BY_PYSPY)

    def _finish(self, rank: _Rank) -> RankStacks:
        recorded = self._recorded(rank.samples[0].stacks, rank.known)
        samples = tuple(self._ask(_settled(sample), rank.known) for sample in rank.samples)
        return self._stacks(structs.replace(rank, samples=samples), recorded)

    def _stacks(self, rank: _Rank, recorded: Recorded = _NOTHING) -> RankStacks:
        return RankStacks(
            rank=rank.rank,
            node=self._node,
            processes=tuple(
                sample.stacks for sample in rank.samples if sample.stacks.kind is not ProcessKind.OTHER
            ),
            collectives=recorded.collectives,
            idle=recorded.idle,
            source=next((sample.source for sample in rank.samples if sample.source), ""),
            took_s=time.monotonic() - self._began,
            native=rank.rank in self._native,
        )

    def _ask(self, sample: _Sample, known: Path | None) -> _Sample:
        if sample.stacks.threads or sample.stacks.state not in (_RUNNING, _SLEEPING):
            return sample
        deadline = self._soon(_ANSWER_SHARE, _ALL_ASKED)
        try:
            return sample.seen(handler.take(sample.stacks.pid, known, deadline), BY_SIGNAL)
        except CannotTake as error:
            return sample.failed(str(error))

    def _recorded(self, worker: ProcessStacks, known: Path | None) -> Recorded:
        # The server's threads are stopped with the others.
        if not worker.state or worker.state in proc.STOPPED | proc.DEAD:
            return _NOTHING
        try:
            file = handler.stacks_file(worker.pid, known)
        except OSError:
            return _NOTHING
        if file is None:
            return _NOTHING
        return recorder.take(file.with_suffix(RECORDER_SUFFIX), self._soon(_ANSWER_SHARE, _ALL_ASKED))

    def _at(self, share: float) -> float:
        return self._began + share * self._budget_s

    def _soon(self, share: float, latest: float) -> float:
        return min(time.monotonic() + share * self._budget_s, self._at(latest))


def _candidates(workers: Mapping[int, int]) -> Iterator[_Sample]:
    table = proc.process_table()
    for rank, pid in workers.items():
        state = table[pid].state if pid in table else ""
        children = proc.descendants(table, pid)
        used_s = sum(p.cpu_s for p in (table[pid], *children)) if pid in table else None
        cpu_s = used_s + proc.waited_s(pid) if used_s is not None else None
        worker = ProcessStacks(pid=pid, kind=ProcessKind.WORKER, state=state, cpu_s=cpu_s)
        yield _Sample(rank=rank, stacks=worker)
        for child in children:
            kind = kind_by_name(child.name)
            yield _Sample(rank=rank, stacks=ProcessStacks(pid=child.pid, kind=kind, state=child.state))


def _settled(sample: _Sample) -> _Sample:
    """Add its state of now if it was in the kernel: that may have been for a page of its program."""
    if sample.stacks.state != _UNINTERRUPTIBLE:
        return sample
    process = proc.read_process(sample.stacks.pid)
    stacks = structs.replace(sample.stacks, state=process.state if process else "")
    return structs.replace(sample, stacks=stacks)


def _urgency(sample: _Sample) -> int:
    """Return a sort key: workers first, last what may be anything, such as dozens of compilers."""
    return (ProcessKind.WORKER, ProcessKind.LOADER, ProcessKind.OTHER).index(sample.stacks.kind)


_LOADER_NAME = "pt_data_worker"
"""The name that torch.utils.data gives its worker processes."""

_PROCESS_FILE = "multiprocessing/process.py"
_LOADER_FILE = "torch/utils/data/_utils/worker.py"
_WRITER_WORD = "checkpoint"


def kind_by_name(name: str) -> ProcessKind:
    """Return the kind by the process's name; OTHER may still be anything."""
    return ProcessKind.LOADER if name == _LOADER_NAME else ProcessKind.OTHER


def kind_by_stack(threads: Iterable[ThreadStack]) -> ProcessKind:
    """Return the kind by the first function of a process of ``multiprocessing``.

    A writer's is in a file of torch.distributed.checkpoint, of a library's ``checkpointing`` or of ours.
    """
    file = next((entry.file for thread in threads if thread.is_main and (entry := _entry(thread))), "")
    if file.endswith(_LOADER_FILE):
        return ProcessKind.LOADER
    return ProcessKind.WRITER if _WRITER_WORD in file else ProcessKind.OTHER


def _entry(thread: ThreadStack) -> Frame | None:
    # Further out are the calls of the worker that has forked it: those say nothing about the process.
    for inner, outer in zip(thread.frames, thread.frames[1:], strict=False):
        # py-spy names the class too, the handler does not.
        if outer.file.endswith(_PROCESS_FILE) and outer.function.rpartition(".")[2] == "run":
            return inner
    return None


def take_stacks(
    taker: StackTaking, node: str, question: TakeStacks, workers: Mapping[int, int]
) -> StacksTaken:
    """Answer ``question`` about ``workers`` (rank to pid)."""
    stacks = taker.take(workers, node=node, budget_s=question.budget_s, native=question.native)
    return StacksTaken(node=node, number=question.number, generation=question.generation, stacks=stacks)
