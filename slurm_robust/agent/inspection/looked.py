"""What the inspector tells the agent: the result of one look at a part of the node, sorted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurm_robust.health.check import AnyCheck
from slurm_robust.health.report import Conclusion, Report
from slurm_robust.model.findings import Effect, Finding, Outcome, Party, Suggestion
from slurm_robust.model.record import Record, decoded

Subject = tuple[str, str]
"""A check and what it looked at (empty: the node)."""


class Looked(Record):
    """One look. ``failed`` are reasons for an alert, ``well`` was measured and is none.

    ``effects``: of the checks that failed, those whose effect is another than a plain fault's.
    ``notes``: for the journal, each once. ``nbytes``: what the links between nodes have carried since they
    count; None if that was not looked at, or there are none.
    """

    failed: tuple[Finding, ...] = ()
    effects: dict[str, Effect] = {}
    well: tuple[Subject, ...] = ()
    unknown: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()
    nbytes: int | None = None


# Made while there is one thread; see Record.
_looked = msgspec.json.Decoder(Looked)


def subject_of(finding: Finding) -> Subject:
    """What a finding is about."""
    return finding.check, finding.subject


def sort(
    report: Report, conclusion: Conclusion, checks: Iterable[AnyCheck], notes: Iterable[str] = ()
) -> Looked:
    """A run of ``checks`` as the agent needs it.

    What is unknown is never a reason for an alert; what users can write is none that speaks against the node.
    """
    by_name = {check.name: check for check in checks}
    causes = (
        found
        for found in conclusion.causes
        if found.outcome is Outcome.FAIL and (found.confirm == 1 or found.blame is not Party.NODE)
    )
    warnings = (
        found
        for found in conclusion.warnings
        if found.suggestion is not Suggestion.NONE
        and (check := by_name.get(found.check)) is not None
        and check.warns_training
    )
    failed = (*causes, *warnings)
    known = {subject_of(found) for found in failed}
    unknown = {subject_of(found) for found in report.findings if found.outcome is Outcome.UNKNOWN}
    seen = dict.fromkeys(subject_of(found) for found in report.findings)
    return Looked(
        failed=failed,
        effects={
            check.name: check.effect
            for check in map(by_name.get, {found.check for found in failed})
            if check is not None and check.effect is not Effect.FAULT
        },
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
