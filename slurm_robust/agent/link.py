"""Which controller to talk to. Decides only; the loop reads the epochs and connects.

A controller proves that it lives by answering heartbeats. If none comes, the agent searches for a newer
controller, again and again: training does not depend on a controller, so there is no reason to give up.
"""

from __future__ import annotations

from slurm_robust.wire.epochs import EpochRecord

SILENCE_S = 3.0
READ_EVERY_S = 1.0
# The address that once answered may be dead now, so all are tried again.
RECONNECT_EVERY_S = 10.0
# Even while a controller answers: another one with a higher epoch may have taken the job.
CHECK_EVERY_S = 60.0


class ControllerLink:
    """Times are monotonic seconds."""

    def __init__(self) -> None:
        self.controller: EpochRecord | None = None
        self._heard: float | None = None
        self._read_at: float | None = None
        self._reading = False
        self._connected = 0.0
        self._silent_since: float | None = None

    def silence(self, now: float) -> float:
        """Return the seconds since any controller answered, or since this was first asked."""
        if self._silent_since is None:
            self._silent_since = now
        return now - self._silent_since

    def wants_epoch(self, now: float) -> bool:
        """Return whether the newest epoch should be read now (True once until :meth:`on_epoch`)."""
        if self._reading:
            return False
        silent = self._heard is None or now - self._heard > SILENCE_S
        if self._read_at is not None and now - self._read_at < (READ_EVERY_S if silent else CHECK_EVERY_S):
            return False
        self._reading, self._read_at = True, now
        return True

    def on_epoch(self, newest: EpochRecord | None, now: float) -> bool:
        """Take in the newest epoch; True if the loop should connect to ``controller`` anew."""
        self._reading = False
        known = self.controller.epoch if self.controller else 0
        if newest is not None and newest.epoch > known:
            self.controller = newest
            self._heard, self._connected = None, now
            return True
        silent = self._heard is None or now - self._heard > SILENCE_S
        if self.controller is not None and silent and now - self._connected > RECONNECT_EVERY_S:
            self._connected = now
            return True
        return False

    def on_epoch_failed(self) -> None:
        """Ask again later: the job directory could not be read."""
        self._reading = False

    def on_answer(self, epoch: int, now: float) -> None:
        """Take in that a controller of ``epoch`` spoke."""
        if self.controller is not None and epoch >= self.controller.epoch:
            self._heard = self._silent_since = now
