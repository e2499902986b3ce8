"""Streams the snapshots of one rank to the agent of its peer: the newest, whenever one is through."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import partial

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.streams import Sending, SideStreams, worthwhile
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.memory import FoundImage
from slurm_robust.model.copies import CheckpointId, Peer
from slurm_robust.wire.copychannel import ChannelError, CopyAnswer, CopyChannel, CopyVerdict, Put

_FIRST_RETRY_S = 0.1
_LAST_RETRY_S = 5.0
_LATER_RETRY_S = 0.1
_REFUSED_RETRY_S = 30.0
_BEHIND_NOTE_S = 60.0
# After one of several connections broke, one alone is used for so long: only some ways may be cut.
_ALONE_S = 60.0


class RateLimit:
    """A limit in bytes per second for all senders of a node; 0 for none."""

    def __init__(self, bytes_s: float) -> None:
        self.bytes_s = bytes_s
        self._lock = threading.Lock()
        self._free = 0.0

    @property
    def piece(self) -> int:
        """Bytes to send at a time, so that no copy waits long for its turn; 0: as it comes."""
        return int(min(2**20, max(2**14, self.bytes_s / 20))) if self.bytes_s else 0

    def reserve(self, count: int) -> float:
        """Return seconds to wait before ``count`` bytes may be sent."""
        if not self.bytes_s:
            return 0.0
        now = time.monotonic()
        with self._lock:
            begin = max(self._free, now)
            self._free = begin + count / self.bytes_s
        return begin - now


@dataclass(frozen=True)
class SenderLaunch:
    """What senders must know of the launch."""

    run_id: str
    number: int
    restore: CheckpointId | None  # the checkpoint that it began with
    streams: int = 1  # connections for each image


class PeerSender:
    """One rank's thread. Nothing that happens here disturbs training or the other ranks."""

    def __init__(
        self, peer: Peer, generation: SenderLaunch, key: bytes, pace: RateLimit, notes: Notes
    ) -> None:
        self._peer = peer
        self._generation = generation
        self._key = key
        self._pace = pace
        self._notes = notes
        self._news = threading.Condition()
        self._offer: tuple[FoundImage, float] | None = None
        self._offered: CheckpointId | None = None
        self._finishing = False
        self._stopped = threading.Event()
        self._connect = partial(CopyChannel.connect, peer.address, peer.port, key)
        self._channel: CopyChannel | None = None
        self._sides = SideStreams(self._connect, notes)
        self._alone_until = 0.0
        self._skipped = 0
        self._failing = False
        self.lag_s = 0.0  # from the first sight of the last image of this generation until the peer had it
        self.confirmed: CheckpointId | None = None
        task = f"copies rank {peer.rank} to {peer.node}"
        self._thread = notes.start_thread("peer", task, self._run, self._stopped)

    def offer(self, image: FoundImage) -> None:
        """Have the newest image copied; what was offered before and has not begun is passed over."""
        with self._news:
            if image.checkpoint == self._offered:
                return
            self._skipped += self._offer is not None
            self._offer, self._offered = (image, time.monotonic()), image.checkpoint
            self._news.notify()

    def finish(self) -> None:
        """Begin nothing more; what is under way comes to its end. Returns immediately."""
        with self._news:
            self._finishing, self._offer = True, None
            self._news.notify()

    def stop(self) -> None:
        """Break off whatever is under way. Returns immediately."""
        self._stopped.set()
        self.finish()
        channel = self._channel
        if channel is not None:
            channel.abort()

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        retry_s = _FIRST_RETRY_S
        while (taken := self._take()) is not None:
            try:
                wait_s = self._copy(*taken)
            except OSError as error:
                self._hang_up()
                if not self._stopped.is_set():
                    self._notes.say(
                        f"peer {self._peer.rank}",
                        f"copies of rank {self._peer.rank} do not reach {self._peer.node} "
                        f"({self._peer.address}:{self._peer.port}): {error}; the agent keeps trying",
                    )
                wait_s = retry_s
            except BaseException:
                self._hang_up()
                self._again(taken)
                raise
            self._failing = wait_s > 0
            retry_s = min(2 * retry_s, _LAST_RETRY_S) if self._failing else _FIRST_RETRY_S
            if self._failing:
                self._again(taken)
                self._stopped.wait(wait_s)
        self._hang_up()

    def _take(self) -> tuple[FoundImage, float] | None:
        """Return the next image and when it was first seen; None at the end."""
        with self._news:
            while self._offer is None:
                if self._finishing:
                    return None
                self._news.wait()
            taken, self._offer = self._offer, None
            skipped, self._skipped = self._skipped, 0
        if skipped and not self._failing:
            self._notes.say(
                "behind",
                f"peer copies fall behind: {skipped} snapshots of rank {self._peer.rank} before step "
                f"{taken[0].header.step} were not copied to {self._peer.node}",
                _BEHIND_NOTE_S,
            )
        return taken

    def _again(self, taken: tuple[FoundImage, float]) -> None:
        """Try the same once more, unless there is a newer one or it is over."""
        with self._news:
            if self._offer is None and not self._finishing:
                self._offer = taken

    def _copy(self, image: FoundImage, seen: float) -> float:
        """Bring the image to the peer; seconds to wait before it is tried again, 0 if it is done."""
        try:
            opened = open_image(image.path)
        except CheckpointError:
            return 0.0  # refilled before its turn came, or damaged, which its reader will find
        try:
            header = opened.header
            if header.checkpoint != image.checkpoint:
                return 0.0
            put = Put(
                run_id=self._generation.run_id,
                launch=self._generation.number,
                restore=self._generation.restore,
                rank=header.rank,
                checkpoint=header.checkpoint,
                total=opened.nbytes,
                streams=self._streams(opened.nbytes),
            )
            channel = self._channel
            if channel is None:
                self._channel = channel = self._connect()
                if self._stopped.is_set():
                    raise ChannelError("it is over")
            channel.send(put)
            answer = channel.answer(put.total)
            sent = answer.verdict is CopyVerdict.GO
            if sent and answer.streams > 1:
                answer = self._send_pieces(channel, opened.fileno, put, answer)
            elif sent:
                self._close_sides()  # the peer may have too many connections
                channel.send_file(opened.fileno, put.total, self._wait_turn, self._pace.piece)
                answer = channel.answer(put.total)
        finally:
            opened.close()
        if answer.verdict is not CopyVerdict.REFUSED:
            self.confirmed = image.checkpoint
            if header.generation == self._generation.number:
                self.lag_s = time.monotonic() - seen
            return 0.0
        if answer.later:
            return _LATER_RETRY_S
        self._notes.say(
            f"refused {self._peer.rank}",
            f"{self._peer.node} takes no copy of rank {self._peer.rank}: {answer.reason}",
        )
        # One that was damaged on the way, or is so here, is given up: the next one may be better.
        return 0.0 if sent else _REFUSED_RETRY_S

    def _streams(self, total: int) -> int:
        is_alone = time.monotonic() < self._alone_until
        return 1 if is_alone else worthwhile(self._generation.streams, total)

    def _send_pieces(self, channel: CopyChannel, file: int, put: Put, go: CopyAnswer) -> CopyAnswer:
        sending = Sending(channel, file, put.total, self._wait_turn, self._pace.piece)
        try:
            with sending:
                self._sides.help(sending, go.ticket, min(go.streams, put.streams) - 1)
                sending.carry(channel)
                return channel.answer(put.total)
        except OSError:
            self._alone_until = time.monotonic() + _ALONE_S
            raise

    def _hang_up(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        self._close_sides()

    def _close_sides(self) -> None:
        self._sides.close()
        self._sides = SideStreams(self._connect, self._notes)

    def _wait_turn(self, count: int) -> None:
        if self._stopped.wait(self._pace.reserve(count)):
            raise ChannelError("it is over")
