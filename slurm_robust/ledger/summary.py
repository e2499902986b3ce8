"""What the ledger adds up to: ETTR, MTTF, MTTR, and the time lost by class, cause, incident and node."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from slurm_robust.ledger.account import Span
from slurm_robust.ledger.classes import EFFECTIVE, TimeClass
from slurm_robust.ledger.ledger import Ledger, ledger
from slurm_robust.model import events as ev
from slurm_robust.model import verdicts
from slurm_robust.model.incident import Blame
from slurm_robust.model.record import Record

WINDOW_S = 3600.0
"""Window of the sliding ETTR, as in the paper's figure 10."""

DRILL = "drill"
"""The cause of incidents that their owner had planted: no failures."""

_HOUR_MS = 3_600_000


class Lost(Record):
    """Time in which no step was done for the first time, while the job existed."""

    ms: int = 0
    node_hours: float = 0.0
    """For all nodes that the job held meanwhile."""
    gpu_hours: float = 0.0

    def __add__(self, other: Lost) -> Lost:
        return Lost(
            ms=self.ms + other.ms,
            node_hours=self.node_hours + other.node_hours,
            gpu_hours=self.gpu_hours + other.gpu_hours,
        )


class IncidentCost(Record):
    """What one incident cost."""

    number: int
    t: float
    """When it was seen, in seconds since 1970."""
    symptom: str
    cause: str
    """``node``, ``network``, ``code``, ``nobody``, ``drill`` or, as long as nothing is decided,
    ``undecided``."""
    nodes: tuple[str, ...]
    """The nodes that were blamed."""
    lost: Lost
    classes: dict[TimeClass, int]
    """Milliseconds of each class, productive ones left out."""


class Summary(Record):
    """The ledger in figures. Milliseconds are whole, and ``classes`` add up to ``wall_ms``."""

    wall_ms: int
    effective_ms: int
    """Time in which steps were done for the first time."""
    started_ms: int
    """How long the job waited for its first start."""
    ettr: float
    """``effective_ms`` / (``wall_ms`` - ``started_ms``): the effective training time ratio since Slurm first
    started the job, requeues included (paper, section 2). 0 before it has begun."""
    ettr_held: float
    """The same over the time in which the job held nodes: without any queue."""
    ettr_undrilled: float | None
    """ETTR without the time that drills took; None for a job without drills."""
    ettr_window: float
    """ETTR of the last hour (:data:`WINDOW_S`), or of a shorter life."""
    classes: dict[TimeClass, int]
    details: dict[str, int]
    """Milliseconds of start phases and of other phases of the script, as ``starting: imports``."""
    steps: int
    """Completed, each counted once."""
    repeated: int | None
    """Steps that were done again; None if that is not known (:class:`Ledger`)."""
    incidents: tuple[IncidentCost, ...]
    causes: dict[str, Lost]
    """Lost time by cause, incidents only, the greatest first."""
    by_node: dict[str, Lost]
    """Lost time of the incidents for which a node was blamed; several share it. The greatest first."""
    lost: Lost
    """All of it."""
    drills: int
    """How many of ``incidents`` their owner had planted."""
    mttf_s: float | None
    """Mean time to failure: time with nodes, per incident that is no drill. None without one."""
    mttr_s: float | None
    """Mean time to recovery: from the fault to the first new step, of incidents that are over and no
    drills."""


def summary_of(events: Sequence[ev.AnyEvent], now: float) -> Summary:
    """Return the figures of a journal alone, until the job's end, or until ``now`` (seconds since 1970)."""
    return summarise(ledger(events, now), events)


def summarise(books: Ledger, events: Sequence[ev.AnyEvent]) -> Summary:
    """Return the figures of a ledger; ``events`` is the journal that it was made from."""
    by_incident: dict[int, list[Span]] = {}
    for span in books.spans:
        if span.incident:
            by_incident.setdefault(span.incident, []).append(span)
    over = {e.incident for e in events if isinstance(e, ev.IncidentClosed)}
    first = next((e.step for e in events if isinstance(e, ev.FirstStep | ev.ProgressMade)), 0)
    last = max((span.step for span in books.spans), default=-1)
    return figures(books, tuple(_costs(events, by_incident)), over, max(0, last - first + 1))


def figures(books: Ledger, incidents: tuple[IncidentCost, ...], over: Collection[int], steps: int) -> Summary:
    """Return the figures of a ledger with its ``incidents`` and ``steps``; ``over``: incidents that are."""
    classes: Counter[TimeClass] = Counter()
    details: Counter[str] = Counter()
    lost, held_ms = Lost(), 0
    for span in books.spans:
        for part in span.parts:
            classes[part.time] += part.ms
            if part.detail:
                details[f"{part.time.value}: {part.detail}"] += part.ms
        held_ms += (span.end_ms - span.begin_ms) * bool(span.nodes)
        lost += lost_in(span)
    effective = sum(classes[one] for one in EFFECTIVE)
    failures = [one for one in incidents if one.cause != DRILL]
    repaired = [one.lost.ms for one in failures if one.number in over]
    since_start = books.wall_ms - books.started_ms
    undrilled = since_start - sum(one.lost.ms for one in incidents if one.cause == DRILL)
    return Summary(
        wall_ms=books.wall_ms,
        effective_ms=effective,
        started_ms=books.started_ms,
        ettr=effective / since_start if since_start else 0.0,
        ettr_held=effective / held_ms if held_ms else 0.0,
        ettr_undrilled=effective / undrilled if len(failures) < len(incidents) and undrilled > 0 else None,
        ettr_window=_window(books),
        classes={one: classes[one] for one in TimeClass if classes[one]},
        details=dict(details.most_common()),
        steps=steps,
        repeated=books.repeated,
        incidents=incidents,
        causes=_greatest((one.cause, one.lost) for one in incidents),
        by_node=_greatest(
            (node, _share(one.lost, len(one.nodes))) for one in incidents for node in one.nodes
        ),
        lost=lost,
        drills=len(incidents) - len(failures),
        mttf_s=held_ms / 1000 / len(failures) if failures else None,
        mttr_s=sum(repaired) / 1000 / len(repaired) if repaired else None,
    )


def lost_in(span: Span) -> Lost:
    """Return what of a span was lost."""
    ms = span.end_ms - span.begin_ms - span.effective_ms
    hours = ms / _HOUR_MS
    return Lost(ms=ms, node_hours=hours * span.nodes, gpu_hours=hours * span.gpus)


def ettr_curve(books: Ledger, window_s: float | None = None) -> Iterator[tuple[int, float]]:
    """Yield ``(ms, ettr)`` at the end of each span: since the first start, or in the last ``window_s``.

    As long as less than the window has passed since the start, both are the same.
    """
    spans, start = books.spans, books.started_ms
    window = round(window_s * 1000) if window_s is not None else books.wall_ms
    done = left_behind = tail = 0
    for span in spans:
        done += span.effective_ms
        since = max(start, span.end_ms - window)
        while spans[tail].end_ms <= since and tail < len(spans) - 1:
            left_behind += spans[tail].effective_ms
            tail += 1
        first = spans[tail]
        # In what part of the span in which the window begins its steps were done is not known: evenly, then.
        cut = first.effective_ms * max(0, since - first.begin_ms) / (first.end_ms - first.begin_ms)
        if span.end_ms > since:
            yield span.end_ms, (done - left_behind - cut) / (span.end_ms - since)


def _window(books: Ledger) -> float:
    newest = deque(ettr_curve(books, WINDOW_S), maxlen=1)
    return newest[0][1] if newest else 0.0


def _costs(events: Sequence[ev.AnyEvent], spans: Mapping[int, Sequence[Span]]) -> Iterator[IncidentCost]:
    decided: dict[int, ev.Decided] = {}
    drilled = verdicts.drilled(events)
    for event in events:
        if isinstance(event, ev.Decided) and event.verdict is not None:
            decided[event.incident] = event
    for event in events:
        if not isinstance(event, ev.IncidentOpened):
            continue
        own = spans.get(event.incident, ())
        verdict = decided[event.incident].verdict if event.incident in decided else None
        classes: Counter[TimeClass] = Counter()
        for span in own:
            for part in span.parts:
                if part.time not in EFFECTIVE:
                    classes[part.time] += part.ms
        yield IncidentCost(
            number=event.incident,
            t=event.t,
            symptom=event.symptom.value,
            cause=DRILL
            if event.incident in drilled
            else _cause(verdict.blame if verdict else None, verdict.rung if verdict else 0),
            nodes=verdict.suspects
            if verdict is not None and verdict.blame is Blame.NODE and event.incident not in drilled
            else (),
            lost=sum((lost_in(span) for span in own), Lost()),
            classes=dict(classes),
        )


def _cause(blame: Blame | None, rung: int) -> str:
    if blame is None:
        return "undecided"
    return "network" if blame is Blame.NODE and rung == 2 else blame.value


def _share(lost: Lost, among: int) -> Lost:
    return Lost(
        ms=round(lost.ms / among), node_hours=lost.node_hours / among, gpu_hours=lost.gpu_hours / among
    )


def _greatest(costs: Iterable[tuple[str, Lost]]) -> dict[str, Lost]:
    found: dict[str, Lost] = {}
    for name, lost in costs:
        found[name] = found.get(name, Lost()) + lost
    return dict(sorted(found.items(), key=lambda item: item[1].ms, reverse=True))
