"""What one run of the checks found, and whether the node may run jobs by it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec

from slurm_robust.config.node import CheckRule, NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.reasons import TAG, as_one_part
from slurm_robust.util.text import ascii_line

REASON_BYTES = 200

_NO_RULE = CheckRule()
# These contexts test thoroughly, or a person is asking: no second run is waited for.
_CONCLUSIVE = (CheckContext.DEEP, CheckContext.PERSON)

OUT_OF_TIME = "budget"
"""Why a check was left out for which the time was too short."""


class Report(Record):
    """One run of the checks: what it found, and since :func:`conclude` whether the node may run jobs."""

    node: str = ""
    at: float = 0.0
    """Seconds since 1970."""

    boot_id: str = ""
    context: CheckContext = CheckContext.PERIODIC
    findings: tuple[Finding, ...] = ()
    took_s: dict[str, float] = {}
    """Seconds by source."""

    reused: tuple[str, ...] = ()
    """Sources whose facts were an earlier run's."""

    left_out: dict[str, str] = {}
    """Checks that did not run, with the reason."""

    errors: dict[str, str] = {}
    """Checks or sources that are broken themselves."""

    wall_s: float = 0.0
    reason: str = ""
    """Names the causes in one short line without control characters."""

    causes: tuple[Finding, ...] = ()
    """Findings that keep jobs away, worst first."""

    warnings: tuple[Finding, ...] = ()
    """Failures that do not keep jobs away."""

    @property
    def fit(self) -> bool:
        """Whether the node may run jobs."""
        return not self.causes

    @property
    def suggestion(self) -> Suggestion:
        """What should be done with the node for the worst cause."""
        return self.causes[0].suggestion if self.causes else Suggestion.NONE

    @property
    def unknown(self) -> tuple[Finding, ...]:
        """What could not be measured, and keeps no jobs away."""
        return tuple(f for f in self.findings if f.outcome is Outcome.UNKNOWN and f not in self.causes)

    @property
    def cut(self) -> tuple[str, ...]:
        """Checks for which the time was too short."""
        return tuple(sorted(name for name, why in self.left_out.items() if why == OUT_OF_TIME))


def rule_of(config: NodeConfig, check: str) -> CheckRule:
    """Return what the site says of a check. Later patterns override; the full name overrides all."""
    if not config.checks:
        return _NO_RULE
    merged = _NO_RULE
    names = [name for name in config.checks if name != check and fnmatchcase(check, name)]
    for name in [*names, check] if check in config.checks else names:
        rule = config.checks[name]
        given = {field: value for field, value in msgspec.structs.asdict(rule).items() if value is not None}
        merged = msgspec.structs.replace(merged, **given)
    return merged


def subject_key(finding: Finding) -> str:
    """Return the name under which failures in a row are counted: ``gpu.ecc gpu3``."""
    return f"{finding.check} {finding.subject}".rstrip()


def conclude(report: Report, config: NodeConfig, runs: Mapping[str, int]) -> Report:
    """Judge the node by one run, and return the report of it with that.

    ``runs`` has, by :func:`subject_key`, in how many periodic runs in a row the subject has failed so that it
    keeps jobs away, this run included. A failure that has to be confirmed and is not yet is a warning. What
    only the site wants confirmed counts immediately in a thorough run; what users can write does not.
    """
    causes: list[Finding] = []
    warnings: list[Finding] = []
    for found in report.findings:
        rule = rule_of(config, found.check)
        if found.outcome is Outcome.UNKNOWN and rule.on_unknown == "closed":
            causes.append(found)
        elif found.outcome is Outcome.FAIL:
            finding = overridden(found, rule)
            enough = runs.get(subject_key(found), 1) >= (rule.confirm or found.confirm)
            enough |= found.confirm == 1 and report.context in _CONCLUSIVE
            (causes if finding.suggestion.keeps_jobs_away and enough else warnings).append(finding)
    causes.sort(key=_worst_first)
    warnings.sort(key=_worst_first)
    return msgspec.structs.replace(
        report, reason=reason(causes), causes=tuple(causes), warnings=tuple(warnings)
    )


def reason(causes: list[Finding]) -> str:
    """Return ``srobust: gpu3 XID 79, fell off the bus (+2)``: the first cause, and how many more."""
    if not causes:
        return ""
    first = causes[0]
    more = f" (+{len(causes) - 1})" if len(causes) > 1 else ""
    text = f"{first.subject} {first.text or first.check}"
    if first.outcome is Outcome.UNKNOWN:
        text = f"{first.subject or first.check} unknown: {first.text or first.check}"
    room = REASON_BYTES - len(TAG) - len(more)
    return TAG + as_one_part(ascii_line(text, room)) + more


def overridden(finding: Finding, rule: CheckRule) -> Finding:
    """Return the finding with the site's own suggestion."""
    if rule.suggestion is None:
        return finding
    return msgspec.structs.replace(finding, suggestion=Suggestion(rule.suggestion))


def _worst_first(finding: Finding) -> tuple[bool, int]:
    """Return what is known to be bad before what is unknown, and the heavier remedy first; else as found."""
    return finding.outcome is Outcome.UNKNOWN, -finding.suggestion.weight
