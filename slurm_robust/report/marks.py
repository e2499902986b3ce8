"""Moments that every chart of a job marks: requeues, runs, updates, takeovers, unusual restarts. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from slurm_robust.evidence.updates import result, title
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.model import events as ev
from slurm_robust.model.incident import RollBack
from slurm_robust.model.progress import began_after
from slurm_robust.model.record import Record
from slurm_robust.model.updates import UpdateResult, UpdateRow
from slurm_robust.util.text import count, one_line

REQUEUE, RUN, UPDATE, TAKEOVER, CHAPTER, RESTART = (
    "requeue",
    "run",
    "update",
    "takeover",
    "chapter",
    "restart",
)


class ChartMark(Record):
    """A moment that a chart shows."""

    t: float
    kind: str
    """``requeue``, ``run``, ``update``, ``takeover``, ``chapter``: a job of the training begins, or
    ``restart``: one that goes back further than to its newest checkpoint, or with other ranks than before.
    """
    text: str
    label: str
    """The same in two or three words."""


def marks(
    events: Sequence[ev.AnyEvent], times: Sequence[float], updates: Iterable[UpdateRow], books: Ledger
) -> tuple[ChartMark, ...]:
    """Return all marks of a job, in their order."""
    found = [
        *_of_runs(events, times),
        *_of_restarts(events, times),
        *_of_updates(updates),
        *_announced(books, events, times),
    ]
    return tuple(sorted(found, key=lambda mark: mark.t))


def _of_runs(events: Sequence[ev.AnyEvent], times: Sequence[float]) -> Iterator[ChartMark]:
    for t, event in zip(times, events, strict=True):
        match event:
            case ev.RequeueStarted():
                yield ChartMark(t=t, kind=REQUEUE, text=one_line(event.reason), label="requeue")
            case ev.AllocationTaken() if event.restart_count > 0:
                number = event.restart_count
                yield ChartMark(t=t, kind=RUN, text=f"run {number} of the Slurm job", label=f"run {number}")
            case ev.ControllerStarted() if event.taken_from:
                text = one_line(f"{event.host} took over from {event.taken_from}: {event.reason}")
                yield ChartMark(t=t, kind=TAKEOVER, text=text, label="takeover")


def _of_restarts(events: Sequence[ev.AnyEvent], times: Sequence[float]) -> Iterator[ChartMark]:
    """Yield restarts that go back further than to the newest checkpoint, or that have other ranks."""
    sealed, best, each, slots, for_update = -1, -1, 1, 0, False
    fresh: float | None = None  # when a generation without a checkpoint of ours was launched
    for t, event in zip(times, events, strict=True):
        match event:
            case ev.RunStarted():
                each = event.nproc_per_node
            case ev.FirstStep(reported=True) | ev.ProgressMade(reported=True):
                if fresh is not None and began_after(-1, event.step, best) < 0:
                    text = f"it begins from step 0 again, though step {best} was done"
                    yield ChartMark(t=fresh, kind=RESTART, text=text, label="from step 0")
                best, fresh = max(best, event.step), None
            case ev.GenerationEnded() | ev.GenerationSealed():
                sealed = max(sealed, event.sealed_step)
            case ev.UpdateApplied():
                for_update = True  # updates and rollbacks have marks of their own
            case ev.Decided() if any(isinstance(action, RollBack) for action in event.actions):
                for_update = True
            case ev.GenerationLaunched():
                step = event.restore_step
                if 0 <= step < sealed and not for_update:
                    text = f"it goes on from step {step}, though step {sealed} was saved"
                    yield ChartMark(t=t, kind=RESTART, text=text, label=f"from step {step}")
                if slots and len(event.slots) != slots:
                    ranks = count(len(event.slots) * each, "rank")
                    text = f"it goes on with {ranks} instead of {slots * each}"
                    yield ChartMark(t=t, kind=RESTART, text=text, label=ranks)
                fresh = t if step < 0 < best and not for_update else None
                sealed, slots, for_update = step, len(event.slots), False


def _of_updates(rows: Iterable[UpdateRow]) -> Iterator[ChartMark]:
    """Yield where the job got another release, and where it went back."""
    for row in rows:
        if row.applied is not None:
            label = f"{'rollback' if row.rollback else 'update'} {row.number}"
            yield ChartMark(t=row.applied, kind=UPDATE, text=title(row), label=label)
        if row.result is UpdateResult.ROLLED_BACK and row.judged is not None:
            text, label = f"update {row.number} is {result(row)}", f"update {row.number} rolled back"
            yield ChartMark(t=row.judged, kind=UPDATE, text=text, label=label)


def _announced(books: Ledger, events: Sequence[ev.AnyEvent], times: Sequence[float]) -> Iterator[ChartMark]:
    """Yield where the script announced that it changes its own code or settings."""
    last_ms = -1
    held: dict[int, float] = {}  # ranks that an update of the job holds say so in the same way
    for t, event in zip(times, events, strict=True):
        if isinstance(event, ev.CheckpointRequested) and event.update:
            held.setdefault(event.generation, t)
    for span in books.spans:
        took = sum(part.ms for part in span.parts if part.time is TimeClass.UPDATING and not part.detail)
        is_held = books.begin + span.end_ms / 1000 >= held.get(span.generation, math.inf)
        if took and span.begin_ms != last_ms and not is_held:
            t = books.begin + span.begin_ms / 1000
            text = f"the script announced an update ({took / 1000:.0f} s)"
            yield ChartMark(t=t, kind=UPDATE, text=text, label="update")
        if took:
            last_ms = span.end_ms
