"""Snapshots of a training into its node's memory, most of it while the next step already computes.

:meth:`Snapshotter.take` copies at once what the next forward and backward pass may change, and leaves *late*
tensors (parameters and optimizer state, which nothing but the optimizer changes) to a thread that copies
without the interpreter lock, or to a GPU's copy engine. A hook in front of every optimizer's update waits for
what is left of that. Then the thread sums the chunks and makes the images whole.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from slurm_robust.checkpoint import budget, devices
from slurm_robust.checkpoint.buffers import Filling, PartBuffers
from slurm_robust.checkpoint.errors import NotWritten
from slurm_robust.checkpoint.image import ImageHeader, TensorSpec, image_bytes
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.state import Snapshot, key_of
from slurm_robust.checkpoint.store import CheckpointRef
from slurm_robust.checkpoint.tree import flatten, path_of, specs_of
from slurm_robust.model.copies import SHARED
from slurm_robust.model.record import Record

_log = logging.getLogger(__name__)

# How long anything waits for a copy in memory. Copies take milliseconds to seconds; who is this late is on a
# machine that swaps, and a training that goes on without a snapshot is better than one that stands.
PATIENCE_S = 60.0
# How long the sums wait for an update to end; one that takes longer is shared with them. Also how long a
# process lives on whose update raised.
UPDATE_S = 1.0

Late = Mapping[tuple[int, int], torch.Tensor]


class Place(Record):
    """Whose snapshots: header of the images (without the step), and the ranks and nodes around.

    ``first_on_node``: this rank writes the shared part too.
    """

    header: ImageHeader
    first_on_node: bool
    ranks_on_node: int
    nodes: int
    restored: CheckpointRef | None = None


@dataclass
class _Part:
    """What of one part stays from snapshot to snapshot."""

    buffers: PartBuffers
    signature: list[tuple[torch.dtype, torch.Size]] = field(default_factory=list)
    specs: tuple[TensorSpec, ...] = ()
    nbytes: int = 0

    def describe(self, tree: bytes, tensors: list[torch.Tensor]) -> bool:
        """Bring the table up to date; True if it is another one than before."""
        signature = [(tensor.dtype, tensor.shape) for tensor in tensors]
        changed = signature != self.signature
        if changed:
            self.signature, self.specs = signature, specs_of(tensors)
            self.nbytes = image_bytes(self.specs, tree)
        return changed


@dataclass
class _Job:
    """One snapshot on its way."""

    step: int
    value: dict[str, Any]  # where the tensors come from, to name one
    fillings: list[Filling] = field(default_factory=list)
    late: list[tuple[Filling, int, torch.Tensor]] = field(default_factory=list)
    live: list[torch.Tensor] = field(default_factory=list)  # whose versions count changes of late ones
    versions: list[int] = field(default_factory=list)
    events: list[tuple[devices.GpuCopies, torch.cuda.Event]] = field(default_factory=list)
    copied: threading.Event = field(default_factory=threading.Event)  # as far as a thread copies
    may_sum: threading.Event = field(default_factory=threading.Event)  # no update is waiting or under way
    lock: threading.Lock = field(default_factory=threading.Lock)
    checked: bool = False
    torn: str = ""
    given_up: bool = False
    done: concurrent.futures.Future[None] | None = None

    def check(self) -> None:
        """See whether a late tensor was changed since :meth:`Snapshotter.take`. Only the first call counts.

        It comes from the hook, before the update, or from the thread, when all is copied: whichever is first.
        """
        with self.lock:
            if self.checked:
                return
            self.checked = True
            for number, tensor in enumerate(self.live):
                if tensor._version != self.versions[number]:
                    self.torn = self._name(number)
                    return

    def _name(self, number: int) -> str:
        filling, index, _ = self.late[number]
        return path_of(self.value["own" if filling is self.fillings[0] else "shared"], index)


class Snapshotter:
    """Takes snapshots of one rank; used from the thread that trains.

    ``blocked_s`` is how long the newest snapshot held training up, in seconds (in :meth:`take` and in front
    of the optimizer's update); ``skipped`` counts snapshots that were not taken or not usable. ``active`` is
    False if there is no memory for any.
    """

    def __init__(
        self,
        folder: MemoryFolder,
        place: Place,
        *,
        overlap: bool = True,
        gather: Callable[[Path], tuple[budget.Room, ...]] = budget.gather,
    ) -> None:
        self.blocked_s = 0.0
        self.skipped = 0
        self.active = True
        self._folder = folder
        self._place = place
        self._overlap = overlap
        self._gather = gather
        self._pinned = devices.Pinned()
        self._own = self._part(place.header.rank)
        self._shared = self._part(SHARED) if place.first_on_node else None
        self._planned = (0, 0)
        self._job: _Job | None = None
        self._warned: set[str] = set()
        self._gpus: dict[torch.device, devices.GpuCopies] = {}
        self._process = os.getpid()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="srobust-snapshot")
        # A compiled step() must not try to trace this: it is called between the graphs instead.
        before = torch.compiler.disable(self._before_update)  # type: ignore[no-untyped-call]
        after = torch.compiler.disable(self._after_update)  # type: ignore[no-untyped-call]
        self._hooks = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))

    def take(self, step: int, snapshot: Snapshot, late: Late, *, stride: int = 1, flush: int = -1) -> None:
        """Copy ``snapshot``, of which ``late`` (``state.changed_by_optimizers``) may be copied later.

        ``stride`` and ``flush`` say which earlier snapshots are still wanted. Does nothing if not
        :attr:`active`. Raises :class:`NotWritten` when this one is skipped, and
        :class:`~slurm_robust.checkpoint.errors.UnsupportedState`.
        """
        begun = time.perf_counter()
        try:
            self._take(step, snapshot, late if self._overlap else {}, stride, flush)
        except NotWritten:
            self.skipped += 1
            raise
        finally:
            self.blocked_s = time.perf_counter() - begun

    def settle(self) -> None:
        """Wait until the newest snapshot is whole. Raises :class:`NotWritten` if that takes too long."""
        job = self._job
        if job is None or job.done is None:
            return
        job.may_sum.set()
        try:
            job.done.result(0.0 if job.given_up else PATIENCE_S)
        except concurrent.futures.TimeoutError:
            job.given_up = True
            raise NotWritten(
                f"the snapshot of step {job.step} has not been copied within {PATIENCE_S:g} s: the node's "
                "memory is overloaded; see whether it swaps"
            ) from None
        self._job = None
        if job.torn:
            self.skipped += 1
            self._warn_once(
                "torn",
                f"the snapshot of step {job.step} is discarded: {job.torn} was changed while it was copied, "
                "after step() and before the optimizer's update. If the training changes parameters or "
                "optimizer state by other means than optimizer.step(), use Checkpointer(…, overlap=False)",
            )

    def close(self) -> None:
        """Finish the newest snapshot and let go of the buffers."""
        for hook in self._hooks:
            hook.remove()
        if self._job is not None:
            self._job.may_sum.set()
        self._thread.shutdown()
        self.settle()
        for part in self._parts():
            part.buffers.close()

    # -- taking one -------------------------------------------------------------------------------

    def _take(self, step: int, snapshot: Snapshot, late: Late, stride: int, flush: int) -> None:
        self.settle()
        value = {
            "own": {"own": snapshot.own, "rng": snapshot.rng, "has_shared": bool(snapshot.shared)},
            "shared": {"shared": snapshot.shared},
        }
        flat = [(self._own, *flatten(value["own"]))]
        if self._shared is not None and snapshot.shared:
            flat.append((self._shared, *flatten(value["shared"])))
        self._describe(step, snapshot, flat)
        if not self.active:
            return
        job = _Job(step, value)
        job.may_sum.set()
        try:
            for part, tree, _ in flat:
                filling = part.buffers.begin(step, part.specs, tree, stride=stride, flush=flush)
                job.fillings.append(filling)
        except NotWritten:
            for filling in job.fillings:
                filling.discard()
            raise
        self._start(job, [tensors for _, _, tensors in flat], late)

    def _describe(
        self, step: int, snapshot: Snapshot, flat: list[tuple[_Part, bytes, list[torch.Tensor]]]
    ) -> None:
        """See what the state is made of, and plan for it when it has become larger."""
        first = not self._own.specs
        for part, tree, tensors in flat:
            if part.describe(tree, tensors) and not first:
                self._warn_once(
                    "layout",
                    f"the state has other tensors after step {step} than before (keys, shapes or dtypes of "
                    "an entry changed): snapshots go on with the new ones. If that is not meant, a "
                    "restore into freshly built entries will fail",
                )
        if self._own.nbytes > self._planned[0] or (self._shared and self._shared.nbytes > self._planned[1]):
            shared = sum(tensor.nbytes for tensor in flatten(snapshot.shared)[1])
            try:
                self._plan(self._own.nbytes, max(shared, self._shared.nbytes if self._shared else 0))
            except OSError as error:
                raise NotWritten(f"{self._folder.path}: {error.strerror}") from error

    def _plan(self, own: int, shared: int) -> None:
        place = self._place
        rooms = self._gather(self._folder.path)
        plan = budget.plan(own=own, shared=shared, ranks=place.ranks_on_node, nodes=place.nodes, rooms=rooms)
        self.active = plan.own_buffers > 0
        for part in self._parts():
            part.buffers.limit(plan.own_buffers)
        if plan.reason:
            self._warn_once("memory", f"snapshots in memory are limited: {plan.reason}")
        budget.write_plan(self._folder.path, place.header.rank, plan)
        self._planned = own, shared

    def _start(self, job: _Job, tensors: list[list[torch.Tensor]], late: Late) -> None:
        early: list[tuple[Filling, int, torch.Tensor]] = []
        for filling, part in zip(job.fillings, tensors, strict=True):
            for index, tensor in enumerate(part):
                live = late.get(key_of(tensor)) if late and tensor.device.type in ("cpu", "cuda") else None
                if live is None:
                    early.append((filling, index, tensor))
                else:
                    job.late.append((filling, index, tensor))
                    job.live.append(live)
        job.versions = [live._version for live in job.live]
        job.events = self._on_gpus(early)
        for gpu, event in job.events:
            gpu.hold_training(event)
        job.events += self._on_gpus(job.late)
        devices.copy(_pairs(early))
        self._job = job
        job.done = self._thread.submit(self._finish, job)

    def _on_gpus(
        self, entries: list[tuple[Filling, int, torch.Tensor]]
    ) -> list[tuple[devices.GpuCopies, torch.cuda.Event]]:
        """Start copying those that lie on GPUs."""
        found: dict[torch.device, devices.Pairs] = {}
        for filling, index, tensor in entries:
            if tensor.is_cuda:
                found.setdefault(tensor.device, []).append((filling.targets[index].whole, tensor))
                self._pinned.pin(*filling.span())
        events = []
        for device, pairs in found.items():
            gpu = self._gpus.setdefault(device, devices.GpuCopies(device))
            events.append((gpu, gpu.start(pairs)))
        return events

    # -- beside the training ----------------------------------------------------------------------

    def _finish(self, job: _Job) -> None:
        """Copy what is left and make the images whole. In the thread."""
        try:
            devices.copy(_pairs(job.late))
        finally:
            job.copied.set()
        for _, event in job.events:
            event.synchronize()
        job.check()
        # An update that waited for the copy reads and writes as much memory as the sums read: it goes first.
        job.may_sum.wait(UPDATE_S)
        for filling in job.fillings:
            if job.torn:
                filling.discard()
            else:
                filling.commit()
                filling.owner.prepare(filling)

    def _before_update(self, optimizer: object, args: object, kwargs: object) -> None:
        job = self._job
        if job is None or job.checked or os.getpid() != self._process:
            return
        begun = time.perf_counter()
        if not job.copied.is_set():
            job.may_sum.clear()
        if not job.copied.wait(PATIENCE_S):
            job.torn = "everything"
        job.check()
        for gpu, event in job.events:
            gpu.hold_training(event)
        self.blocked_s += time.perf_counter() - begun

    def _after_update(self, optimizer: object, args: object, kwargs: object) -> None:
        if self._job is not None:
            self._job.may_sum.set()

    # -- small things -----------------------------------------------------------------------------

    def _part(self, rank: int) -> _Part:
        header = msgspec.structs.replace(self._place.header, rank=rank)
        buffers = PartBuffers(self._folder, header, self._place.restored, self._pinned.unpin)
        buffers.look()
        return _Part(buffers)

    def _parts(self) -> Iterator[_Part]:
        yield self._own
        if self._shared is not None:
            yield self._shared

    def _warn_once(self, about: str, text: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            _log.warning("%s", text)


def _pairs(
    entries: list[tuple[Filling, int, torch.Tensor]],
) -> Iterator[tuple[Any, torch.Tensor]]:
    for filling, index, tensor in entries:
        if not tensor.is_cuda:
            yield filling.targets[index].parts, tensor
