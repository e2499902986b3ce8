"""Serves this node's copies to the job's other agents, and takes theirs into its memory.

One thread per connection.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec import structs

from slurm_robust.agent.copies.entrance import Entrance
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.streams import MAX_STREAMS, OpenTransfers, Receiving, Sending, Transfer
from slurm_robust.checkpoint.errors import CheckpointError, CorruptPart
from slurm_robust.checkpoint.image import PAGE, Buffer, BufferInUse, read_header
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.tiers import NodeTiers
from slurm_robust.model.copies import CheckpointId
from slurm_robust.wire.copychannel import (
    MAX_IMAGE_BYTES,
    CopyAnswer,
    CopyChannel,
    CopyVerdict,
    Get,
    Join,
    Put,
)

# Far more than a node's ranks and those of its peers; what is beyond is turned away.
CONNECTIONS = 128
# Beyond this each image comes and goes over one connection, so that there is room for one of every rank.
_CROWDED = CONNECTIONS // 2


class CopyServer:
    """Listens on a bound socket until :meth:`close`."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        *,
        run_id: str,
        parts: NodeTiers,
        buffers: PeerBuffers,
        notes: Notes,
    ) -> None:
        self._run_id = run_id
        self._parts = parts
        self._buffers = buffers
        self._notes = notes
        self._lock = threading.Lock()
        self._channels: set[CopyChannel] = set()
        self._closed = False
        self._open = OpenTransfers()
        self.launch = 0  # the generation whose copies are welcome, 0 for none
        self._entrance = Entrance(listener, key, self._admit, notes)

    def expect(self, addresses: Iterable[str]) -> None:
        """Take the addresses of this job's agents, for whom there is always room."""
        self._entrance.expect(addresses)

    def close(self) -> None:
        """End all connections. An image that was coming in does not appear."""
        with self._lock:
            self._closed = True
            channels = list(self._channels)
        self._entrance.close()
        for channel in channels:
            channel.abort()

    # -- connections -------------------------------------------------------------------------------

    def _admit(self, channel: CopyChannel, address: str) -> None:
        with self._lock:
            if self._closed or len(self._channels) >= CONNECTIONS:
                channel.close()
                return
            self._channels.add(channel)
        work = partial(self._serve, channel, address)
        if self._notes.start_thread("copy", f"serves a connection of {address}", work) is None:
            self._hang_up(channel)

    def _serve(self, channel: CopyChannel, address: str) -> None:
        try:
            while (request := channel.request()) is not None:
                if not isinstance(request, Join):
                    self._handle(channel, request)
                elif not self._open.join(channel, request):
                    return
        except OSError as error:
            if not self._closed:
                self._notes.say("broken", f"a connection of {address} for copies broke off: {error}", 600.0)
        finally:
            self._hang_up(channel)

    def _hang_up(self, channel: CopyChannel) -> None:
        with self._lock:
            self._channels.discard(channel)
        channel.close()

    # -- requests ----------------------------------------------------------------------------------

    def _handle(self, channel: CopyChannel, request: Put | Get) -> None:
        if request.run_id != self._run_id:
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=f"this is run {self._run_id}"))
        elif isinstance(request, Put):
            answer = self._welcome(request) or self._buffers.answer(request)
            if answer.verdict is CopyVerdict.GO:
                answer = self._buffers.take_in(request, channel, self._offered)
            channel.send(answer)
        else:
            self._give(channel, request)

    def _give(self, channel: CopyChannel, get: Get) -> None:
        try:
            image = self._parts.open(get.rank, get.checkpoint)
        except (CheckpointError, OSError) as error:
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=str(error)))
            return
        try:
            sending = Sending(channel, image.fileno, image.nbytes)
            with self._offered(sending, get.streams) as go:
                channel.send(structs.replace(go, total=image.nbytes))
                if channel.answer(image.nbytes).verdict is not CopyVerdict.GO:
                    return  # it has no memory for it
                if go.streams > 1:
                    sending.carry(channel)
                else:
                    channel.send_file(image.fileno, image.nbytes, None)
                is_damaged = channel.answer(image.nbytes).verdict is CopyVerdict.REFUSED
            if is_damaged:
                try:
                    image.verify()
                except CorruptPart as error:
                    image.path.unlink(missing_ok=True)
                    self._notes.say("damaged", f"a damaged copy was removed: {error}", 60.0)
        finally:
            image.close()

    @contextmanager
    def _offered(self, transfer: Transfer, streams: int) -> Iterator[CopyAnswer]:
        """Yield the answer that lets ``streams`` connections carry the bytes, or one where many are open."""
        granted = min(streams, MAX_STREAMS) if len(self._channels) < _CROWDED else 1
        if granted <= 1:
            yield CopyAnswer(verdict=CopyVerdict.GO)
            return
        with transfer, self._open.offered(transfer) as ticket:
            yield CopyAnswer(verdict=CopyVerdict.GO, streams=granted, ticket=ticket)

    def _welcome(self, put: Put) -> CopyAnswer | None:
        """Return the refusal of what does not belong to the generation that runs here.

        Once workers are being stopped nothing new is let in: it would cost an older copy of which the
        controller has heard already. What is coming in then comes to its end.
        """
        if not PAGE < put.total <= MAX_IMAGE_BYTES or put.rank < 0:
            return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=f"no image has {put.total} bytes")
        if put.launch != self.launch:
            reason = f"generation {put.launch} does not run here, {self.launch or 'none'} does"
            return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=reason, later=put.launch > self.launch)
        return None


# Beyond this the image that comes in leaves the node's other users too little of its memory.
_RESERVE = 0.02


class Offered(Protocol):
    """Grants a transfer some of the ``streams`` that were asked for."""

    def __call__(self, transfer: Transfer, streams: int) -> AbstractContextManager[CopyAnswer]:
        """Return the answer to send."""


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
        """Return what to say to the offer, before anything is done about it."""
        if self.number == 0:
            return _refused("its memory has no room for copies of other nodes")
        if put.checkpoint in self._held(put.rank).values():
            return CopyAnswer(verdict=CopyVerdict.HAVE)
        return CopyAnswer(verdict=CopyVerdict.GO)

    def take_in(self, put: Put, channel: CopyChannel, offered: Offered) -> CopyAnswer:
        """Say GO and receive the image; what to answer at the end. Raises ``OSError`` of the channel.

        Whatever happens, the buffer holds the whole new image or none.
        """
        with self._lock:
            if put.rank in self._busy:
                return _refused("an earlier copy of the same rank is still coming in", later=True)
            self._busy.add(put.rank)
        try:
            return self._refill(put, channel, offered)
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

    def _refill(self, put: Put, channel: CopyChannel, offered: Offered) -> CopyAnswer:
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
            receiving = Receiving(channel, view)
            with offered(receiving, put.streams) as go:
                channel.send(go)
                if go.streams > 1:
                    receiving.carry(channel)
                    receiving.finish()
                else:
                    channel.receive_into(view)
            try:
                header = buffer.adopt()
            except CheckpointError as error:
                buffer.discard()
                return _refused(f"what arrived is damaged: {error}")
            if (header.run_id, header.rank, header.checkpoint) != (put.run_id, put.rank, put.checkpoint):
                buffer.path.unlink(missing_ok=True)
                return _refused("what arrived is not what was announced")
            return CopyAnswer(verdict=CopyVerdict.GO)
        except BaseException:
            buffer.discard()
            raise
        finally:
            view.release()

    def _victim(self, put: Put) -> Path:
        """Choose the buffer: an empty one, else what the running generation cannot use, else the older."""
        held = self._held(put.rank)

        def worth(path: Path) -> tuple[bool, bool, int]:
            found = held.get(path)
            if found is None:
                return False, False, -1
            return True, found.generation == put.launch or found == put.restore, found.step

        return min(self._paths(put.rank), key=worth)

    def _held(self, rank: int) -> dict[Path, CheckpointId]:
        """Return the checkpoints of the whole images in the buffers of ``rank``."""
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
        """Return the buffer, mapped since its last use: mapping a gigabyte anew takes a tenth of a second."""
        with self._lock:
            inode, known = self._open.get(path, (0, None))
            if known is not None and _inode(path) == inode:
                return known
            if known is not None:
                known.close()  # another thread found its image damaged and removed it
            buffer = Buffer(path)
            self._open[path] = _inode(path), buffer
            return buffer


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _has_room(buffer: Buffer, total: int) -> bool:
    """Return whether the folder's file system has the memory, before the image that is there is given up."""
    space = os.statvfs(buffer.path.parent)
    free = space.f_bavail * space.f_frsize - _RESERVE * space.f_blocks * space.f_frsize
    return total - buffer.capacity <= max(0.0, free)


def _refused(reason: str, *, later: bool = False) -> CopyAnswer:
    return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=reason, later=later)
