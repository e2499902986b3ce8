"""The core stands still while the journal is behind, and its clock with it."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_robust.controller.effects import Now

# Administrators make room within this time, or nobody does.
LONGEST_S = 1800.0


def read_clocks() -> Now:
    """Both clocks, now."""
    return Now(mono=time.monotonic(), wall=time.time())


class Hold:
    """Whether decisions wait for storage, and the clocks of who decides.

    What was decided is done when the journal holds it, so until then nothing more is decided. Time that
    passes meanwhile is nobody's: no deadline comes nearer. A hold ends when storage has taken all, at once
    when the end of the run is near, and after half an hour in any case. None begins again before the journal
    is whole.
    """

    def __init__(self, clocks: Callable[[], Now] = read_clocks) -> None:
        self._clocks = clocks
        self._since: float | None = None
        self._lost_s = 0.0
        self._is_over = False

    @property
    def holds(self) -> bool:
        """Whether nothing is to be decided, nor done about what is not written."""
        return self._since is not None

    @property
    def gave_up(self) -> bool:
        """Whether the journal is behind and is not waited for."""
        return self._is_over

    def follow(self, *, behind: bool, urgent: bool) -> float:
        """Tell whether the journal is behind, and whether nothing can wait; seconds of a hold that ends."""
        mono = self._clocks().mono
        if not behind:
            self._is_over = False
        elif urgent or (self._since is not None and mono - self._since > LONGEST_S):
            self._is_over = True
        if behind and not self._is_over:
            self._since = mono if self._since is None else self._since
            return 0.0
        if self._since is None:
            return 0.0
        seconds, self._since = mono - self._since, None
        self._lost_s += seconds
        return seconds

    def now(self) -> Now:
        """The clocks, of which the monotonic one stands still during a hold."""
        now = self._clocks()
        mono = now.mono if self._since is None else self._since
        return Now(mono=mono - self._lost_s, wall=now.wall)
