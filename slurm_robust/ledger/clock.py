"""The times of a journal by one clock: slurmctld's, if it is known.

Controllers of one job run on several nodes, one after the other, and clocks of nodes differ or are set. A
controller records by how much its own is ahead of slurmctld's if that is more than
:data:`~slurm_robust.model.events.MIN_AHEAD_S`
(:class:`~slurm_robust.model.events.ClockCompared`). What still goes backwards is pulled forward to what the
journal has before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_robust.model import events as ev

# Their time is that of a step, which their writer learned of later.
_BACKDATED = (ev.FirstStep, ev.ProgressMade, ev.IncidentClosed)
# What a new run writes before it takes its allocation.
_OF_THE_LAST_RUN = (ev.GenerationEnded, ev.ControllerStarted, ev.ClockCompared, ev.Noted)


def corrected(events: Sequence[ev.AnyEvent]) -> list[float]:
    """Return the time of each event in seconds since 1970, by slurmctld's clock if that is known."""
    first: dict[int, float] = {}
    for event in events:
        if isinstance(event, ev.ClockCompared):
            first.setdefault(event.epoch, event.ahead_s)
    times, ahead, epoch = [], 0.0, 0
    for event in events:
        if event.epoch and event.epoch != epoch:
            epoch, ahead = event.epoch, first.get(event.epoch, 0.0)
        if isinstance(event, ev.ClockCompared):
            ahead = event.ahead_s
        times.append(event.t - ahead)
    return times


def ordered(events: Sequence[ev.AnyEvent], times: Sequence[float], ends: Mapping[int, float]) -> list[float]:
    """Return ``times`` such that no event comes before the one that was written before it.

    Events that tell of the past keep their time. What a new run writes of the end of the run before it counts
    as written when that ended (``ends``, by run, if Slurm tells), or when Slurm queued the job again.
    """
    latest = list(times)
    for place, event in enumerate(events):
        if not isinstance(event, ev.AllocationTaken) or event.restart_count == 0:
            continue
        over = ends.get(event.restart_count - 1, event.submitted)
        before = place - 1
        while over is not None and before >= 0 and isinstance(events[before], _OF_THE_LAST_RUN):
            latest[before] = min(latest[before], over)
            before -= 1
    found, newest = [], latest[0] if latest else 0.0
    for event, t in zip(events, latest, strict=True):
        if isinstance(event, _BACKDATED):
            found.append(t)
        else:
            newest = max(newest, t)
            found.append(newest)
    return found
