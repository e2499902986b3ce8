"""Curves over the life of a job, with no more points than a screen shows. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from slurm_robust.ledger.ledger import Ledger
from slurm_robust.ledger.summary import WINDOW_S, ettr_curve
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record

MAX_POINTS = 6000
"""Most points of one curve. Some more come on top when generations begin and end."""

Values = Sequence[float | None]


class EttrCurve(Record):
    """The ETTR, as columns of equal length."""

    t: tuple[float, ...] = ()
    """Seconds since 1970, by slurmctld's clock."""
    since_start: tuple[float, ...] = ()
    """Since the job's first start."""
    last_hour: tuple[float, ...] = ()
    """The values of the hour (:data:`~slurm_robust.ledger.summary.WINDOW_S`) before."""


class TrainingCurves(Record):
    """How training went, as columns of equal length; None: not known."""

    t: tuple[float, ...] = ()
    """Seconds since 1970, by slurmctld's clock."""
    generation: tuple[int, ...] = ()
    step: tuple[int, ...] = ()
    loss: tuple[float | None, ...] = ()
    grad_norm: tuple[float | None, ...] = ()
    step_s: tuple[float | None, ...] = ()
    """Seconds a step since the line before, without checkpoints and announced phases."""
    known: int = 0
    """How many points the journal has. Points that are left out are no extremes of a curve."""


def ettr_points(books: Ledger, most: int = MAX_POINTS) -> EttrCurve:
    """Return both curves of the ETTR."""
    points = [
        (books.begin + ms / 1000, whole, hour)
        for (ms, whole), (_, hour) in zip(ettr_curve(books), ettr_curve(books, WINDOW_S), strict=True)
    ]
    times = [t for t, _, _ in points]
    kept = thinned(times, [[hour for _, _, hour in points]], most)
    return EttrCurve(
        t=tuple(round(points[place][0], 1) for place in kept),
        since_start=tuple(round(points[place][1], 5) for place in kept),
        last_hour=tuple(round(points[place][2], 5) for place in kept),
    )


def progress(
    events: Sequence[ev.AnyEvent], times: Sequence[float], most: int | None = MAX_POINTS
) -> TrainingCurves:
    """Return what a journal says of each step, with at most about ``most`` points; None: all."""
    lines = [
        (t, event)
        for t, event in zip(times, events, strict=True)
        if isinstance(event, ev.ProgressMade | ev.FirstStep)
    ]
    lines.sort(key=lambda line: line[0])
    when = [t for t, _ in lines]
    made = [event for _, event in lines]
    took = list(_step_times(when, made))
    loss = [event.loss for event in made]
    norm = [event.grad_norm for event in made]
    kept = range(len(lines))
    if most is not None and len(lines) > most:
        ends = _ends([event.generation for event in made])
        chosen = set(thinned(when, [loss, norm, took], most))
        kept = sorted(chosen | set(ends if len(ends) <= most else ()))  # type: ignore[assignment]
    return TrainingCurves(
        t=tuple(round(when[place], 2) for place in kept),
        generation=tuple(made[place].generation for place in kept),
        step=tuple(made[place].step for place in kept),
        loss=tuple(_rounded(loss[place]) for place in kept),
        grad_norm=tuple(_rounded(norm[place]) for place in kept),
        step_s=tuple(_rounded(took[place]) for place in kept),
        known=len(lines),
    )


def thinned(times: Sequence[float], columns: Sequence[Values], most: int) -> list[int]:
    """Return places to keep: in equal stretches of time the first, the last, and each column's extremes."""
    if len(times) <= most:
        return list(range(len(times)))
    stretches = max(1, most // (2 + 2 * len(columns)))
    begin, width = times[0], (times[-1] - times[0]) / stretches
    kept: set[int] = set()
    low = 0
    for number in range(1, stretches + 1):
        high = bisect_left(times, begin + number * width, low) if number < stretches else len(times)
        if low < high:
            kept |= {low, high - 1}
            for column in columns:
                part = column[low:high]
                known = [value for value in part if value is not None]
                kept |= {low + part.index(min(known)), low + part.index(max(known))} if known else set()
        low = high
    return sorted(kept)


def _step_times(
    times: Sequence[float], made: Sequence[ev.ProgressMade | ev.FirstStep]
) -> Iterator[float | None]:
    before: tuple[float, ev.ProgressMade | ev.FirstStep] | None = None
    for t, event in zip(times, made, strict=True):
        found = None
        if before is not None and before[1].generation == event.generation:
            then, last = before
            spent = sum(event.spent.values()) - sum(last.spent.values())
            steps, took = event.step - last.step, t - then - max(0.0, spent)
            if steps > 0 and took > 0:
                found = took / steps
        yield found
        before = t, event


def _ends(generations: Sequence[int]) -> set[int]:
    """Return the points at which one generation ends and the next one begins."""
    changes = [place for place in range(1, len(generations)) if generations[place] != generations[place - 1]]
    return {place for change in changes for place in (change - 1, change)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
