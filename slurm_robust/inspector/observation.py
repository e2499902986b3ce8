"""What the inspector reports to the agent: the results of one probe of the node, sorted. Pure."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from slurm_robust.model.findings import Effect, Finding, Outcome, Party, Suggestion
from slurm_robust.model.record import Record, decoded
from slurm_robust.nodes.check import AnyCheck
from slurm_robust.nodes.verdict import Report

Subject = tuple[str, str]
"""A check and the part of the node that it is about (empty: the node)."""


class Observation(Record):
    """Results of one probe."""

    failed: tuple[Finding, ...] = ()
    """Reasons for an alert."""

    effects: dict[str, Effect] = {}
    """The failed checks whose effect is another than a plain fault's."""

    well: tuple[Subject, ...] = ()
    """Measured, and in order."""

    unknown: tuple[Subject, ...] = ()
    notes: tuple[str, ...] = ()
    """For the journal, each once."""

    nbytes: int | None = None
    """What the links between nodes have carried since they count; None if not read, or without such links."""


# Made while there is one thread; see Record.
_decoder = msgspec.json.Decoder(Observation)


def subject_of(finding: Finding) -> Subject:
    """Return what a finding is about."""
    return finding.check, finding.subject


def sort(report: Report, checks: Iterable[AnyCheck], notes: Iterable[str] = ()) -> Observation:
    """Sort the findings of one run of ``checks``, which has been judged.

    Unknown is never a reason for an alert. Evidence that users can write does not count against the node.
    """
    by_name = {check.name: check for check in checks}
    causes = (
        found
        for found in report.causes
        if found.outcome is Outcome.FAIL and (found.confirm == 1 or found.blame is not Party.NODE)
    )
    warnings = (
        found
        for found in report.warnings
        if found.suggestion is not Suggestion.NONE
        and (check := by_name.get(found.check)) is not None
        and check.warns_training
    )
    failed = (*causes, *warnings)
    known = {subject_of(found) for found in failed}
    unknown = {subject_of(found) for found in report.findings if found.outcome is Outcome.UNKNOWN}
    seen = dict.fromkeys(subject_of(found) for found in report.findings)
    return Observation(
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


def encode(observation: Observation) -> bytes:
    """Encode ``observation`` as one packet."""
    return msgspec.json.encode(observation)


def decode(packet: bytes) -> Observation:
    """Return the inverse of :func:`encode`. Raises ``msgspec.DecodeError``."""
    return decoded(_decoder, packet, msgspec.DecodeError)
