"""What the inspector tells the agent: the result of one look at a part of the node, sorted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurm_robust.health.report import Conclusion, Report
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.model.record import Record, decoded

Subject = tuple[str, str]
"""A check and what it looked at (empty: the node)."""

TOLD_WARNINGS = ("infiniband.flaps", "ethernet.flaps", "memory.pressure")
"""What keeps no jobs away and is an alert all the same: a link that was lost once and came back is counted,
and memory that runs out explains the kill that may follow."""


class Looked(Record):
    """One look. ``failed`` are reasons for an alert, ``well`` was measured and is none.

    ``notes``: for the journal, each once. ``nbytes``: what the links between nodes have carried since they
    count; None if that was not looked at, or there are none.
    """

    failed: tuple[Finding, ...] = ()
    well: tuple[Subject, ...] = ()
    unknown: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()
    nbytes: int | None = None


# Made while there is one thread; see Record.
_looked = msgspec.json.Decoder(Looked)


def subject_of(finding: Finding) -> Subject:
    """What a finding is about."""
    return finding.check, finding.subject


def sort(report: Report, conclusion: Conclusion, notes: Iterable[str] = ()) -> Looked:
    """A run of the checks as the agent needs it.

    What is unknown is never a reason for an alert; what users can write is none that speaks against the node.
    """
    causes = (
        found
        for found in conclusion.causes
        if found.outcome is Outcome.FAIL and (found.confirm == 1 or found.blame is not Party.NODE)
    )
    warnings = (
        found
        for found in conclusion.warnings
        if found.check in TOLD_WARNINGS and found.suggestion is not Suggestion.NONE
    )
    failed = (*causes, *warnings)
    known = {subject_of(found) for found in failed}
    unknown = {subject_of(found) for found in report.findings if found.outcome is Outcome.UNKNOWN}
    seen = dict.fromkeys(subject_of(found) for found in report.findings)
    return Looked(
        failed=failed,
        well=tuple(subject for subject in seen if subject not in known | unknown),
        unknown=tuple(subject for subject in seen if subject in unknown - known),
        notes=tuple(notes),
    )


def encode(looked: Looked) -> bytes:
    """As one packet."""
    return msgspec.json.encode(looked)


def decode(packet: bytes) -> Looked:
    """The other way round. Raises ``msgspec.DecodeError``."""
    return decoded(_looked, packet, msgspec.DecodeError)
