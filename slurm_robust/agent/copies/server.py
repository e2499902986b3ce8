"""Serves this node's copies to the job's other agents, and takes in theirs. One thread per connection."""

from __future__ import annotations

import errno
import socket
import threading

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.parts import NodeParts
from slurm_robust.agent.copies.peerbuffers import PeerBuffers
from slurm_robust.checkpoint.errors import CheckpointError, CorruptPart
from slurm_robust.checkpoint.image import PAGE, Image
from slurm_robust.checkpoint.store import CheckpointRef
from slurm_robust.wire.copychannel import HANDSHAKE_S, MAX_IMAGE_BYTES, Answer, Channel, Get, Put, Verdict

# Far more than a node's ranks and those of its peers; what is beyond is turned away.
CONNECTIONS = 128
# Of these, so many that have not proven themselves yet: a flood of strangers keeps no agent out.
STRANGERS = 16
_BACKLOG = 64


class CopyServer:
    """Listens on a bound socket until :meth:`close`. ``launch``: the generation whose copies are welcome."""

    def __init__(
        self,
        listener: socket.socket,
        key: bytes,
        *,
        run_id: str,
        parts: NodeParts,
        buffers: PeerBuffers,
        notes: Notes,
    ) -> None:
        self._listener = listener
        self._key = key
        self._run_id = run_id
        self._parts = parts
        self._buffers = buffers
        self._notes = notes
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._channels: set[Channel] = set()
        self._closed = False
        self.launch = 0
        listener.listen(_BACKLOG)
        threading.Thread(target=self._accept, name="srobust-copies", daemon=True).start()

    def close(self) -> None:
        """End all connections. An image that was coming in does not appear."""
        with self._lock:
            self._closed = True
            channels, strangers = list(self._channels), list(self._strangers)
        for connection in (self._listener, *strangers):
            _shut(connection)
        for channel in channels:
            channel.abort()
        self._listener.close()

    # -- connections -------------------------------------------------------------------------------

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed or error.errno in (errno.EBADF, errno.EINVAL):
                    return
                self._notes.say("accept", f"a connection for copies could not be taken: {error}")
                continue
            self._admit(connection)

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            if self._closed or len(self._channels) + len(self._strangers) >= CONNECTIONS:
                connection.close()
                return
            self._strangers[connection] = None
            if len(self._strangers) > STRANGERS:
                _shut(next(iter(self._strangers)))
        threading.Thread(target=self._serve, args=(connection,), name="srobust-copy", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        channel: Channel | None = None
        who = ""
        try:
            who = connection.getpeername()[0]
            if _is_knock(connection):
                return
            channel = Channel.accept(connection, self._key)
            with self._lock:
                if self._closed:
                    return
                self._channels.add(channel)
                self._strangers.pop(connection, None)
            while (request := channel.request()) is not None:
                self._handle(channel, request)
        except OSError as error:
            if channel is None:
                self._notes.say("stranger", f"a connection to this node's copies was refused: {error}")
            elif not self._closed:
                self._notes.say("broken", f"a connection of {who} for copies broke off: {error}", 600.0)
        finally:
            with self._lock:
                self._strangers.pop(connection, None)
                if channel is not None:
                    self._channels.discard(channel)
            connection.close()

    # -- requests ----------------------------------------------------------------------------------

    def _handle(self, channel: Channel, request: Put | Get) -> None:
        if request.run_id != self._run_id:
            channel.send(Answer(verdict=Verdict.REFUSED, reason=f"this is run {self._run_id}"))
        elif isinstance(request, Put):
            self._on_put(channel, request)
        else:
            self._on_get(channel, request)

    def _on_put(self, channel: Channel, put: Put) -> None:
        answer = self._welcome(put) or self._buffers.answer(put)
        if answer.verdict is Verdict.GO:
            answer = self._buffers.take_in(put, channel)
        channel.send(answer)

    def _welcome(self, put: Put) -> Answer | None:
        """The refusal of what does not belong to the generation that runs here.

        Once workers are being stopped nothing new is let in: it would cost an older copy of which the
        controller was told already. What is coming in then comes to its end.
        """
        if not PAGE < put.total <= MAX_IMAGE_BYTES or put.rank < 0:
            return Answer(verdict=Verdict.REFUSED, reason=f"no image has {put.total} bytes")
        if put.launch != self.launch:
            reason = f"generation {put.launch} does not run here, {self.launch or 'none'} does"
            return Answer(verdict=Verdict.REFUSED, reason=reason, later=put.launch > self.launch)
        return None

    def _on_get(self, channel: Channel, get: Get) -> None:
        try:
            image = self._parts.open(get.rank, CheckpointRef(generation=get.generation, step=get.step))
        except (CheckpointError, OSError) as error:
            channel.send(Answer(verdict=Verdict.REFUSED, reason=str(error)))
            return
        try:
            channel.send(Answer(verdict=Verdict.GO, total=image.nbytes))
            if channel.answer(image.nbytes).verdict is not Verdict.GO:
                return  # it has no memory for it
            channel.send_file(image.fileno, image.nbytes, None)
            if channel.answer(image.nbytes).verdict is Verdict.REFUSED:
                self._remove_if_damaged(image)
        finally:
            image.close()

    def _remove_if_damaged(self, image: Image) -> None:
        try:
            image.verify()
        except CorruptPart as error:
            image.path.unlink(missing_ok=True)
            self._notes.say("damaged", f"a damaged copy was removed: {error}", 60.0)


def _is_knock(connection: socket.socket) -> bool:
    """Whether it was only tried if this node answers: nothing was said. Raises ``OSError``."""
    connection.settimeout(HANDSHAKE_S)
    return not connection.recv(1, socket.MSG_PEEK)


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
