"""One image over several connections of the same two agents, where one does not fill the way between them.

Bonded links, paths of equal cost and clouds give each connection a share of their own, and one connection
keeps one core busy. The image goes in pieces: each connection takes the next one when it has room, so a slow
path gets fewer. The receiver takes pieces in any order, and sums everything when all have come. A connection
that breaks ends the copy, as if it were the only one.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.wire import copychannel
from slurm_robust.wire.copychannel import (
    FIRST_BYTE,
    ChannelError,
    CopyAnswer,
    CopyChannel,
    CopyVerdict,
    Join,
)

STREAM_BYTES_S = 5e9 / 8
"""What one connection is sure to carry: AWS holds a flow to 5 Gb/s between nodes that are not in one
placement group (EC2 user guide, "instance network bandwidth").
"""

UNKNOWN_BYTES_S = 25e9 / 8
"""What an interface counts as if the kernel does not say what it carries, as in most clouds."""

MAX_STREAMS = 16
"""Of one image."""

MOST_STREAMS = 48
"""Of a node in one direction. Of more, each would wait longer for its turn than the other side for a byte."""

PIECE_BYTES = 4 * 2**20
"""Of a piece: 7 ms of :data:`STREAM_BYTES_S`, which is what the last one costs."""

_NOTE_EVERY_S = 600.0


def streams_for(bytes_s: float, images: int, asked: int) -> int:
    """Return over how many connections each of ``images`` goes that leave or reach a node together.

    ``bytes_s``: what they may take together, 0 if that is not known. ``asked``: what the owner wants, 0 for
    as many as it takes if each carries :data:`STREAM_BYTES_S`.
    """
    images = max(1, images)
    enough = math.ceil((bytes_s or UNKNOWN_BYTES_S) / STREAM_BYTES_S / images)
    return max(1, min(asked or enough, MAX_STREAMS, MOST_STREAMS // images))


def worthwhile(streams: int, total: int) -> int:
    """Return how many of ``streams`` get a piece of an image of ``total`` bytes."""
    return max(1, min(streams, total // PIECE_BYTES))


class Transfer:
    """The bytes of one image, carried by the connection on which it was agreed and by others that enter.

    A context manager: at its end no connection carries anything any more. Each connection has a thread.
    """

    def __init__(self, channel: CopyChannel) -> None:
        self._main = channel
        self._changed = threading.Condition()
        self._others: dict[CopyChannel, bool] = {}  # whether it carries already
        self._is_over = False
        self._error: OSError | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._is_over, why = True, self._error
            if error is not None:
                self._abort_others()
            # Those that are only about to carry find that there is nothing left.
            self._others = {channel: True for channel, carries in self._others.items() if carries}
            if not self._changed.wait_for(lambda: not self._others, copychannel.PROGRESS_S):
                self._abort_others()
                self._changed.wait_for(lambda: not self._others, copychannel.PROGRESS_S)
        if isinstance(error, OSError) and why is not None and why is not error:
            raise why from error  # the connection was cut only because another one had broken

    def enter(self, channel: CopyChannel) -> bool:
        """Return whether ``channel`` may carry pieces; then it does so until :meth:`leave`."""
        with self._changed:
            if not self._is_over:
                self._others[channel] = False
            return not self._is_over

    def leave(self, channel: CopyChannel) -> None:
        """End what :meth:`enter` began."""
        with self._changed:
            self._others.pop(channel, None)
            self._changed.notify_all()

    def carry(self, channel: CopyChannel) -> None:
        """Carry pieces until there are no more. If it breaks, all others end. Raises ``OSError``.

        After the end there are none.
        """
        with self._changed:
            if channel in self._others:
                self._others[channel] = True
        try:
            self._carry(channel)
        except OSError as error:
            self._break(error)
            raise

    def _break(self, error: OSError) -> None:
        with self._changed:
            if self._is_over:
                return
            self._error = self._error or error
            self._main.abort()
            self._abort_others()
            self._changed.notify_all()

    def _abort_others(self) -> None:
        for channel in self._others:
            channel.abort()

    @property
    def is_over(self) -> bool:
        """Whether nothing more is carried, as all has come or a connection broke."""
        return self._is_over or self._error is not None

    def _carry(self, channel: CopyChannel) -> None:
        raise NotImplementedError


class Sending(Transfer):
    """Bytes 8 to ``total`` of an image's ``file``; the rest as in :meth:`CopyChannel.send_file`."""

    def __init__(
        self,
        channel: CopyChannel,
        file: int,
        total: int,
        pace: Callable[[int], None] | None = None,
        at_once: int = 0,
    ) -> None:
        super().__init__(channel)
        self._file, self._pace, self._at_once = file, pace, at_once
        self._places = iter(range(FIRST_BYTE, total, PIECE_BYTES))
        self._total = total

    def _carry(self, channel: CopyChannel) -> None:
        while (at := self._take()) is not None:
            count = min(PIECE_BYTES, self._total - at)
            channel.send_piece(self._file, at, count, self._pace, self._at_once)
        channel.end_pieces()

    def _take(self) -> int | None:
        with self._changed:
            return None if self._is_over else next(self._places, None)


class Receiving(Transfer):
    """Into ``view``, which is bytes 8 to total of an image."""

    def __init__(self, channel: CopyChannel, view: memoryview) -> None:
        super().__init__(channel)
        self._view = view
        self._missing = len(view)

    def finish(self) -> None:
        """Wait until the pieces of all connections have come. Raises ``OSError``.

        Every connection that carries any makes progress or breaks, so this ends.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or not self._missing or not self._others)
            if self._error is not None:
                raise self._error
            if self._missing:
                raise ChannelError("the pieces that came do not make up the image")

    def _carry(self, channel: CopyChannel) -> None:
        view = memoryview(b"") if self._is_over else self._view
        while count := channel.receive_piece(view):
            with self._changed:
                self._missing -= count
                self._changed.notify_all()


class OpenTransfers:
    """The transfers of a server which other connections may enter, by ticket."""

    def __init__(self) -> None:
        self._by_ticket: dict[str, Transfer] = {}

    @contextmanager
    def offered(self, transfer: Transfer) -> Iterator[str]:
        """Let connections that show this ticket enter."""
        ticket = secrets.token_hex(16)
        self._by_ticket[ticket] = transfer
        try:
            yield ticket
        finally:
            del self._by_ticket[ticket]

    def join(self, channel: CopyChannel, request: Join) -> bool:
        """Answer, and carry pieces over ``channel`` if its ticket is good. Raises ``OSError``.

        Returns False if the copy broke: ``channel`` ends with it, and the connection that agreed on the copy
        says why.
        """
        transfer = self._by_ticket.get(request.ticket)
        if transfer is None or not transfer.enter(channel):
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason="that copy is over"))
            return True
        try:
            channel.send(CopyAnswer(verdict=CopyVerdict.GO))
            transfer.carry(channel)
            return True
        except OSError:
            return False
        finally:
            transfer.leave(channel)


class SideStreams:
    """A client's further connections to one agent, which stay open from one copy to the next."""

    def __init__(self, connect: Callable[[], CopyChannel], notes: Notes) -> None:
        self._connect = connect
        self._notes = notes
        self._lock = threading.Lock()
        self._idle: list[CopyChannel] = []
        self._working = 0
        self._is_closed = False

    def help(self, transfer: Transfer, ticket: str, number: int) -> None:
        """Have ``number`` connections carry pieces of ``transfer``, too. Returns immediately.

        If one cannot be made, or the other side refuses it, the copy goes without it.
        """
        with self._lock:
            starting = max(0, number - self._working)  # others still try to connect for an earlier copy
            self._working += starting
        for _ in range(starting):
            work = partial(self._help, transfer, ticket)
            if self._notes.start_thread("stream", "carries pieces of a copy", work) is None:
                self._free(None)

    def close(self) -> None:
        """Close the connections, those at work when they are through."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for channel in idle:
            channel.close()

    def _help(self, transfer: Transfer, ticket: str) -> None:
        channel: CopyChannel | None = None
        is_good = False
        try:
            with self._lock:
                channel = self._idle.pop() if self._idle else None
            channel = channel or self._connect()
            is_good = not transfer.enter(channel) or _carried(transfer, channel, ticket)
        except OSError as error:
            if not transfer.is_over:
                text = f"one of several connections for a copy failed, others go on: {error}"
                self._notes.say("stream failed", text, _NOTE_EVERY_S)
        finally:
            if channel is not None and not is_good:
                channel.close()
            self._free(channel if is_good else None)

    def _free(self, channel: CopyChannel | None) -> None:
        with self._lock:
            self._working -= 1
            if channel is not None and not self._is_closed:
                self._idle.append(channel)
                channel = None
        if channel is not None:
            channel.close()


def _carried(transfer: Transfer, channel: CopyChannel, ticket: str) -> bool:
    """Carry pieces over ``channel``, which has entered, if the other side agrees.

    Returns whether the connection is still good. Raises ``OSError`` if it breaks before it carries any.
    """
    try:
        channel.send(Join(ticket=ticket))
        is_welcome = channel.answer().verdict is CopyVerdict.GO
        try:
            if is_welcome:
                transfer.carry(channel)
            return True
        except OSError:
            return False  # so the copy is over, and its first connection says why
    finally:
        transfer.leave(channel)
