"""The summary of a job, from its journal. Pure, but for :func:`save`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from msgspec.structs import replace

from slurm_robust.ledger.classes import EFFECTIVE, TimeClass
from slurm_robust.ledger.clock import corrected
from slurm_robust.ledger.ledger import Ledger, ledger
from slurm_robust.ledger.summary import DRILL, IncidentCost, summarise
from slurm_robust.model import events as ev
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.jobsummary import (
    FORMAT,
    MAX_BLAMED,
    MAX_BYTES,
    MAX_DETAIL,
    MAX_INCIDENTS,
    MAX_NAMES,
    IncidentSummary,
    JobSummary,
    NodeWork,
    encode,
)
from slurm_robust.util.files import write_atomically
from slurm_robust.util.text import ascii_line
from slurm_robust.version import __version__


def summary_of_job(events: Sequence[ev.AnyEvent], now: float, node: str = "") -> JobSummary | None:
    """Return a journal's summary at ``now`` (seconds since 1970); None for one that does not begin.

    ``node``: that of the controller that writes it.
    """
    started = next((e for e in events if isinstance(e, ev.RunStarted)), None)
    if started is None:
        return None
    books = ledger(events, now)
    figures = summarise(books, events)
    allocations = [e for e in events if isinstance(e, ev.AllocationTaken)]
    end = next((e for e in reversed(events) if isinstance(e, ev.RunEnded | ev.ControllerStarted)), None)
    over = end if isinstance(end, ev.RunEnded) and end.final else None
    writes = [e.seconds for e in events if isinstance(e, ev.StorageWritten) and e.seconds > 0]
    incidents = tuple(_incidents(events, figures.incidents, books))
    return JobSummary(
        format=FORMAT,
        job_id=started.job_id,
        node=node,
        t=now,
        version=__version__,
        cluster=started.cluster,
        array_task=started.array_task,
        training=started.training,
        submitted=allocations[0].submitted if allocations else None,
        started=books.begin + books.started_ms / 1000,
        ended=books.begin + books.wall_ms / 1000 if over else None,
        exit_code=over.code if over else None,
        wall_s=books.wall_ms / 1000,
        since_start_s=(books.wall_ms - books.started_ms) / 1000,
        effective_s=figures.effective_ms / 1000,
        nodes=max((span.nodes for span in books.spans), default=0),
        generations=sum(isinstance(e, ev.GenerationLaunched) for e in events),
        write_s=median(writes) if writes else None,
        incidents=incidents[-MAX_INCIDENTS:],
        left_out=max(0, len(incidents) - MAX_INCIDENTS),
        work=_newest(list(work_of(events, now))),
    )


def work_of(events: Sequence[ev.AnyEvent], now: float) -> Iterator[NodeWork]:
    """Yield which nodes the job held from when to when, by slurmctld's clock, oldest first."""
    held: frozenset[str] = frozenset()
    since = newest = 0.0
    lenders: dict[int, str] = {}
    for event, t in zip(events, corrected(events), strict=True):
        newest = max(newest, t)
        before = held
        match event:
            case ev.AllocationTaken():
                held = frozenset(event.nodes)
                lenders.clear()
            case ev.CompanionStarted():
                lenders[event.job_id] = event.node
                held |= {event.node}
            case ev.CompanionEnded():
                held -= {lenders.pop(event.job_id, "")}
            case ev.NodeGivenBack():
                held -= {event.node}
            case ev.RequeueStarted() | ev.RunEnded():
                held = frozenset()
        if held != before:
            if before and newest > since:
                yield NodeWork(nodes=tuple(sorted(before)), start=since, end=newest)
            since = newest
    if held and max(now, newest) > since:
        yield NodeWork(nodes=tuple(sorted(held)), start=since, end=max(now, newest))


COMMENT_TAG = "srobust:"
"""How a comment of ours begins; no other is replaced."""


def comment_of(summary: JobSummary) -> str:
    """Return the text for Slurm's job comment: ``srobust: ETTR 97.1 %, 3 incidents, 12 generations``."""
    drills = sum(one.cause == DRILL for one in summary.incidents)
    many = len(summary.incidents) + summary.left_out - drills
    planted = f", {drills} drill{'' if drills == 1 else 's'}" if drills else ""
    return (
        f"{COMMENT_TAG} ETTR {100 * summary.ettr:.1f} %, {many} incident{'' if many == 1 else 's'}, "
        f"{summary.generations} generation{'' if summary.generations == 1 else 's'}{planted}"
    )


def save(directory: JobDirectory, summary: JobSummary) -> None:
    """Write ``summary.json``, shortened until it fits. Raises ``OSError``."""
    data = next(text for text in _shorter_and_shorter(summary) if len(text) <= MAX_BYTES)
    write_atomically(directory.summary, data, durable=False, mode=0o600)


# -- parts --------------------------------------------------------------------------------------------------


def _incidents(
    events: Sequence[ev.AnyEvent], costs: Sequence[IncidentCost], books: Ledger
) -> Iterator[IncidentSummary]:
    opened, recovered = {}, {}
    for event, t in zip(events, corrected(events), strict=True):
        if isinstance(event, ev.IncidentOpened):
            opened[event.incident] = (t, event.detail)
        elif isinstance(event, ev.IncidentClosed):
            recovered[event.incident] = event.recover_s
    lost = _node_seconds(books)
    for cost in costs:
        t, detail = opened[cost.number]
        yield IncidentSummary(
            number=cost.number,
            t=t,
            symptom=cost.symptom,
            cause=cost.cause,
            nodes=cost.nodes[:MAX_BLAMED],
            detail=ascii_line(detail, MAX_DETAIL),
            recover_s=recovered.get(cost.number),
            lost_node_s=lost.get(cost.number, {}),
        )


def _node_seconds(books: Ledger) -> dict[int, dict[str, float]]:
    """Return what each incident cost, by class of time."""
    found: dict[int, dict[TimeClass, float]] = {}
    for span in books.spans:
        if not span.incident:
            continue
        classes = found.setdefault(span.incident, {})
        for part in span.parts:
            if part.time not in EFFECTIVE:
                classes[part.time] = classes.get(part.time, 0.0) + span.nodes * part.ms / 1000
    return {
        number: {time.value: round(seconds, 3) for time, seconds in classes.items() if seconds > 0}
        for number, classes in found.items()
    }


def _newest(work: list[NodeWork], most: int = MAX_NAMES) -> tuple[NodeWork, ...]:
    kept: list[NodeWork] = []
    for one in reversed(work):
        most -= len(one.nodes)
        if most < 0 and kept:
            break
        kept.append(one)
    return tuple(reversed(kept))


def _shorter_and_shorter(summary: JobSummary) -> Iterator[bytes]:
    yield encode(summary)
    plain = tuple(replace(one, detail="") for one in summary.incidents)
    yield encode(replace(summary, incidents=plain))
    for most in (200, 20):
        few = plain[-most:]
        left_out = summary.left_out + len(plain) - len(few)
        work = _newest(list(summary.work), MAX_NAMES // 4)
        yield encode(replace(summary, incidents=few, left_out=left_out, work=work))
    short = replace(summary, incidents=(), left_out=summary.left_out + len(plain), work=())
    yield encode(short)
