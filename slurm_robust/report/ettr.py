"""Productive time from the journal (ETTR), and how often to write a checkpoint. Pure.

ETTR (effective training time ratio) = productive training time / wall-clock time of the job
(ByteRobust, section 2). Productive is the time in which steps were done that count in the end: a
step that had to be repeated counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from slurm_robust.model import events as ev
from slurm_robust.model.record import Record


class Productivity(Record):
    """How productive a job was."""

    wall_s: float
    productive_s: float
    ettr: float
    """``productive_s`` / ``wall_s``."""
    steps: int
    """Each counted once."""
    repeated: int | None
    """Steps that were done again. None after the first restart of a script that does not number its steps: as
    far as is known, it begins anew in each generation."""


class _Stretch:
    """Steps of one generation: first and newest step with their times."""

    def __init__(self, first: ev.FirstStep) -> None:
        self.reported = first.reported
        self.first = self.last = first.step
        self.t_first = self.t_last = first.t

    def see(self, event: ev.ProgressMade) -> None:
        if event.step > self.last:
            self.last, self.t_last = event.step, event.t


def end_of(events: Sequence[ev.AnyEvent], now: float) -> float:
    """When the run ended, or ``now`` while it goes on. A run that was ended may have been started again."""
    last = next((e for e in reversed(events) if isinstance(e, ev.RunEnded | ev.ControllerStarted)), None)
    return last.t if isinstance(last, ev.RunEnded) else now


def productivity(events: Sequence[ev.AnyEvent], now: float) -> Productivity:
    """Productive time until the run's end, or until ``now`` (wall clock) while it goes on."""
    if not events:
        return Productivity(wall_s=0.0, productive_s=0.0, ettr=0.0, steps=0, repeated=0)
    start = events[0].t
    end = end_of(events, now)
    stretches: dict[int, _Stretch] = {}
    for event in events:
        if isinstance(event, ev.FirstStep):
            stretches[event.generation] = _Stretch(event)
        elif isinstance(event, ev.ProgressMade) and event.generation in stretches:
            stretches[event.generation].see(event)
    productive, steps, repeated, best = 0.0, 0, 0, {True: -1, False: -1}
    pace = 0.0  # seconds per step of the stretch before
    for _, s in sorted(stretches.items()):
        done = s.last - s.first + 1
        known_best = best[s.reported]
        new = max(0, s.last - max(known_best, s.first - 1))
        # A generation goes on from its checkpoint: the steps before were done, also those of which the
        # journal does not know, since the controller had died or the heartbeats had not come.
        unseen = max(0, s.first - 1 - known_best) if s.reported and known_best >= 0 else 0
        seconds = max(0.0, s.t_last - s.t_first)
        # The first step of a stretch has no measured length of its own: it took about the mean.
        mean = seconds / (done - 1) if done > 1 else 0.0
        productive += mean * new + (pace or mean) * unseen
        pace = mean or pace
        steps, repeated = steps + new + unseen, repeated + done - new
        best[s.reported] = max(best[s.reported], s.last)
    known = len(stretches) < 2 or all(s.reported for s in stretches.values())
    wall = max(0.0, end - start)
    return Productivity(
        wall_s=wall,
        productive_s=productive,
        ettr=min(1.0, productive / wall) if wall > 0 else 0.0,
        steps=steps,
        repeated=repeated if known else None,
    )


# -- how often to write a checkpoint ---------------------------------------------------------------


def young(write_s: float, mtbf_s: float) -> float:
    """Seconds between two checkpoints that lose the least time, to first order.

    ``sqrt(2 * write_s * mtbf_s)``: J. W. Young, "A first order approximation to the optimum checkpoint
    interval", Communications of the ACM 17(9), 1974. ``write_s``: what writing one costs; ``mtbf_s``: mean
    time between failures of the job, not of a node. Raises ``ValueError`` unless both are above 0.
    """
    if not (write_s > 0 and mtbf_s > 0):
        raise ValueError(f"write_s={write_s:g} and mtbf_s={mtbf_s:g} must be above 0 seconds")
    return math.sqrt(2 * write_s * mtbf_s)


def daly(write_s: float, mtbf_s: float) -> float:
    """Seconds of training between two checkpoints that lose the least time, to higher order.

    J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
    Generation Computer Systems 22(3), 2006: Young's interval corrected for failures during writing and
    rework, and ``mtbf_s`` where writing takes more than twice that. Arguments as in
    :func:`young`. Raises ``ValueError``.
    """
    first_order_s = young(write_s, mtbf_s)
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    share = write_s / (2 * mtbf_s)
    return first_order_s * (1 + math.sqrt(share) / 3 + share / 9) - write_s


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
