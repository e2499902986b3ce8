"""How often a checkpoint should be written, from what a write costs and how often training fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from slurm_robust.analysis.ettr import end_of
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record


def young(write_s: float, mtbf_s: float) -> float:
    """Seconds between two checkpoints that lose the least time, to first order.

    ``sqrt(2 * write_s * mtbf_s)``: J. W. Young, "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17(9), 1974. ``write_s``: what writing one costs; ``mtbf_s``: mean
    time between failures of the job, not of a node. Raises ``ValueError`` unless both are above 0.
    """
    _check(write_s, mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s)


def daly(write_s: float, mtbf_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time, to higher order.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22(3), 2006: Young's interval corrected for failures during writing and
    rework, and ``mtbf_s`` where writing takes more than twice that. Arguments as in
    :func:`young`. Raises ``ValueError``.
    """
    _check(write_s, mtbf_s)
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    return math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(share) / 3 + share / 9) - write_s


class IntervalAdvice(Record):
    """``every_s``: advised seconds between checkpoints on storage, by Daly.

    From ``write_s``, the median time that one took to get there, and ``mtbf_s``, the time per incident of
    this job so far. Training goes on while a snapshot is written, and most incidents need nothing from
    storage, so the true optimum is at most as often as this.
    """

    every_s: float
    write_s: float
    mtbf_s: float


def advise(events: Sequence[ev.AnyEvent], now: float) -> IntervalAdvice | None:
    """The advice that a journal supports; None without a measured write or without an incident.

    ``now``: seconds since 1970, for a run that goes on.
    """
    writes = [e.seconds for e in events if isinstance(e, ev.StorageWritten) and e.seconds > 0]
    incidents = sum(isinstance(e, ev.IncidentOpened) for e in events)
    if not writes or not incidents:
        return None
    mtbf_s = (end_of(events, now) - events[0].t) / incidents
    if mtbf_s <= 0:  # a clock was set back
        return None
    return IntervalAdvice(every_s=daly(median(writes), mtbf_s), write_s=median(writes), mtbf_s=mtbf_s)


def _check(write_s: float, mtbf_s: float) -> None:
    if not (write_s > 0 and mtbf_s > 0):
        raise ValueError(f"write_s={write_s:g} and mtbf_s={mtbf_s:g} must be above 0 seconds")
