"""How long prologs and epilogs took by the event log, and whether that is near a limit of Slurm's."""

from __future__ import annotations

import errno
import os
import stat
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.slurm.values import NEVER_S
from slurm_robust.util.text import count, date_and_time

NEAR = 0.8
"""Share of a limit: a busy file system or a slow slurmctld makes up the rest."""

MIN_RUNS = 20
"""Fewer runs say nothing of the usual one."""

_TAIL = 2**24
_WITHIN_S = 30 * 86400.0
_MAX_S = _AHEAD_S = 86400.0
_ENDINGS = (b'prolog"', b'epilog"')


class HookTimes(Record):
    """Measured runs of one hook, from Python's start to the event. Programs of the site come on top."""

    runs: int
    nodes: int
    since: float
    """Time of the oldest run, in seconds since 1970."""

    usual_s: float
    """99 % of the runs took no longer; of less than 100 the longest does not count."""

    longest_s: float


class _Run(Record):
    """What is needed of the event ``run``."""

    at: float
    node: str
    event: str
    hook: str
    hook_s: float | None = None
    wall_s: float = 0.0
    """The checks alone: earlier releases logged nothing else."""


def read_times(log: Path, now: float) -> dict[str, HookTimes]:
    """Read those of prolog and epilog from the newest 16 MiB of a log; nothing for a hook without runs.

    Raises ``OSError``.
    """
    fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(log))
        file.seek(max(0, found.st_size - _TAIL))
        return times_of(file.read(_TAIL).split(b"\n"), now)


def times_of(lines: Iterable[bytes], now: float) -> dict[str, HookTimes]:
    """Return the same of a log's lines, without torn ones and those that a clock's jump dates absurdly."""
    by_hook: defaultdict[str, list[tuple[float, _Run]]] = defaultdict(list)
    for line in lines:
        run = _parsed(line)
        if run is None or not now - _WITHIN_S <= run.at <= now + _AHEAD_S:
            continue
        took_s = run.wall_s if run.hook_s is None else run.hook_s
        if 0 < took_s <= _MAX_S:
            by_hook[run.hook].append((took_s, run))
    return {
        hook: _summed([took_s for took_s, _ in found], [run for _, run in found])
        for hook, found in sorted(by_hook.items(), reverse=True)
    }


def _parsed(line: bytes) -> _Run | None:
    # Most lines are of periodic checks.
    if not any(ending in line for ending in _ENDINGS):
        return None
    try:
        run = msgspec.json.decode(line, type=_Run)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return run if run.event == "run" and run.hook in ("prolog", "epilog") else None


def _summed(took: list[float], runs: list[_Run]) -> HookTimes:
    ordered = sorted(took)
    return HookTimes(
        runs=len(runs),
        nodes=len({run.node for run in runs}),
        since=min(run.at for run in runs),
        usual_s=ordered[int(0.99 * (len(ordered) - 1))],
        longest_s=ordered[-1],
    )


def is_near(times: HookTimes, limit_s: int | None) -> bool:
    """Return whether usual runs come near a limit of Slurm's. A single slow run does not count."""
    is_limit = limit_s is not None and 0 < limit_s < NEVER_S
    return is_limit and times.runs >= MIN_RUNS and times.usual_s >= NEAR * (limit_s or 0)


def meets_prologs(flags: frozenset[str]) -> bool:
    """Return by PrologFlags whether a batch script or step may start while the job's prolog still runs.

    Without Alloc the launch itself runs the prolog. With Alloc slurmctld launches the batch script after the
    first node's prolog, and its steps meet those of other nodes; only DeferBatch waits for all of them.
    """
    return "deferbatch" not in flags or "nohold" in flags


def said(hook: str, times: HookTimes) -> str:
    """Return ``99 % of 4000 prologs took 0.41 s or less, the longest 2.1 s (measured on 1 node since …)``."""
    return (
        f"99 % of {count(times.runs, hook)} took {times.usual_s:.3g} s or less, the longest "
        f"{times.longest_s:.3g} s (measured on {count(times.nodes, 'node')} since "
        f"{date_and_time(times.since)})"
    )


def not_measured(times: Mapping[str, HookTimes], hook: str) -> str:
    """Return why nothing is said of a hook; "" if enough runs are known."""
    known = times.get(hook)
    runs = known.runs if known is not None else 0
    return "" if runs >= MIN_RUNS else f"{count(runs, 'run')} in the event log"
