"""How a life went over time, and how many lives went together. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from slurm_robust.ledger.ledger import Ledger
from slurm_robust.ledger.summary import WINDOW_S
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Replace
from slurm_robust.model.record import Record

POINTS = 60
"""Moments of a life that are kept, at equal distances."""

MIDDLE = 0.9
"""Share of the lives that a band has: from the 5th to the 95th percentile."""


class LifeCurve(Record):
    """One life over time, as columns of equal length."""

    hours: tuple[float, ...] = ()
    """Since the job was submitted."""
    ettr: tuple[float, ...] = ()
    """Since the first start."""
    hour: tuple[float, ...] = ()
    """The ETTR of the hour before."""
    standbys: tuple[int, ...] = ()
    """How many stand by."""


class Band(Record):
    """What many lives have at the same moments, as columns of equal length."""

    hours: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    """The 5th percentile."""
    high: tuple[float, ...]
    """The 95th percentile."""


def life_curve(books: Ledger, events: Sequence[ev.AnyEvent]) -> LifeCurve:
    """Return the curve of a life by its ledger and the events of all its journals."""
    if not books.spans:
        return LifeCurve()
    ends = [span.end_ms for span in books.spans]
    done = [0, *accumulate(span.effective_ms for span in books.spans)]

    def effective(ms: float) -> float:
        """Return for how long steps were done until then: within a span evenly."""
        place = min(bisect_right(ends, ms), len(ends) - 1)
        span = books.spans[place]
        share = min(1.0, (ms - span.begin_ms) / (span.end_ms - span.begin_ms))
        return done[place] + share * span.effective_ms

    def ettr(ms: float, since: float) -> float:
        return round((effective(ms) - effective(since)) / (ms - since), 5) if ms > since else 0.0

    start, moments = books.started_ms, [ends[-1] * (place + 1) / POINTS for place in range(POINTS)]
    standbys = [((t - books.begin) / 3600, float(number)) for t, number in _standbys(events)]
    hours = [round(ms / 3.6e6, 6) for ms in moments]
    return LifeCurve(
        hours=tuple(hours),
        ettr=tuple(ettr(ms, start) for ms in moments),
        hour=tuple(ettr(ms, max(start, ms - WINDOW_S * 1000)) for ms in moments),
        standbys=tuple(int(value) for value in _at(standbys, hours)),
    )


def _at(points: Sequence[tuple[float, float]], hours: Iterable[float]) -> Iterator[float]:
    """Yield the newest value at each moment, 0 before the first."""
    times = [t for t, _ in points]
    for hour in hours:
        place = bisect_right(times, hour + 1e-9) - 1
        yield points[place][1] if place >= 0 else 0.0


def _standbys(events: Iterable[ev.AnyEvent]) -> Iterator[tuple[float, int]]:
    """Yield how many nodes stand by whenever that changes."""
    ready: set[str] = set()
    for event in events:
        before = len(ready)
        match event:
            case ev.AllocationTaken():
                ready = set(event.spares)
            case ev.CompanionStarted() | ev.SpareAnswers():
                ready.add(event.node)
            case ev.NodeEvicted() | ev.SpareSetAside():
                ready.discard(event.node)
            case ev.QuickTested():
                ready |= set(event.passed)
            case ev.Decided() if event.carried_out:
                ready -= {action.standby for action in event.actions if isinstance(action, Replace)}
            case ev.RunEnded():
                ready = set()
        if len(ready) != before:
            yield event.t, len(ready)


def band(curves: Sequence[LifeCurve], column: str) -> Band:
    """Return what ``column`` of these lives has over time; a life counts until its end."""
    known = [curve for curve in curves if curve.hours]
    end = max((curve.hours[-1] for curve in known), default=0.0)
    hours = [end * (place + 1) / POINTS for place in range(POINTS)] if end else []
    columns = []
    for curve in known:
        alive = hours[: bisect_right(hours, curve.hours[-1] + 1e-9)]
        columns.append(list(_at(list(zip(curve.hours, getattr(curve, column), strict=True)), alive)))
    rows = [sorted(one[place] for one in columns if place < len(one)) for place in range(len(hours))]
    tail = (1 - MIDDLE) / 2
    return Band(
        hours=tuple(hours),
        mean=tuple(sum(row) / len(row) for row in rows),
        low=tuple(row[int(tail * len(row))] for row in rows),
        high=tuple(row[min(len(row) - 1, int((1 - tail) * len(row)))] for row in rows),
    )


def histogram(values: Sequence[float], most: int = 20) -> tuple[list[float], list[int]]:
    """Return the edges of equal bins, and how many of ``values`` are in each."""
    low, high = min(values), max(values)
    if low == high:
        return [low, high], [len(values)]
    bins = min(most, max(5, round(len(values) ** 0.5)))
    edges = [low + (high - low) * place / bins for place in range(bins + 1)]
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - low) / (high - low) * bins))] += 1
    return edges, counts
