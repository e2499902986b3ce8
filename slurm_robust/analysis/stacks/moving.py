"""Whether ranks get on with something of their own, by several rounds of stack samples. Pure.

A training that makes no step may only evaluate. Then the ranks for which the others wait use processor time,
and are found at another place in each round; one that is stuck does neither.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from slurm_robust.analysis.stacks.activity import is_native
from slurm_robust.analysis.stacks.ranks import views
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame, ProcessKind, RankStacks

BUSY_SHARE = 0.1
"""Who uses this share of one processor, or more, between two rounds is busy: machines are crowded."""

IDLE_SHARE = 0.03
"""Who uses less does nothing at all; threads that watch (of NCCL, of the agent) need about 0.01."""


class SampleRound(Record):
    """The stacks of all ranks, by rank, taken ``at`` a monotonic time of the controller, in seconds."""

    at: float
    stacks: dict[int, RankStacks]


def awaited(round_: SampleRound, layout: ParallelLayout) -> tuple[int, ...]:
    """Ranks that do not wait for others, so that the others wait for them."""
    found = views(round_.stacks.values(), layout)
    return tuple(rank for rank, view in sorted(found.items()) if not view.activity.waits)


def is_busy(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Whether each of these ranks has used processor time between any two of the rounds."""
    shares = [_shares(rounds, rank) for rank in ranks]
    return bool(shares) and all(found and min(found) >= BUSY_SHARE for found in shares)


def is_moving(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Whether each of these ranks is busy, and was not found at the same place every time."""
    places = [{place for round_ in rounds if (place := _place(round_, rank))} for rank in ranks]
    return is_busy(rounds, ranks) and all(len(found) > 1 for found in places)


def is_idle(rounds: Sequence[SampleRound], ranks: Collection[int]) -> bool:
    """Whether each of these ranks was seen to use next to no processor time: it computes nothing."""
    shares = [_shares(rounds, rank) for rank in ranks]
    return bool(shares) and all(found and max(found) <= IDLE_SHARE for found in shares)


def _shares(rounds: Sequence[SampleRound], rank: int) -> list[float]:
    """Used processor time over time, from each round to the next; empty where it is not known of all."""
    seen = [(round_.at, _cpu_s(round_, rank)) for round_ in rounds]
    shares = []
    for (begun, before), (ended, after) in pairwise(seen):
        if before is None or after is None or ended <= begun:
            return []
        shares.append(max(0.0, after - before) / (ended - begun))
    return shares


def _cpu_s(round_: SampleRound, rank: int) -> float | None:
    stack = round_.stacks.get(rank)
    workers = [p for p in stack.processes if p.kind is ProcessKind.WORKER] if stack else []
    return workers[0].cpu_s if workers else None


def _place(round_: SampleRound, rank: int) -> tuple[Frame, ...]:
    """The calls of the main thread and of its helpers, without libraries: not all rounds have those."""
    stack = round_.stacks.get(rank)
    threads = [t for p in stack.processes for t in p.threads if t.is_main] if stack else []
    return tuple(frame for thread in threads for frame in thread.frames if not is_native(frame.file))
