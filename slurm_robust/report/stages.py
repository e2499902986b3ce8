"""What a job did when. Pure."""

from __future__ import annotations

from collections import Counter

from slurm_robust.ledger.account import Span
from slurm_robust.ledger.classes import PARTS, Part
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.model.record import Record


class JobStage(Record):
    """A time in which a job did one thing; seconds since 1970 by slurmctld's clock."""

    begin: float
    end: float
    part: Part


def stages(books: Ledger) -> tuple[JobStage, ...]:
    """Return the life of a job as stages without gaps: a span counts as the part that took most of it."""
    found: list[JobStage] = []
    for span in books.spans:
        part = _most_of(span)
        begin, end = books.begin + span.begin_ms / 1000, books.begin + span.end_ms / 1000
        if found and found[-1].part is part:
            begin = found.pop().begin
        found.append(JobStage(begin=round(begin, 1), end=round(end, 1), part=part))
    return tuple(found)


def _most_of(span: Span) -> Part:
    took: Counter[Part] = Counter()
    for each in span.parts:
        took[PARTS[each.time]] += each.ms
    return took.most_common(1)[0][0]
