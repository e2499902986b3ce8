"""One ledger over the jobs of a training: those of its chapters, and the time between them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_robust.ledger.account import ClassShare, Span
from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.model import events as ev


def joined(
    chapters: Sequence[Ledger],
    journals: Sequence[Sequence[ev.AnyEvent]],
    incidents_before: Sequence[int] = (),
) -> Ledger:
    """Return the ledger of a training, by those of its chapters in their order.

    Each begins when the one before has ended, or later (``not_before`` of
    :func:`~slurm_robust.ledger.ledger.ledger`). ``incidents_before``: what is added to the incidents' numbers
    of each chapter, so that no two are alike; by default nothing.
    """
    before = incidents_before or [0] * len(chapters)
    books = [(one, added) for one, added in zip(chapters, before, strict=True) if one.spans]
    if not books:
        return chapters[-1] if chapters else Ledger(job_id=0, begin=0.0, spans=(), repeated=0, ended=False)
    begin, spans, at, step = books[0][0].begin, list[Span](), 0, -1
    for one, added in books:
        offset = max(at, round((one.begin - begin) * 1000))
        if offset > at:
            spans.append(_between(at, offset, spans[-1], step))
        for span in one.spans:
            step = max(step, span.step)
            number = span.incident + added if span.incident else 0
            spans.append(
                replace(
                    span,
                    begin_ms=span.begin_ms + offset,
                    end_ms=span.end_ms + offset,
                    incident=number,
                    step=step,
                )
            )
        at = spans[-1].end_ms
    return Ledger(
        job_id=chapters[-1].job_id,
        begin=begin,
        spans=tuple(spans),
        repeated=_repeated(chapters, journals),
        ended=chapters[-1].ended,
    )


def _between(begin_ms: int, end_ms: int, last: Span, step: int) -> Span:
    return Span(
        begin_ms=begin_ms,
        end_ms=end_ms,
        parts=(ClassShare(time=TimeClass.BETWEEN, ms=end_ms - begin_ms),),
        run=last.run,
        generation=last.generation,
        incident=0,
        nodes=0,
        gpus=0,
        step=step,
    )


def _repeated(chapters: Sequence[Ledger], journals: Sequence[Sequence[ev.AnyEvent]]) -> int | None:
    """Return the repeated steps; None if the script does not number its steps and was started more than
    once.
    """
    starts = [event for events in journals for event in events if isinstance(event, ev.FirstStep)]
    if len(starts) > 1 and not all(event.reported for event in starts):
        return None
    known = [one.repeated for one in chapters]
    return sum(number or 0 for number in known) if None not in known else None
