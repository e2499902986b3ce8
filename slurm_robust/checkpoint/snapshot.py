"""Snapshots of a rank into its node's memory, mostly taken while the next step already computes.

:meth:`Snapshotter.take` copies immediately what the next forward and backward pass may change, and leaves
*late* tensors (parameters and optimizer state, which nothing but the optimizer changes) to a thread that
copies without the interpreter lock, or to a GPU's copy engine. A hook in front of every optimizer's update
waits for what is left of that. Then the thread sums the chunks and makes the images whole.

Late tensors are the same memory in every step, and finding that out takes a fifth of the time of copying. So
if an update comes too soon for the copy, the thread begins the next copy with the late tensors of the last
snapshot, while the state is still captured. If the state then turns out to be another one, or was changed
meanwhile, this copy is thrown away and an ordinary one made.

Another thread reserves memory for the copies, and registers it with a GPU's driver, ahead of need.
"""

from __future__ import annotations

import concurrent.futures
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slurm_robust.checkpoint import budget, devices
from slurm_robust.checkpoint.buffers import Contents, RankBuffers, Reserve, Target, TensorBuffer, TensorPlace
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.gpus import CUDA, GpuEvent, Gpus, Pairs
from slurm_robust.checkpoint.image import Image
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Training, capture, changed_by_optimizers, gpu_of, key_of
from slurm_robust.checkpoint.timing import Timing, TimingHistory
from slurm_robust.checkpoint.tree import path_of
from slurm_robust.model.record import Record
from slurm_robust.util.spare_cpus import SpareCpus
from slurm_robust.util.threads import BackgroundCall

_log = logging.getLogger(__name__)

# How long anything waits for a copy in memory. Copies take milliseconds to seconds; one that is this late is
# on a machine that swaps, and training that goes on without a snapshot is better than training that stands.
PATIENCE_S = 60.0
# How long the sums wait for an update to end; one that takes longer is shared with them. Also how long a
# process lives on whose update raised.
UPDATE_S = 1.0
# How long the thread is given to begin: code that holds the interpreter lock keeps it that long anyway.
BEGIN_S = 0.01
# Of each of this many bytes a thread of its own makes the sums (a few milliseconds), up to so many threads:
# together these read 40 GB/s, of which a node's ranks have several times as much among them.
SUM_BYTES = 64 * 2**20
SUM_THREADS = 8
# How long one step waits for memory; then training goes on without snapshots until it is there. Small states
# have theirs in milliseconds; large ones wait for seconds (0.6 s per GB were measured, a GPU's driver takes
# as long again).
RESERVE_S = 1.0


def sum_threads(nbytes: int, spare_cpus: float) -> int:
    """Return in how many threads to make the sums of so many bytes: half of the spare CPUs stay so."""
    return max(1, min(int(spare_cpus / 2), nbytes // SUM_BYTES, SUM_THREADS))


class PlacedTensor(NamedTuple):
    """A tensor and its place: 0 for the own part, 1 for the shared one, and the number in its table."""

    part: int
    number: int
    source: devices.SourceTensor
    on_gpu: bool

    @property
    def device(self) -> torch.device:
        """The device that it is on."""
        return self.source.tensor.device


Owners = Mapping[tuple[int, int], torch.Tensor]
"""Tensors that only optimizers change, by :func:`~slurm_robust.checkpoint.state.key_of` their memory."""


@dataclass(frozen=True)
class Late:
    """Tensors that are copied while training runs, and the live ones whose versions count their changes.

    The rest says what they were found in, so that the same state need not be sorted again.
    """

    entries: list[PlacedTensor] = field(default_factory=list)
    live: list[torch.Tensor] = field(default_factory=list)
    addresses: list[int] = field(default_factory=list)
    early: list[tuple[int, int]] = field(default_factory=list)  # part and number of all others
    sizes: list[int] = field(default_factory=list)  # tensors of each part
    owners: Owners = field(default_factory=dict)

    def versions(self) -> list[int]:
        """Return how often each was changed in place."""
        return [tensor._version for tensor in self.live]

    def is_in_place(self) -> bool:
        """Return whether no tensor's memory was given up (``resize_``); the tensors keep it otherwise."""
        return [entry.source.tensor.data_ptr() for entry in self.entries] == self.addresses

    def is_of(self, tensors: list[list[torch.Tensor]], owners: Owners) -> bool:
        """Return whether the same memory, of the same owners, goes to the same places of these tensors."""
        return (
            self.sizes == [len(its) for its in tensors]
            and self.owners.keys() == owners.keys()
            and all(map(operator.is_, self.owners.values(), owners.values()))
            and all(_is_block(tensors[part][number], of.tensor) for part, number, of, _ in self.entries)
        )


def sort_out(
    tensors: list[list[torch.Tensor]], owners: Owners, gpus: Gpus, before: Late | None = None
) -> tuple[list[PlacedTensor], Late]:
    """Return what must be copied immediately, and what may be copied late: ``owners`` has its memory.

    If the late ones are the same as in ``before``, ``before`` is returned: they are cut into pieces already.
    """
    late = before
    if late is None or not late.is_of(tensors, owners):
        late = Late(sizes=[len(its) for its in tensors], owners=owners)
        for part, its in enumerate(tensors):
            for number, tensor in enumerate(its):
                owner = owners.get(key_of(tensor)) if tensor.device.type in ("cpu", "cuda") else None
                if owner is None:
                    late.early.append((part, number))
                else:
                    late.entries.append(
                        PlacedTensor(part, number, devices.SourceTensor(tensor), gpus.has(tensor))
                    )
                    late.live.append(owner)
                    late.addresses.append(tensor.data_ptr())
    others = [(part, number, tensors[part][number]) for part, number in late.early]
    early = [
        PlacedTensor(part, number, devices.SourceTensor(one), gpus.has(one)) for part, number, one in others
    ]
    return early, late


class _SnapshotRequest(Record):
    """The snapshot of a step, which is asked for."""

    step: int
    stride: int  # this and ``flush`` say which earlier snapshots still matter
    flush: int


@dataclass
class PendingSnapshot:
    """One snapshot on its way."""

    request: _SnapshotRequest
    buffers: list[TensorBuffer]  # the own part's first
    values: list[Any]
    late: Late
    timing: Timing
    versions: list[int] = field(default_factory=list)
    begins: list[GpuEvent] = field(default_factory=list)  # of the copies of late tensors on GPUs
    events: list[tuple[devices.GpuCopies, GpuEvent]] = field(default_factory=list)
    begun: threading.Event = field(default_factory=threading.Event)  # the thread needs no lock any more
    may_sum: threading.Event = field(default_factory=threading.Event)  # no update is waiting or under way
    copying: concurrent.futures.Future[None] = field(init=False)  # of late tensors, by the thread
    done: concurrent.futures.Future[None] | None = None  # the thread's whole work
    torn: str = ""  # the tensor that was changed while it was copied
    given_up: bool = False
    abandoned: bool = False  # it was begun ahead of a state that turned out to be another one
    held_up: bool = False  # an update had to wait for the copy
    captured: bool = False  # the update went into a CUDA graph, so nothing shows when the tensors change
    checked: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.versions = self.late.versions()
        self.may_sum.set()

    @property
    def step(self) -> int:
        """After which it is the state."""
        return self.request.step

    def copy_late(self) -> None:
        """Copy the late tensors of the CPU. In the thread."""
        devices.copy(self.cpu(self.late.entries), self.begun)

    def cpu(
        self, entries: Iterable[PlacedTensor]
    ) -> Iterator[tuple[Sequence[torch.Tensor], devices.SourceTensor]]:
        """Yield the tensors in this machine's memory, with their pieces of the buffer."""
        for entry in entries:
            if not entry.on_gpu:
                yield self.target(entry).parts, entry.source

    def target(self, entry: PlacedTensor) -> Target:
        """Return its place in the buffer."""
        return self.buffers[entry.part].targets[entry.number]

    def turn_into(self, contents: Contents) -> bool:
        """Take the rest of another state's contents; False if there is no room for its trees."""
        self.values = contents.values
        pairs = zip(self.buffers, contents.trees, strict=True)
        return all(buffer.replace_tree(tree) for buffer, tree in pairs)

    def check(self) -> None:
        """See whether a late tensor was changed since the snapshot was begun. Only the first call counts.

        It comes from the hook, before the update, or from the thread, when all is copied: whichever is first.
        """
        with self._lock:
            if self.checked:
                return
            self.checked = True
            for entry, live, version in zip(self.late.entries, self.late.live, self.versions, strict=True):
                if live._version != version:
                    self.torn = path_of(self.values[entry.part], entry.number)
                    return


def _is_block(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors, at least one of them alive, are the same memory read in the same way."""
    return (
        a.data_ptr() == b.data_ptr()
        and a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


class Snapshotter:
    """Takes snapshots of one rank; used from the thread that trains.

    ``ahead``: copy ahead of capturing the state even when no update had to wait. Behind a long forward pass
    that gains nothing, and the copy slows the capture down (measured: 22 instead of 13 ms for 1 GB).
    ``announce``: entered by the thread that reserves memory, for as long as that takes.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        place: TensorPlace,
        *,
        overlap: bool = True,
        ahead: bool = False,
        gpus: Gpus = CUDA,
        captures: devices.Captures | None = None,
        gather: Callable[[Path], tuple[budget.Room, ...]] = budget.gather,
        announce: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        # For which the newest snapshot held training up, in take() and in front of the optimizer's update.
        self.blocked_s = 0.0
        self.skipped = 0  # snapshots that were not taken, or not usable
        self.timings = TimingHistory()
        self.updates = 0  # of optimizers, since this was made
        self._overlap = overlap
        self._runtime = gpus
        self._captures = captures or devices.Captures(gpus)  # its hook comes before ours
        self._pinned = devices.Pinned(gpus)
        self._buffers = RankBuffers(folder, place, gather, self._pinned.pin)
        self._spare = SpareCpus(place.ranks_on_node)
        self._pending: PendingSnapshot | None = None
        # The newest that is whole; None while another one is on its way.
        self._last: PendingSnapshot | None = None
        self._foreseen = False  # the newest state was the expected one
        self._always_ahead = ahead
        self._warned: set[str] = set()
        self._copies: dict[torch.device, devices.GpuCopies] = {}
        self._process = os.getpid()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="srobust-snapshot")
        self._reserved: BackgroundCall[None] | None = None
        self._has_waited = False  # a step has waited for it
        self._announce = announce
        # A compiled step() must not try to trace this: it is called between the graphs instead.
        before = torch.compiler.disable(self._before_update)  # type: ignore[no-untyped-call]
        after = torch.compiler.disable(self._after_update)  # type: ignore[no-untyped-call]
        self._hooks = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))

    @property
    def active(self) -> bool:
        """Whether there is memory for snapshots, by what is known."""
        return self._buffers.active

    @property
    def buffers(self) -> int:
        """For how many snapshots there is memory, by what is known."""
        return self._buffers.number

    @property
    def newest(self) -> int:
        """The step of the newest snapshot if that is whole, as it is after :meth:`settle`; else -1."""
        return self._last.step if self._last is not None else -1

    @property
    def reserving(self) -> bool:
        """Memory is being reserved: there may be no snapshots until then."""
        return self._reserved is not None and not self._reserved.done

    def expect(self, images: Sequence[Image], training: Training) -> None:
        """Reserve memory, beside what follows, for a state that is about to be restored into ``training``.

        ``images`` say what it is made of, the own part's first.
        """
        self._pinned.device = gpu_of(training, self._runtime)
        try:
            wanted, reason = self._buffers.expect(images)
        except NotWritten as error:
            _log.warning("no memory is reserved for snapshots yet: %s", error)
            return
        self._tell_limit(reason)
        if self.active:
            self._reserve(wanted)

    def take(self, step: int, training: Training, *, stride: int = 1, flush: int = -1) -> None:
        """Copy the state of ``training``.

        ``stride`` and ``flush`` say which earlier snapshots are still wanted. If not :attr:`active`, it looks
        whether there is memory now. Raises :class:`NotWritten` when this one is skipped, and
        :class:`~slurm_robust.checkpoint.errors.UnsupportedState`.
        """
        begun = time.perf_counter()
        try:
            self._take(_SnapshotRequest(step=step, stride=stride, flush=flush), training, begun)
        except NotWritten:
            self.skipped += 1
            raise
        finally:
            self.blocked_s = time.perf_counter() - begun

    def settle(self) -> None:
        """Wait until the newest snapshot is whole. Raises :class:`NotWritten` if that takes too long."""
        pending = self._pending
        if pending is None or pending.done is None:
            return
        pending.may_sum.set()
        if concurrent.futures.wait([pending.done], 0.0 if pending.given_up else PATIENCE_S).not_done:
            pending.given_up = True
            raise NotWritten(
                f"the snapshot of step {pending.step} has not been copied within {PATIENCE_S:g} s: the "
                "node's memory is overloaded; see whether it swaps"
            )
        self._pending = None
        if pending.abandoned:
            return
        try:
            pending.done.result()
        except RuntimeError as error:  # of a copy; a broken device ends the rank by itself
            raise NotWritten(f"the snapshot of step {pending.step} cannot be copied: {error}") from error
        if not (pending.torn or pending.captured):
            self._last = pending
            return
        self.skipped += 1
        if pending.captured:
            return  # raised when the next one is taken
        self._warn_once(
            "torn",
            f"the snapshot of step {pending.step} is discarded: {pending.torn} was changed while it was "
            "copied, after step() and before the optimizer's update. If the training changes parameters or "
            "optimizer state by other means than optimizer.step(), use Checkpointer(…, overlap=False)",
        )

    def close(self) -> None:
        """Finish the newest snapshot and let go of the buffers."""
        for hook in self._hooks:
            hook.remove()
        if self._pending is not None:
            self._pending.may_sum.set()
        self._thread.shutdown()
        self._captures.close()
        self.settle()
        self._last = None
        if self._reserved is None or self._reserved.wait(PATIENCE_S):
            self._buffers.close()

    # -- taking one -------------------------------------------------------------------------------

    def _take(self, wanted: _SnapshotRequest, training: Training, asked: float) -> None:
        self.settle()
        timing = Timing(wanted.step, asked, began=time.perf_counter(), is_typical=self._reserved is None)
        if self._last is not None:
            self.timings.see(self._last.timing, asked, wanted.step, self.blocked_s)
        if self._captures.seen and self._overlap:
            self._overlap = False
            _log.warning(
                "an optimizer's update was captured in a CUDA graph, of whose replays no hook is called: "
                "from step %d on all is copied before step() returns, as with Checkpointer(…, overlap=False)",
                wanted.step,
            )
        if not self._is_reserved():
            self.skipped += 1
            if self._last is not None:
                self._last.timing.is_typical = False
            return
        last, self._last = self._last, None
        pending: PendingSnapshot | None = None
        versions: list[int] = []
        in_haste = last is not None and self._overlap and (last.held_up or self._always_ahead)
        if last and in_haste:
            versions = last.late.versions()
            pending = self._ahead(wanted, last, timing) if self._foreseen else None
        try:
            snapshot = capture(training.entries, deduplicate=training.deduplicate, compact=False)
            contents = self._buffers.contents(snapshot)
            owners = changed_by_optimizers(training.entries) if self._overlap else {}
            changed = self._buffers.describe(contents)
            if changed:
                self._warn_once(
                    "layout",
                    f"the state has other tensors after step {wanted.step} than before (keys, shapes or "
                    "dtypes of an entry changed): snapshots go on with the new ones. If that is not meant, a "
                    "restore into freshly built entries will fail",
                )
            before = last.late if last and not changed else None
            early, late = sort_out(contents.tensors, owners, self._runtime, before)
            self._foreseen = late is before and (late.versions() == versions or not in_haste)
            if pending and not (self._foreseen and not pending.torn and pending.turn_into(contents)):
                wrong, pending = pending, None
                self._abandon(wrong)
            if pending is None:
                was_active = self.active
                self._tell_limit(self._buffers.make_room(snapshot))
                if not self.active:
                    return
                if not was_active:
                    self._warned.discard("memory")
                    _log.warning("there is memory again: snapshots are taken from step %d on", wanted.step)
                self._pinned.device = next((e.device for e in (*early, *late.entries) if e.on_gpu), None)
                pending = self._begin(wanted, contents.values, contents.trees, late, timing)
            if pending is None:
                self.skipped += 1
                return
            self._copy(pending, early)
        except BaseException:
            if pending:
                self._abandon(pending)
            raise

    def _ahead(
        self, wanted: _SnapshotRequest, last: PendingSnapshot, timing: Timing
    ) -> PendingSnapshot | None:
        """Begin to copy what was late before, on the assumption that it is so again."""
        late = last.late
        if not late.is_in_place() or all(entry.on_gpu for entry in late.entries):
            return None
        pending = self._begin(wanted, last.values, [buffer.tree for buffer in last.buffers], late, timing)
        if pending is not None:
            pending.begun.wait(BEGIN_S)
        return pending

    def _begin(
        self, wanted: _SnapshotRequest, values: list[Any], trees: list[bytes], late: Late, timing: Timing
    ) -> PendingSnapshot | None:
        """Lay out the buffers and let the thread copy; None while there is no memory for them yet."""
        while not isinstance(
            found := self._buffers.begin(wanted.step, trees, stride=wanted.stride, flush=wanted.flush), list
        ):
            self._reserve([found])
            timing.is_typical = False
            if not self._is_reserved():
                return None
        self._pending = pending = PendingSnapshot(wanted, found, values, late, timing)
        pending.copying = self._thread.submit(pending.copy_late)
        return pending

    def _reserve(self, wanted: list[Reserve]) -> None:
        def work() -> None:
            with self._announce():
                for reserve in wanted:
                    reserve()

        self._reserved, self._has_waited = BackgroundCall("reserve", work), False

    def _is_reserved(self) -> bool:
        """Return whether all memory is reserved. Raises :class:`NotWritten` if there was none."""
        if self._reserved is None:
            return True
        patience_s = 0.0 if self._has_waited else RESERVE_S
        self._has_waited = True
        if not self._reserved.wait(patience_s):
            return False
        done, self._reserved = self._reserved, None
        done.result(0.0)
        return True

    def _copy(self, pending: PendingSnapshot, early: list[PlacedTensor]) -> None:
        """Copy what the next step may change; the rest is left to the thread and the GPUs."""
        try:
            self._copy_on_gpus(pending, early, [])
            for gpu, event in pending.events:
                if self._overlap:
                    gpu.hold_training(event)
                else:
                    event.wait()
            self._copy_on_gpus(pending, pending.late.entries, pending.begins)
        except RuntimeError as error:
            raise NotWritten(f"the snapshot of step {pending.step} cannot be copied: {error}") from error
        devices.copy(pending.cpu(early))
        pending.done = self._thread.submit(self._finish, pending)

    def _abandon(self, pending: PendingSnapshot) -> None:
        """Make its buffers free for another snapshot. Raises :class:`NotWritten` if that takes too long."""
        pending.abandoned = True
        pending.done = self._thread.submit(self._finish, pending)
        self.settle()

    def _tell_limit(self, reason: str) -> None:
        if reason:
            self._warn_once("memory", f"snapshots in memory are limited: {reason}")

    def _copy_on_gpus(
        self, pending: PendingSnapshot, entries: list[PlacedTensor], begins: list[GpuEvent]
    ) -> None:
        """Start copying the tensors that lie on GPUs, and note in ``begins`` when each GPU gets there.

        Raises ``RuntimeError``.
        """
        found: dict[torch.device, Pairs] = {}
        for entry in entries:
            if entry.on_gpu:
                pairs = self._pinned.pairs(pending.target(entry).whole, entry.source.tensor)
                found.setdefault(entry.device, []).extend(pairs)
        for device, pairs in found.items():
            gpu = self._copies.get(device) or devices.GpuCopies(self._runtime, device)
            self._copies[device] = gpu
            gpu.follow_training()
            begins.append(gpu.copied())
            try:
                gpu.copy(pairs)
            finally:  # what was begun must have ended before the buffer is used again
                pending.events.append((gpu, gpu.copied()))

    # -- while training runs ----------------------------------------------------------------------

    def _finish(self, pending: PendingSnapshot) -> None:
        """Wait for what is still being copied and make the images whole. In the thread."""
        whole, timing = False, pending.timing
        try:
            pending.copying.result()
            if pending.events:
                self._runtime.relax()
            for begin in pending.begins:
                begin.wait()
                timing.started = timing.started or time.perf_counter()
            for _, event in pending.events:
                event.wait()
            timing.copied = time.perf_counter() if pending.begins else 0.0
            pending.check()
            # An update that waited for the copy moves as much memory as the sums read: it goes first.
            pending.may_sum.wait(UPDATE_S)
            whole = not (pending.torn or pending.captured or pending.abandoned)
        finally:
            for buffer in pending.buffers:
                if whole:
                    buffer.commit(sum_threads(buffer.total, self._spare.count()))
                else:
                    buffer.discard()
            timing.whole = time.perf_counter()
            if whole:  # have memory for the next snapshot before it is taken
                sizes, request = [buffer.total for buffer in pending.buffers], pending.request
                wanted = self._buffers.wanted(sizes, stride=request.stride, flush=request.flush)
                if wanted:
                    self._reserve(wanted)

    def _before_update(self, optimizer: object, args: object, kwargs: object) -> None:
        pending = self._pending
        if pending is None or pending.checked or not pending.late.entries or os.getpid() != self._process:
            return
        if self._captures.seen:
            # Nothing outside of the graph may be waited for in it.
            pending.captured = pending.checked = True
            return
        begun = time.perf_counter()
        if not pending.copying.done():
            pending.held_up = True
            pending.may_sum.clear()
        if concurrent.futures.wait([pending.copying], PATIENCE_S).not_done:
            pending.torn = "everything"
        pending.check()
        for gpu, event in pending.events:
            gpu.hold_training(event)
        self.blocked_s += time.perf_counter() - begun

    def _after_update(self, optimizer: object, args: object, kwargs: object) -> None:
        self.updates += 1
        if self._pending is not None:
            self._pending.may_sum.set()

    # -- small things -----------------------------------------------------------------------------

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", text)
