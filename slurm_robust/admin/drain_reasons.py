"""What the reasons of drains say: who took a node out of service, and whether that is evidence against it.

``data/drain-reasons.yaml`` has what is known of Slurm and of the tools of others; sites add theirs in the
configuration of nodes (``drain_reasons``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import cache
from pathlib import Path

import msgspec
import yaml

from slurm_robust.config.node import DrainReason
from slurm_robust.model.record import Record
from slurm_robust.nodes.reasons import TAG, parts

FILE = Path(__file__).parent / "data" / "drain-reasons.yaml"


class Meaning(str, Enum):
    """Who or what took the node out of service."""

    FAULT = "fault"
    SLURM = "slurm"
    JOB = "job"
    UPGRADE = "upgrade"
    PERSON = "person"


class _ReasonPart(Record):
    """What one of those who wrote a reason says."""

    text: str
    by: str
    means: Meaning
    says: str
    """The same in a few words, for reports."""

    @property
    def is_ours(self) -> bool:
        """Whether srobust wrote it."""
        return self.text.startswith(TAG)


PERSON = "taken out by a person"


@cache
def shipped() -> tuple[DrainReason, ...]:
    """Return the lines of this package."""
    return msgspec.convert(yaml.safe_load(FILE.read_bytes()), tuple[DrainReason, ...])


def read(reason: str, site: Sequence[DrainReason] = ()) -> tuple[_ReasonPart, ...]:
    """Return the parts of a reason. ``site``: lines that come before ours. Pure.

    What no line knows goes on with the message of the tool before it, and is a person's after anything else.
    """
    rows = (*site, *shipped())
    found: list[_ReasonPart] = []
    for text in parts(reason):
        if part := _known(text, rows):
            found += _listed(text, part, rows)
        elif found and not found[-1].is_ours and found[-1].means is Meaning.FAULT:
            found[-1] = msgspec.structs.replace(found[-1], text=f"{found[-1].text}; {text}")
        else:
            found.append(_ReasonPart(text=text, by="a person", means=Meaning.PERSON, says=PERSON))
    return tuple(found)


def evidence(reason: str, site: Sequence[DrainReason] = ()) -> _ReasonPart | None:
    """Return the part that counts against the node, that of a test before Slurm's; None if none does.

    What comes after a person or an upgrade took the node is what they do to it.
    """
    seen: list[_ReasonPart] = []
    for part in read(reason, site):
        if part.means in (Meaning.PERSON, Meaning.UPGRADE):
            break
        seen.append(part)
    for means in (Meaning.FAULT, Meaning.SLURM):
        for part in seen:
            if part.means is means:
                return part
    return None


def _known(text: str, rows: Sequence[DrainReason]) -> _ReasonPart | None:
    for row in rows:
        if re.match(row.pattern, text, re.IGNORECASE):
            says = row.says or f"{row.means} by {row.by}"
            return _ReasonPart(text=text, by=row.by, means=Meaning(row.means), says=says)
    return None


def _listed(text: str, first: _ReasonPart, rows: Sequence[DrainReason]) -> list[_ReasonPart]:
    """Split a list: Slurm puts commas between what it has found, and so do some tools."""
    if first.is_ours:
        return [first]
    found = [first]
    begin, *more = re.split(r",\s+", text)
    found[0] = msgspec.structs.replace(first, text=begin)
    for piece in more:
        if part := _known(piece, rows):
            found.append(part)
        else:
            found[-1] = msgspec.structs.replace(found[-1], text=f"{found[-1].text}, {piece}")
    return found
