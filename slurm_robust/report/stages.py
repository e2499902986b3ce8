"""What a job did when, and how much of its time each part took. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from slurm_robust.ledger.account import Span
from slurm_robust.ledger.classes import PARTS, Part, TimeClass
from slurm_robust.ledger.ledger import Ledger
from slurm_robust.model.record import Record


class JobStage(Record):
    """A time in which a job did one thing; seconds since 1970 by slurmctld's clock."""

    begin: float
    end: float
    part: Part


class PartShare(Record):
    """How much of a job's time one part took."""

    part: Part
    ms: int
    share: float
    """Of the whole, from 0 to 1."""
    classes: tuple[tuple[TimeClass, int], ...]
    """Its classes with their milliseconds, the greatest first."""


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


def shares(classes: Mapping[TimeClass, int]) -> tuple[PartShare, ...]:
    """Return the parts of a whole in the order of :class:`Part`; their milliseconds add up to it."""
    whole = max(1, sum(classes.values()))
    found: dict[Part, list[tuple[TimeClass, int]]] = {part: [] for part in Part}
    for one, ms in sorted(classes.items(), key=lambda item: -item[1]):
        found[PARTS[one]].append((one, ms))
    return tuple(
        PartShare(
            part=part,
            ms=(ms := sum(each for _, each in members)),
            share=ms / whole,
            classes=tuple(members),
        )
        for part, members in found.items()
        if members
    )


def _most_of(span: Span) -> Part:
    took: Counter[Part] = Counter()
    for each in span.parts:
        took[PARTS[each.time]] += each.ms
    return took.most_common(1)[0][0]
