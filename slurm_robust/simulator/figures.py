"""What a life amounts to, by the ledger; and what many lives say together. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from random import Random
from statistics import NormalDist, stdev

from msgspec import structs

from slurm_robust.ledger.chapters import joined
from slurm_robust.ledger.ledger import Ledger, ledger
from slurm_robust.ledger.summary import Summary, figures, summarise
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Evict, GiveUp, Replace, Requeue, RollBack, Swap
from slurm_robust.model.record import Record
from slurm_robust.simulator.curves import LifeCurve, life_curve
from slurm_robust.simulator.life import SimulatedLife

RESAMPLES = 1000
CONFIDENCE = 0.95
FEW = 200
"""The mean of more lives is normally distributed, so that they need not be resampled."""

_DEVIATIONS = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)


class LifeFigures(Record):
    """One life in figures."""

    seed: int
    ettr: float
    """Effective training time ratio since the first start (paper, section 2), over all jobs of the life."""
    hours: float
    """Since the first start."""
    steps: int
    repeated: int
    jobs: int
    """How often the job was submitted."""
    runs: int
    """How often Slurm started it."""
    incidents: int
    resolved: dict[str, int]
    """Incidents and updates by :class:`Means`."""
    symptoms: dict[str, int]
    causes: dict[str, float]
    """GPU-hours lost by cause of the incident."""
    classes: dict[str, float]
    """Hours of each class of time."""
    gpu_hours: float
    """Lost in all."""
    evicted_right: int
    evicted_wrong: int
    standbys_used: int
    companions: int
    """Nodes that companions lent."""
    requeues: int
    """For a fault."""
    given_up: int
    """Jobs that ended with exit code 93, or another one of the policy."""
    was_s: float
    """Mean time from the detection of a fault for which nodes were evicted until training went on: with
    what share of evictions went how is the paper's weighted average scheduling time (section 8.5). 0 without
    any."""
    mttr_s: float
    """Mean time from a fault to the first new step."""
    is_done: bool
    curve: LifeCurve = LifeCurve()


def figures_of(life: SimulatedLife) -> LifeFigures:
    """Return the figures of ``life``, by the ledger of its journals."""
    books, summary = account_of(life)
    events = [event for journal in life.journals for event in journal]
    decided = [event for event in events if isinstance(event, ev.Decided) and event.carried_out]
    actions = Counter(type(action) for event in decided for action in event.actions)
    resolved = list(resolutions(events))
    scheduling = [one.seconds for one in resolved if one.means in _EVICTIONS]
    since_start_ms = books.wall_ms - books.started_ms
    return LifeFigures(
        seed=life.seed,
        ettr=summary.ettr,
        hours=since_start_ms / 3.6e6,
        steps=max((span.step for span in books.spans), default=-1) + 1,
        repeated=books.repeated or 0,
        jobs=len(life.journals),
        runs=sum(isinstance(event, ev.AllocationTaken) for event in events),
        incidents=len(summary.incidents),
        resolved=dict(Counter(one.means.value for one in resolved)),
        symptoms=dict(
            Counter(event.symptom.value for event in events if isinstance(event, ev.IncidentOpened))
        ),
        causes={cause: lost.gpu_hours for cause, lost in summary.causes.items()},
        classes={one.value: ms / 3.6e6 for one, ms in summary.classes.items()},
        gpu_hours=summary.lost.gpu_hours,
        evicted_right=life.evicted_right,
        evicted_wrong=life.evicted_wrong,
        standbys_used=actions[Replace],
        companions=sum(isinstance(event, ev.CompanionStarted) for event in events),
        requeues=actions[Requeue],
        given_up=actions[GiveUp],
        was_s=sum(scheduling) / len(scheduling) if scheduling else 0.0,
        mttr_s=summary.mttr_s or 0.0,
        is_done=life.is_done,
        curve=life_curve(books, events),
    )


def account_of(life: SimulatedLife) -> tuple[Ledger, Summary]:
    """Return the ledger of all jobs of ``life`` together, and its summary."""
    ends = [journal[-1].t for journal in life.journals[:-1]] + [life.end]
    books = [ledger(journal, end) for journal, end in zip(life.journals, ends, strict=True)]
    if len(books) == 1:
        return books[0], summarise(books[0], life.journals[0])
    summaries = [summarise(one, journal) for one, journal in zip(books, life.journals, strict=True)]
    before, offsets = 0, []
    for one in summaries:
        offsets.append(before)
        before += max((incident.number for incident in one.incidents), default=0)
    whole = joined(books, life.journals, offsets)
    incidents = tuple(
        structs.replace(incident, number=incident.number + added)
        for one, added in zip(summaries, offsets, strict=True)
        for incident in one.incidents
    )
    over = {
        event.incident + added
        for journal, added in zip(life.journals, offsets, strict=True)
        for event in journal
        if isinstance(event, ev.IncidentClosed)
    }
    return whole, figures(whole, incidents, over, sum(one.steps for one in summaries))


# -- what ended incidents ----------------------------------------------------------------------------------


class Means(str, Enum):
    """What training went on by after an incident, or a change of its code."""

    EVICTED = "nodes evicted"
    """For what named them: a check, an alert, a log."""
    BY_STACKS = "nodes evicted by stacks"
    BY_TESTS = "nodes evicted by tests"
    """Or by a replay."""
    ROLLED_BACK = "release rolled back"
    MOVED = "ranks moved"
    """To other nodes. None was evicted."""
    REQUEUED = "requeued"
    """Without an eviction."""
    RESTARTED = "restarted"
    """In place."""
    UPDATED = "release updated"
    """By its owner; nothing was wrong."""
    SUBMITTED = "job submitted again"
    """By its owner, who had cancelled it, or since it was given up."""


class Resolution(Record):
    """How one incident ended."""

    symptom: str
    """``update`` if the owner changed the code, ``cancelled`` if they cancelled the job."""
    means: Means
    seconds: float
    """From the detection, or the owner's order, until the first step."""


def resolutions(events: Iterable[ev.AnyEvent]) -> Iterator[Resolution]:
    """Yield how each incident ended, and each update; ``events``: of all journals of a life."""
    since, symptom, means = 0.0, "", Means.RESTARTED
    for event in events:
        match event:
            case ev.IncidentOpened():
                since, symptom, means = event.t, event.symptom.value, Means.RESTARTED
            case ev.StopStarted() if event.update and not since:
                since, symptom, means = event.t, "update", Means.UPDATED
            case ev.StopOrdered() if not since:
                since, symptom, means = event.t, "cancelled", Means.SUBMITTED
            case ev.Decided() if event.carried_out:
                means = _means(event, means)
            case ev.FirstStep() if since:
                yield Resolution(symptom=symptom, means=means, seconds=event.t - since)
                since = 0.0


_EVICTING_RUNGS = {4: Means.BY_STACKS, 5: Means.BY_TESTS, 8: Means.BY_TESTS}
_EVICTIONS = (Means.EVICTED, *_EVICTING_RUNGS.values())


def _means(decided: ev.Decided, before: Means) -> Means:
    """Return by what training goes on if nothing is decided after this: evictions count most."""
    kinds = {type(action) for action in decided.actions}
    if GiveUp in kinds or before is Means.SUBMITTED:
        return Means.SUBMITTED
    if Evict in kinds:
        return _EVICTING_RUNGS.get(decided.verdict.rung if decided.verdict else 0, Means.EVICTED)
    if before in _EVICTIONS:
        return before
    if RollBack in kinds:
        return Means.ROLLED_BACK
    if Requeue in kinds:
        return Means.REQUEUED
    return Means.MOVED if kinds & {Replace, Swap} else before


# -- many lives ------------------------------------------------------------------------------------------


class Estimate(Record):
    """A figure over many lives: its mean with a 95 % confidence interval, and the middle 90 % of lives."""

    mean: float
    low: float
    high: float
    p5: float
    p95: float


def estimate(values: Sequence[float]) -> Estimate:
    """Estimate the mean of ``values``, which must not be empty: of few by resampling them (bootstrap)."""
    count, mean = len(values), sum(values) / len(values)
    ordered = sorted(values)
    low, high = mean, mean
    if count > FEW:
        width = _DEVIATIONS * stdev(values) / math.sqrt(count)
        low, high = mean - width, mean + width
    elif ordered[0] < ordered[-1]:
        chance, tail = Random(count), (1 - CONFIDENCE) / 2
        means = sorted(sum(chance.choices(values, k=count)) / count for _ in range(RESAMPLES))
        low, high = _at(means, tail), _at(means, 1 - tail)
    return Estimate(mean=mean, low=low, high=high, p5=_at(ordered, 0.05), p95=_at(ordered, 0.95))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Together(Record):
    """All lives of a spec."""

    name: str
    fidelity: str
    lives: int
    figures: dict[str, Estimate]
    """By the names of :class:`LifeFigures`; what it has by cause or class is named ``causes.node``."""
    done: int
    """Lives that did all their steps."""


NUMBERS = (
    "ettr",
    "incidents",
    "evicted_right",
    "evicted_wrong",
    "standbys_used",
    "companions",
    "requeues",
    "given_up",
    "jobs",
    "runs",
    "repeated",
    "was_s",
    "mttr_s",
    "gpu_hours",
)
"""The fields of :class:`LifeFigures` that are single numbers."""


def together(name: str, fidelity: str, lives: Sequence[LifeFigures]) -> Together:
    """Return what ``lives`` say together."""
    found = {name: estimate([float(getattr(one, name)) for one in lives]) for name in NUMBERS}
    for field in ("causes", "classes", "symptoms", "resolved"):
        for key in sorted({key for one in lives for key in getattr(one, field)}):
            found[f"{field}.{key}"] = estimate([float(getattr(one, field).get(key, 0.0)) for one in lives])
    return Together(
        name=name,
        fidelity=fidelity,
        lives=len(lives),
        figures=found,
        done=sum(one.is_done for one in lives),
    )
