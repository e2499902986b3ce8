"""How much of a job's time each part took. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.ledger.classes import PARTS, Part, TimeClass
from slurm_robust.model.record import Record


class PartShare(Record):
    """How much of a job's time one part took."""

    part: Part
    ms: int
    share: float
    """Of the whole, from 0 to 1."""
    classes: tuple[tuple[TimeClass, int], ...]
    """Its classes with their milliseconds, the greatest first."""


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
