"""How often to write a checkpoint to storage. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from slurm_robust.model import events as ev
from slurm_robust.model.record import Record


def young(write_s: float, mtbf_s: float) -> float:
    """Return the seconds between two checkpoints that lose the least time, to first order.

    ``sqrt(2 * write_s * mtbf_s)``: J. W. Young, "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17(9), 1974. ``write_s``: what writing one costs; ``mtbf_s``: mean
    time between failures of the job, not of a node. Raises ``ValueError`` unless both are above 0.
    """
    if not (write_s > 0 and mtbf_s > 0):
        raise ValueError(f"write_s={write_s:g} and mtbf_s={mtbf_s:g} must be above 0 seconds")
    return math.sqrt(2 * write_s * mtbf_s)


def daly(write_s: float, mtbf_s: float) -> float:
    """Return the seconds of training between two checkpoints that lose the least time, to higher order.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22(3), 2006: Young's interval corrected for failures during writing and
    rework, and ``mtbf_s`` if writing takes more than twice that. Arguments as in :func:`young`. Raises
    ``ValueError``.
    """
    first_order_s = young(write_s, mtbf_s)
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    return first_order_s * (1 + math.sqrt(share) / 3 + share / 9) - write_s


MIN_INCIDENTS = 10
"""Incidents from which on their number says how often there is one: to a factor of two."""


class IntervalAdvice(Record):
    """How often a checkpoint should go to storage, by Daly.

    Training goes on while a snapshot is written, and most incidents need nothing from storage, so the true
    optimum is at most as often as this.
    """

    every_s: float
    write_s: float
    """The median time that one took to get there."""
    mtbf_s: float
    """The time per incident of this job so far."""


def advise(events: Sequence[ev.AnyEvent], now: float) -> IntervalAdvice | None:
    """Give the advice that a journal supports; None without a measured write or with few incidents.

    ``now``: seconds since 1970, for a run that goes on.
    """
    writes = [e.seconds for e in events if isinstance(e, ev.StorageWritten) and e.seconds > 0]
    incidents = sum(isinstance(e, ev.IncidentOpened) for e in events)
    if not writes or incidents < MIN_INCIDENTS:
        return None
    mtbf_s = (_end_of(events, now) - events[0].t) / incidents
    if mtbf_s <= 0:  # a clock was set back
        return None
    return IntervalAdvice(every_s=daly(median(writes), mtbf_s), write_s=median(writes), mtbf_s=mtbf_s)


def _end_of(events: Sequence[ev.AnyEvent], now: float) -> float:
    """Return when the run ended, or ``now`` while it goes on. A run that ended may go on again."""
    last = next((e for e in reversed(events) if isinstance(e, ev.RunEnded | ev.ControllerStarted)), None)
    return last.t if isinstance(last, ev.RunEnded) else now
