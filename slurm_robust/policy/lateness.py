"""Is a node late that is not there yet? Pure; asked of agents, of zygotes and of launches alike.

Where all nodes read the same files from one storage, a thousand of them take minutes and come in a long row.
"""

from __future__ import annotations

import math

AGENT_LEAST_S = 60.0
"""An agent has at least this time to come, however early the others came."""

WORKERS_LEAST_S = 120.0
"""A node has at least this time to start its workers, however early the others did."""

GROWS_S = 60.0
"""Nobody is late while the newest node came within so many seconds."""


def patience_s(limit_s: float, least_s: float, grown_s: float | None) -> float:
    """How long the missing nodes have since the beginning.

    ``limit_s`` while not one node is there. Once some are, until none has come for a minute, and ``least_s``
    at least. ``grown_s``: seconds since the newest one came, None while there is none.
    """
    if grown_s is None:
        return limit_s
    return math.inf if grown_s <= GROWS_S else min(limit_s, least_s)


class Growth:
    """Follows how many nodes are there; who comes back is no new one. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._most = 0
        self._at: float | None = None

    def see(self, count: int, now: float) -> float | None:
        """Seconds since the number last grew, now that ``count`` are there; None while none ever was."""
        if count > self._most:
            self._most, self._at = count, now
        return None if self._at is None else now - self._at
