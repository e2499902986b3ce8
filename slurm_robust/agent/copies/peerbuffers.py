"""The memory for copies of other nodes' ranks: which of a rank's buffers is refilled, and by whom."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.image import Buffer, BufferInUse, read_header
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import CheckpointId
from slurm_robust.wire.copychannel import Channel, CopyAnswer, CopyVerdict, Put

# Beyond this the image that comes in leaves the node's other users too little of its memory.
_RESERVE = 0.02


class PeerBuffers:
    """Takes in images, each rank's in two buffers (one, if the memory is short).

    The one is refilled that helps less, so a source that dies in the middle leaves the copy before. For
    several threads; only one at a time takes in a copy of the same rank.
    """

    def __init__(self, folder: MemoryFolder) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._busy: set[int] = set()
        self._open: dict[Path, tuple[int, Buffer]] = {}
        self.number = 2  # buffers per rank; 0: nothing is taken in

    def answer(self, put: Put) -> CopyAnswer:
        """What to say to the offer, before anything is done about it."""
        if self.number == 0:
            return _refused("its memory has no room for copies of other nodes")
        if put.checkpoint in self._held(put.rank).values():
            return CopyAnswer(verdict=CopyVerdict.HAVE)
        return CopyAnswer(verdict=CopyVerdict.GO)

    def take_in(self, put: Put, channel: Channel) -> CopyAnswer:
        """Say GO and receive the image; what to answer at the end. Raises ``OSError`` of the channel.

        Whatever happens, the buffer holds the whole new image or none.
        """
        with self._lock:
            if put.rank in self._busy:
                return _refused("an earlier copy of the same rank is still coming in", later=True)
            self._busy.add(put.rank)
        try:
            return self._refill(put, channel)
        except BufferInUse:
            return _refused("the buffer to refill is being read", later=True)
        finally:
            with self._lock:
                self._busy.discard(put.rank)

    def close(self) -> None:
        """Let go of the files, which stay."""
        for _, buffer in self._open.values():
            buffer.close()
        self._open.clear()

    def _refill(self, put: Put, channel: Channel) -> CopyAnswer:
        buffer = self._buffer(self._victim(put))
        if not _has_room(buffer, put.total):
            return _refused(f"its {self._folder.path.parent} has no room for {put.total} bytes")
        try:
            view = buffer.receive(put.total)
        except BufferInUse:
            raise
        except OSError as error:
            return _refused(f"no memory for {put.total} bytes: {error}")
        try:
            channel.send(CopyAnswer(verdict=CopyVerdict.GO))
            channel.receive_into(view)
            return self._adopt(buffer, put)
        except BaseException:
            buffer.discard()
            raise
        finally:
            view.release()

    def _adopt(self, buffer: Buffer, put: Put) -> CopyAnswer:
        try:
            header = buffer.adopt()
        except CheckpointError as error:
            buffer.discard()
            return _refused(f"what arrived is damaged: {error}")
        if (header.run_id, header.rank, header.checkpoint) != (put.run_id, put.rank, put.checkpoint):
            buffer.path.unlink(missing_ok=True)
            return _refused("what arrived is not what was announced")
        return CopyAnswer(verdict=CopyVerdict.GO)

    def _victim(self, put: Put) -> Path:
        """The buffer to refill: an empty one, else what the running generation cannot use, else the older."""
        held = self._held(put.rank)

        def worth(path: Path) -> tuple[bool, bool, int]:
            found = held.get(path)
            if found is None:
                return False, False, -1
            return True, found.generation == put.launch or found == put.restore, found.step

        return min(self._paths(put.rank), key=worth)

    def _held(self, rank: int) -> dict[Path, CheckpointId]:
        """The checkpoints of the whole images in the buffers of ``rank``."""
        found = {}
        for path in self._paths(rank):
            try:
                header = read_header(path)
            except OSError:
                continue
            if header is not None and header.rank == rank:
                found[path] = header.checkpoint
        return found

    def _paths(self, rank: int) -> list[Path]:
        return [self._folder.peer(rank, number) for number in range(max(1, self.number))]

    def _buffer(self, path: Path) -> Buffer:
        """The buffer, mapped since its last use: mapping a gigabyte anew takes a tenth of a second."""
        with self._lock:
            inode, known = self._open.get(path, (0, None))
            if known is not None and _inode(path) == inode:
                return known
            if known is not None:
                known.close()  # somebody found its image damaged and removed it
            buffer = Buffer(path)
            self._open[path] = _inode(path), buffer
            return buffer


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _has_room(buffer: Buffer, total: int) -> bool:
    """Whether the folder's file system has the memory, asked before the image that is there is given up."""
    space = os.statvfs(buffer.path.parent)
    free = space.f_bavail * space.f_frsize - _RESERVE * space.f_blocks * space.f_frsize
    return total - buffer.capacity <= max(0.0, free)


def _refused(reason: str, *, later: bool = False) -> CopyAnswer:
    return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=reason, later=later)
