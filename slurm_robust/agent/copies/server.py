"""Serves this node's copies to the job's other agents, and takes in theirs. One thread per connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable
from functools import partial

from slurm_robust.agent.copies.entrance import Entrance
from slurm_robust.agent.copies.peerbuffers import PeerBuffers
from slurm_robust.agent.copies.threads import CopyThread, Notes
from slurm_robust.checkpoint.errors import CheckpointError, CorruptPart
from slurm_robust.checkpoint.image import PAGE, Image
from slurm_robust.checkpoint.tiers import NodeTiers
from slurm_robust.wire.copychannel import MAX_IMAGE_BYTES, Channel, CopyAnswer, CopyVerdict, Get, Put

# Far more than a node's ranks and those of its peers; what is beyond is turned away.
CONNECTIONS = 128


class CopyServer:
    """Listens on a bound socket until :meth:`close`. ``launch``: the generation whose copies are welcome."""

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
        self._channels: set[Channel] = set()
        self._closed = False
        self.launch = 0
        self._entrance = Entrance(listener, key, self._admit, notes)

    def expect(self, addresses: Iterable[str]) -> None:
        """Where agents of this job are, for whom there is always room."""
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

    def _admit(self, channel: Channel, address: str) -> None:
        with self._lock:
            if self._closed or len(self._channels) >= CONNECTIONS:
                channel.close()
                return
            self._channels.add(channel)
        work = partial(self._serve, channel, address)
        thread = CopyThread("copy", f"serves a connection of {address}", work, self._notes)
        if not thread.started:
            self._hang_up(channel)

    def _serve(self, channel: Channel, address: str) -> None:
        try:
            while (request := channel.request()) is not None:
                self._handle(channel, request)
        except OSError as error:
            if not self._closed:
                self._notes.say("broken", f"a connection of {address} for copies broke off: {error}", 600.0)
        finally:
            self._hang_up(channel)

    def _hang_up(self, channel: Channel) -> None:
        with self._lock:
            self._channels.discard(channel)
        channel.close()

    # -- requests ----------------------------------------------------------------------------------

    def _handle(self, channel: Channel, request: Put | Get) -> None:
        if request.run_id != self._run_id:
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=f"this is run {self._run_id}"))
        elif isinstance(request, Put):
            self._on_put(channel, request)
        else:
            self._on_get(channel, request)

    def _on_put(self, channel: Channel, put: Put) -> None:
        answer = self._welcome(put) or self._buffers.answer(put)
        if answer.verdict is CopyVerdict.GO:
            answer = self._buffers.take_in(put, channel)
        channel.send(answer)

    def _welcome(self, put: Put) -> CopyAnswer | None:
        """The refusal of what does not belong to the generation that runs here.

        Once workers are being stopped nothing new is let in: it would cost an older copy of which the
        controller has heard already. What is coming in then comes to its end.
        """
        if not PAGE < put.total <= MAX_IMAGE_BYTES or put.rank < 0:
            return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=f"no image has {put.total} bytes")
        if put.launch != self.launch:
            reason = f"generation {put.launch} does not run here, {self.launch or 'none'} does"
            return CopyAnswer(verdict=CopyVerdict.REFUSED, reason=reason, later=put.launch > self.launch)
        return None

    def _on_get(self, channel: Channel, get: Get) -> None:
        try:
            image = self._parts.open(get.rank, get.checkpoint)
        except (CheckpointError, OSError) as error:
            channel.send(CopyAnswer(verdict=CopyVerdict.REFUSED, reason=str(error)))
            return
        try:
            channel.send(CopyAnswer(verdict=CopyVerdict.GO, total=image.nbytes))
            if channel.answer(image.nbytes).verdict is not CopyVerdict.GO:
                return  # it has no memory for it
            channel.send_file(image.fileno, image.nbytes, None)
            if channel.answer(image.nbytes).verdict is CopyVerdict.REFUSED:
                self._remove_if_damaged(image)
        finally:
            image.close()

    def _remove_if_damaged(self, image: Image) -> None:
        try:
            image.verify()
        except CorruptPart as error:
            image.path.unlink(missing_ok=True)
            self._notes.say("damaged", f"a damaged copy was removed: {error}", 60.0)
