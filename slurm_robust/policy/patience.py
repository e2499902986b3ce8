"""Slow is not broken: how long nodes that come late, and workers that die slowly, are waited for. Pure.

Where all nodes read the same files from one storage, a thousand of them take minutes and come in a long row:
agents, zygotes and launches alike.

At its end the driver gives back page by page what a worker had registered for its GPU: 243 GB took 25.9 s on
an H100 (reported in sgl-project/sglang#32829; device memory alone takes less than a second). SIGKILL cannot
hurry that, and nothing is wrong with the node.
"""

from __future__ import annotations

import math

AGENT_LEAST_S = 60.0
"""An agent has at least this time to come, however early the others came."""

WORKERS_LEAST_S = 120.0
"""A node has at least this time to start its workers, however early the others did."""

GROWS_S = 60.0
"""Nobody is late while the newest node came within this many seconds."""


def patience_s(limit_s: float, least_s: float, grown_s: float | None) -> float:
    """How long the missing nodes have since the beginning.

    ``limit_s`` while not one node is there. Once some are, until none has come for a minute, and ``least_s``
    at least. ``grown_s``: seconds since the newest one came, None while there is none.
    """
    if grown_s is None:
        return limit_s
    return math.inf if grown_s <= GROWS_S else min(limit_s, least_s)


class Growth:
    """Follows how many nodes are there; a node that comes back is not new. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._most = 0
        self._at: float | None = None

    def see(self, count: int, now: float) -> float | None:
        """Seconds since the number last grew, now that ``count`` are there; None while none ever was."""
        if count > self._most:
            self._most, self._at = count, now
        return None if self._at is None else now - self._at


MARGIN_S = 2.0
"""Beyond grace and kill wait, for orders and answers to travel."""

STILL_S = 30.0
"""A killed worker at which nothing has moved for so long is stuck."""


def is_stuck(killed_s: float, still_s: float | None, most_s: float) -> bool:
    """Whether to wait no longer for a worker that got SIGKILL ``killed_s`` seconds ago.

    ``still_s``: seconds since it last got further; None where that cannot be seen. ``most_s``: however much
    it moves.
    """
    return killed_s > most_s or (still_s is not None and still_s > STILL_S)
