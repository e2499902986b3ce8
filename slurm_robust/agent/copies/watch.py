"""Notices new snapshots of this node's ranks, and hands them to the senders and the flusher."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from slurm_robust.agent.copies.fetch import remove_fetched
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.sender import PeerSender
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.image import MAGIC, read_header
from slurm_robust.checkpoint.memory import FoundImage, MemoryFolder, kind_of
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.util.ours import open_ours
from slurm_robust.wire.messages import Launch

# A pass may take this share of a core, whatever the number of buffers and the speed of the machine.
_SHARE = 0.005
_SHORTEST_S = 0.01
_LONGEST_S = 0.5
# A share of the time between two snapshots, or since the last one: some jobs take few, or none at all.
_PART = 0.1
_FIND_RESTORED_S = 0.5
# The magic and all numbers of the first page; the last of them is the sum of the page.
_PREFIX_BYTES = 64


class BufferScan:
    """Reads 64 bytes of each buffer that workers fill; parses a header once per image.

    Writing through a mapping of shared memory changes no time of a file, so the content must be read.
    """

    def __init__(self, folder: MemoryFolder) -> None:
        self._folder = folder
        self._files: dict[str, tuple[int, int]] = {}  # inode, descriptor
        self._parsed: dict[str, tuple[bytes, FoundImage | None]] = {}

    def images(self) -> list[FoundImage]:
        """Return the whole images in buffers of ranks that run, or once ran, on this node."""
        found = []
        for name, file in self._buffers():
            prefix = os.pread(file, _PREFIX_BYTES, 0)
            if not prefix.startswith(MAGIC):
                continue
            known, image = self._parsed.get(name, (b"", None))
            if known != prefix:
                image = self._parse(name)
                self._parsed[name] = prefix, image
            if image is not None:
                found.append(image)
        return found

    def close(self) -> None:
        """Close the files."""
        for _, file in self._files.values():
            os.close(file)
        self._files.clear()

    def _buffers(self) -> list[tuple[str, int]]:
        found = []
        with os.scandir(self._folder.path) as entries:
            present = {e.name: e.inode() for e in entries if kind_of(e.name) in ("own", "shared")}
        for name in [n for n, (inode, _) in self._files.items() if present.get(n) != inode]:
            os.close(self._files.pop(name)[1])
        for name, inode in present.items():
            if name not in self._files:
                try:
                    file = open_ours(self._folder.path / name)
                except OSError:
                    continue  # removed meanwhile, or not ours
                self._files[name] = inode, file
            found.append((name, self._files[name][1]))
        return found

    def _parse(self, name: str) -> FoundImage | None:
        path = self._folder.path / name
        try:
            header: PartHeader | None = read_header(path)
            nbytes = path.stat().st_size
        except OSError:
            return None
        if header is None or header.run_id != self._folder.run_id:
            return None
        return FoundImage(path=path, kind=kind_of(name), header=header, nbytes=nbytes)


def pause_s(step_s: float, since_s: float) -> float:
    """Return seconds until the next scan, by those between the last two snapshots and since the last one."""
    return min(max(_PART * max(step_s, since_s), _SHORTEST_S), _LONGEST_S)


class SnapshotWatch:
    """The thread of one generation. ``on_images`` is called in each pass with what is there."""

    def __init__(
        self,
        folder: MemoryFolder,
        launch: Launch,
        senders: dict[int, PeerSender],
        on_images: Callable[[list[FoundImage]], None],
        notes: Notes,
    ) -> None:
        self._folder = folder
        self._launch = launch
        self._senders = senders
        self._on_images = on_images
        self._stopped = threading.Event()
        self.stride = launch.stride
        self._restored = launch.restore
        self._next_search = 0.0
        self._newer: dict[int, set[int]] = {rank: set() for rank in launch.ranks}
        self._step = -1
        self._step_seen = time.monotonic()
        self._step_s = 0.0
        self._thread = notes.start_thread("watch", "finds new snapshots", self._run, self._stopped)

    def stop(self) -> None:
        """End; returns when nothing more is handed on."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(5.0)

    def _run(self) -> None:
        scan = BufferScan(self._folder)
        wait_s = _SHORTEST_S
        try:
            while not self._stopped.wait(wait_s):
                began = time.thread_time()
                try:
                    self._pass(scan.images())
                except FileNotFoundError:
                    return  # the folder is gone, and with it the job
                cost_s = time.thread_time() - began
                wait_s = max(pause_s(self._step_s, time.monotonic() - self._step_seen), cost_s / _SHARE)
        finally:
            scan.close()

    def _pass(self, images: list[FoundImage]) -> None:
        current = [i for i in images if i.header.generation == self._launch.generation]
        waiting = {}
        for rank, sender in self._senders.items():
            wanted = [i for i in current if i.header.rank == rank and i.header.step % self.stride == 0]
            if wanted:
                sender.offer(max(wanted, key=lambda image: image.header.step))
            elif sender.confirmed is None:
                waiting[rank] = sender
        if waiting and self._restored is not None:
            self._offer_restored(waiting, self._restored)
        self._on_images(current)
        step = max((i.header.step for i in current), default=-1)
        if step > self._step:
            now = time.monotonic()
            if self._step >= 0:
                self._step_s = (now - self._step_seen) / (step - self._step)
            self._step, self._step_seen = step, now
        if self._newer:
            self._tidy(images, current)

    def _offer_restored(self, senders: dict[int, PeerSender], checkpoint: CheckpointId) -> None:
        """Offer what was restored: it is all there is until the first snapshots, and a peer may be new."""
        now = time.monotonic()
        if now < self._next_search:
            return
        self._next_search = now + _FIND_RESTORED_S
        for image in self._folder.images():
            if image.checkpoint == checkpoint and image.header.rank in senders:
                senders[image.header.rank].offer(image)

    def _tidy(self, images: list[FoundImage], current: list[FoundImage]) -> None:
        """Free older copies, once two snapshots have replaced what was restored."""
        for image in current:
            if image.header.rank in self._newer:
                self._newer[image.header.rank].add(image.header.step)
        if any(len(steps) < 2 for steps in self._newer.values()):
            return
        ranks = {*self._newer, SHARED}
        self._newer = {}
        remove_fetched(self._folder)
        for image in images:
            if image.header.rank not in ranks and image.header.generation < self._launch.generation:
                image.path.unlink(missing_ok=True)
