"""Fetches parts from other nodes for a restore, beside the start of the workers that wait for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.streams import Receiving, SideStreams, worthwhile
from slurm_robust.checkpoint.errors import CheckpointError, CorruptPart, MissingCheckpoint
from slurm_robust.checkpoint.image import Buffer, BufferInUse
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.model.copies import SHARED, CheckpointId, RestoreSource
from slurm_robust.util.files import write_atomically
from slurm_robust.wire.copychannel import CopyAnswer, CopyChannel, CopyVerdict, Get
from slurm_robust.wire.messages import Launch

TRIES = 3
_RETRY_S = 0.5


def remove_fetched(folder: MemoryFolder) -> None:
    """Remove what was fetched for an earlier launch, and why something could not be."""
    for path in folder.path.glob("fetched-*"):
        path.unlink(missing_ok=True)


class Fetches:
    """The parts of one launch, each in a thread, into ``fetched(rank)`` or ``fetch_error(rank)``."""

    def __init__(
        self, launch: Launch, folder: MemoryFolder, key: bytes, notes: Notes, streams: int = 1
    ) -> None:
        """Start immediately. ``streams``: connections for each part."""
        self._run_id = folder.run_id
        self._folder = folder
        self._key = key
        self._notes = notes
        self._streams = streams
        self._stopped = threading.Event()
        self._channels: set[CopyChannel] = set()
        remove_fetched(self._folder)
        checkpoint = launch.restore
        for source in launch.sources:
            if source.address and checkpoint is not None:
                work = partial(self._run, source, checkpoint)
                if notes.start_thread("fetch", f"fetches parts of {checkpoint}", work) is None:
                    self._give_up(source, checkpoint, "too many threads on this node")

    def stop(self) -> None:
        """Break off what is under way, since another launch comes. Returns immediately."""
        self._stopped.set()
        for channel in tuple(self._channels):
            channel.abort()

    def _run(self, source: RestoreSource, checkpoint: CheckpointId) -> None:
        reason = "unexpected error, see the agent's output"
        try:
            reason = self._try(source, checkpoint)
        finally:
            if reason and not self._stopped.is_set():
                self._give_up(source, checkpoint, reason)

    def _try(self, source: RestoreSource, checkpoint: CheckpointId) -> str:
        """Return why the part could not be fetched, "" if it is here."""
        reason = ""
        for attempt in range(TRIES):
            if attempt and self._stopped.wait(_RETRY_S):
                break
            try:
                self._fetch(source, checkpoint, streams=1 if attempt else self._streams)
                return ""
            except MissingCheckpoint as error:
                return str(error)
            except (CheckpointError, OSError, BufferInUse) as error:
                reason = str(error)
        return reason

    def _give_up(self, source: RestoreSource, checkpoint: CheckpointId, reason: str) -> None:
        """Leave the reason for the worker that waits for the part."""
        where = f"{source.address}:{source.port}"
        part = "the shared part" if source.rank == SHARED else f"the part of rank {source.rank}"
        text = f"{part} of {checkpoint} could not be fetched from {where}: {reason}"
        _write(self._folder.fetch_error(source.rank), text)

    def _fetch(self, source: RestoreSource, checkpoint: CheckpointId, *, streams: int) -> None:
        connect = partial(CopyChannel.connect, source.address, source.port, self._key)
        channel, sides = connect(), SideStreams(connect, self._notes)
        self._channels.add(channel)
        try:
            get = Get(run_id=self._run_id, rank=source.rank, checkpoint=checkpoint, streams=streams)
            channel.send(get)
            answer = channel.answer()
            if answer.verdict is not CopyVerdict.GO:
                raise MissingCheckpoint(answer.reason)
            _write(self._folder.fetch_size(source.rank), str(answer.total))
            with _reserved(channel, self._folder.fetched(source.rank), answer.total) as (buffer, view):
                channel.send(CopyAnswer(verdict=CopyVerdict.GO))
                number = worthwhile(min(answer.streams, streams), answer.total)
                if answer.streams > 1:
                    receiving = Receiving(channel, view)
                    with receiving:
                        sides.help(receiving, answer.ticket, number - 1)
                        receiving.carry(channel)
                        receiving.finish()
                else:
                    channel.receive_into(view)
                try:
                    header = buffer.adopt()
                except CorruptPart as error:
                    # So that the sender checks its own copy, and no longer reports it if it is damaged.
                    channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=str(error)))
                    raise
            if (header.run_id, header.rank, header.checkpoint) != (self._run_id, source.rank, checkpoint):
                self._folder.fetched(source.rank).unlink(missing_ok=True)
                raise CorruptPart("what arrived is another image than was asked for")
            channel.send(CopyAnswer(verdict=CopyVerdict.GO))
        finally:
            self._channels.discard(channel)
            channel.close()
            sides.close()


@contextmanager
def _reserved(channel: CopyChannel, path: Path, total: int) -> Iterator[tuple[Buffer, memoryview]]:
    """Yield a buffer and its memory for an image of ``total`` bytes; it ends empty unless that was adopted.

    If there is no room, the sender gets REFUSED. Raises ``OSError``.
    """
    with ExitStack() as stack:
        try:
            buffer = Buffer(path)
            stack.callback(buffer.close)
            view = buffer.receive(total)
        except (OSError, BufferInUse) as error:
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=str(error)))
            raise
        stack.callback(buffer.discard)
        stack.callback(view.release)
        yield buffer, view


def _write(path: Path, text: str) -> None:
    """Write the whole text or nothing: a worker waits for the file to appear."""
    try:
        write_atomically(path, text.encode(), durable=False)
    except OSError:
        pass  # no memory even for this: the worker's own deadline ends its wait
