"""After how many steps a snapshot is taken, how often one goes to peers, and when to storage. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from slurm_robust.model.copies import SHARED, Copy, Tier
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.policy.rules import Rules

MAX_STRIDE = 1024
# The steps of one stride must take this many times as long as a copy lags behind, or copies of different
# ranks are of different steps when a node is lost.
HEADROOM = 2.0
# Going back needs this much more room, so that noise does not make the stride swing.
SLACK = 1.5


def next_stride(stride: int, seconds_per_step: float, lag_s: float) -> int:
    """Return the stride that should follow ``stride``: the same, double or half.

    It tends to the smallest power of two (up to 1024) with ``stride * seconds_per_step >= 2 * lag_s``.
    ``lag_s``: worst time in seconds from a snapshot's completion until its peer has it. Without a
    measured step time nothing changes.
    """
    if seconds_per_step <= 0:
        return stride
    if stride * seconds_per_step < HEADROOM * lag_s:
        return min(2 * stride, MAX_STRIDE)
    if stride > 1 and stride // 2 * seconds_per_step >= HEADROOM * SLACK * lag_s:
        return stride // 2
    return stride


LEEWAY = 1.25
"""Snapshots are so many times as far apart as one takes to become whole: some take longer than most."""


def next_local_stride(times: SnapshotTimes, share: float | None) -> int:
    """Return the local stride that should follow the one of ``times``.

    It tends to the smallest power of two (up to 1024) with which snapshots block training for at most
    ``share`` of the time (None: whatever it costs, 1), and raises it at once to where that should be, since
    until then training is slow. It goes back by half.
    """
    stride = times.stride
    if share is None:
        return 1
    needed_s = max(LEEWAY * times.whole_s, times.blocked_s / share if share > 0 else math.inf)
    if times.apart_s < needed_s:
        ratio = needed_s / times.apart_s if times.apart_s > 0 else math.inf
        return MAX_STRIDE if ratio >= MAX_STRIDE else min(stride * power_of_two(ratio), MAX_STRIDE)
    return stride // 2 if stride > 1 and times.apart_s / 2 >= SLACK * needed_s else stride


def power_of_two(least: float) -> int:
    """Return the smallest one that is not less."""
    return 1 << max(0, math.ceil(math.log2(least)))


def common_steps(held: Iterable[Copy], generation: int, ranks: Collection[int]) -> set[int]:
    """Return the steps of ``generation`` of which a node holds the own parts of all its ``ranks`` in memory.

    If it holds the shared part of any, only those of which it holds that, too.
    """
    found: dict[int, set[int]] = {rank: set() for rank in ranks}
    for copy in held:
        if copy.generation == generation and copy.tier is Tier.MEMORY and copy.rank in (SHARED, *ranks):
            found.setdefault(copy.rank, set()).add(copy.step)
    return set.intersection(*found.values()) if found else set()


LEAD_S = 2.0
"""Progress in a heartbeat is up to one heartbeat old and the order travels: no rank may be past the step."""


def agreed_step(newest: int, seconds_per_step: float, lead_s: float = LEAD_S) -> int:
    """Return a step that no rank has reached when the order arrives, as near as that allows.

    ``newest``: the newest step that any rank has reported; ``lead_s``: how old that may be and how long the
    order may take, together.
    """
    lead = math.ceil(lead_s / seconds_per_step) if seconds_per_step > 0 else 0
    return newest + max(2, lead)


UNKEPT_EVERY_S = 10.0
"""While a node keeps no snapshots in memory, storage gets a checkpoint no more often than this."""


def unkept_every_s(blocked_s: float, rules: Rules) -> float:
    """Return after how many seconds a checkpoint goes to storage while nothing else is whole.

    Some rank has no room for snapshots in memory, so only what all ranks put on storage can be restored. That
    rank writes while training waits, for ``blocked_s`` each time (0: not known yet), which may take no larger
    share of the time than snapshots.
    """
    config = rules.config.checkpoint
    share = config.max_blocked_share
    least_s = (
        UNKEPT_EVERY_S if share is None else max(UNKEPT_EVERY_S, blocked_s / share if share else math.inf)
    )
    return min(config.every_s, least_s)


def step_to_store(newest: int, agreed: int, stored_s: float, rules: Rules, every_s: float) -> int | None:
    """Return the step that goes to storage next, None while none is due.

    ``newest`` and ``agreed``: as in :func:`agreed_step`; ``stored_s``: seconds since one last went there;
    ``every_s``: after how many one is due.
    """
    config = rules.config.checkpoint
    if stored_s >= every_s:
        return agreed
    if config.every_steps is None:
        return None
    step = -(-(agreed + 1) // config.every_steps) * config.every_steps - 1
    lead = agreed - newest
    return step if step <= newest + 2 * lead else None  # far away; until then it may become due by time


LISTING_S, LISTING_HURRY_S = 20.0, 5.0
"""If storage does not list its checkpoints for so long, the job goes on without it if memory has all that it
needs. After TERM the journal has to hold the end before Slurm kills us (KillWait: 30 s).
"""

LAST_STORE_S = 20.0
"""Seconds for the last write before the end of the run: of the minute or two since Slurm's warning much is
over.
"""

WRITE_S = 60.0
"""Steps are written within this time, or the next interval's are (longer with longer intervals)."""


def is_late(since_s: float | None, rules: Rules, *, refused: bool = False) -> bool:
    """Return whether to stop waiting for a step on storage that all ranks completed ``since_s`` seconds ago.

    ``refused``: a node cannot put it there.
    """
    limit_s = WRITE_S if refused else max(WRITE_S, rules.config.checkpoint.every_s)
    return since_s is not None and since_s >= limit_s
