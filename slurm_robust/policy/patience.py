"""Slow is not broken: how long to wait for late nodes, borrowed nodes, dying workers and a requeue. Pure.

If all nodes read the same files from one storage, a thousand of them take minutes and come one after the
other: agents, zygotes and launches alike.

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
"""No node is late while the newest node came within this many seconds."""


def patience_s(limit_s: float, least_s: float, grown_s: float | None) -> float:
    """Return how long the missing nodes have since the beginning.

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
        """Return the seconds since the number last grew, now that it is ``count``; None before the first."""
        if count > self._most:
            self._most, self._at = count, now
        return None if self._at is None else now - self._at


# -- nodes from outside the allocation ---------------------------------------------------------------

_BORROWING_MARGIN_S = 10.0
_QUESTIONS = 3
"""Questions to Slurm for each source, before companions are submitted and after they were given up."""


def borrowing_s(sources: int, wait_s: float, timeout_s: float, nodes: int) -> float:
    """Return the longest time: Slurm takes all of ``timeout_s`` for each answer and each companion."""
    return sources * (wait_s + timeout_s * (_QUESTIONS + 2 * nodes)) + timeout_s + _BORROWING_MARGIN_S


# -- workers that die slowly -------------------------------------------------------------------------

MARGIN_S = 2.0
"""Seconds beyond grace and kill wait, for orders and answers to travel."""

STILL_S = 30.0
"""A killed worker at which nothing has moved for so long is stuck."""


def is_stuck(killed_s: float, still_s: float | None, most_s: float) -> bool:
    """Return whether to wait no longer for a worker that got SIGKILL ``killed_s`` seconds ago.

    ``still_s``: seconds since it last got further; None if that cannot be seen. ``most_s``: however much
    it moves.
    """
    return killed_s > most_s or (still_s is not None and still_s > STILL_S)


# -- a requeue and its effects -----------------------------------------------------------------------

TERM_COMES_S = 10.0
"""Slurm sends TERM to the batch script immediately when it takes a requeue."""

ANSWER_COMES_S = 10.0
"""A TERM may be that of the requeue whose answer is on its way; Slurm's command may have died of it, too.
Slurm kills what is left 30 s after it (``KillWait``).
"""

OWNER_S = 1.5
"""The owner's TERM is obeyed after this time, while no order to Slurm is on its way."""

PAUSE_S, LONGEST_PAUSE_S = 1.0, 16.0
"""Seconds between two attempts, of which each waits up to 20 s itself: doubled from the first to the
second.
"""

LOST_S = 180.0
"""An attempt without an answer for this long is lost; its commands are bounded, and take less."""

GIVE_UP_S = 86400.0
"""After this time the nodes are given back without an answer of slurmctld."""


def next_pause_s(pause_s: float) -> float:
    """Return the pause after the next attempt without an answer."""
    return min(2 * pause_s, LONGEST_PAUSE_S)


def requeue_patience_s(*, taken: bool, done: bool, ordered_to_end: bool, asked: bool) -> float:
    """Return how long a requeue may stay as it is.

    ``taken``: Slurm has requeued the job; ``done``: and a watcher finishes the rest; ``ordered_to_end``: the
    controller was, by Slurm or by the owner; ``asked``: Slurm's answer is awaited.
    """
    if not taken and not ordered_to_end:
        return GIVE_UP_S
    if not taken:
        return ANSWER_COMES_S if asked else OWNER_S
    if done and ordered_to_end:
        return 0.0
    return TERM_COMES_S if done or ordered_to_end else LOST_S
