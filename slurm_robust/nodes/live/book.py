"""Turns observations into alerts: when each began, and whether it is over. Pure; no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import structs

from slurm_robust.model.findings import MOST_ALERTS, REMEMBERED_S, Alert, Effect, Finding
from slurm_robust.nodes.live.observation import Observation, Subject, subject_of

# A bound for broken checks: a node has far fewer parts that can fail.
_MOST_FAULTS = 256


@dataclass
class _OpenFault:
    finding: Finding
    began: float
    number: int  # of its alert; 0 for a fault that raises none
    effect: Effect
    ended: float | None = None


class AlertBook:
    """The alerts of one agent. Times are monotonic seconds.

    A fault that stood before the training began is an alert only if it keeps jobs away. One that gets worse,
    or happens again while it stands, is over and begins anew, so that it is counted again.
    """

    def __init__(self) -> None:
        self._standing: dict[Subject, _OpenFault] = {}
        self._over: list[_OpenFault] = []
        self._number = 0

    def take(self, observation: Observation, now: float, *, training: bool) -> bool:
        """Add an observation; whether that changes any alert. ``training``: it has begun."""
        changes = [
            self._failed(finding, observation.effects, now, training=training)
            for finding in observation.failed
        ]
        failed = {subject_of(finding) for finding in observation.failed}
        passed = [s for s in self._standing if s not in failed and _has_passed(s, observation, failed)]
        changes += [self._end(subject, now) for subject in passed]
        return any(changes)

    def alerts(self, now: float) -> tuple[Alert, ...]:
        """Those that stand and those that ended lately, in the order of their numbers."""
        self._over = [fault for fault in self._over if now - _end_of(fault) <= REMEMBERED_S][-MOST_ALERTS:]
        standing = sorted((f for f in self._standing.values() if f.number), key=lambda f: f.number)
        recent = [*self._over, *standing][-MOST_ALERTS:]
        return tuple(_alert(fault, now) for fault in sorted(recent, key=lambda f: f.number))

    def _failed(self, finding: Finding, effects: Mapping[str, Effect], now: float, *, training: bool) -> bool:
        effect = effects.get(finding.check, Effect.FAULT)
        subject = subject_of(finding)
        known = self._standing.get(subject)
        if known is None and len(self._standing) >= _MOST_FAULTS:
            return False
        if known is not None and not _is_worse(finding, known.finding):
            known.finding = finding
            return False
        if known is not None:
            self._end(subject, now)
        is_alert = training or finding.suggestion.keeps_jobs_away
        self._number += is_alert
        self._standing[subject] = _OpenFault(finding, now, self._number if is_alert else 0, effect)
        return is_alert

    def _end(self, subject: Subject, now: float) -> bool:
        fault = self._standing.pop(subject)
        fault.ended = now
        if fault.number:
            self._over.append(fault)
        return fault.number > 0


def _is_worse(finding: Finding, known: Finding) -> bool:
    return finding.count > known.count or finding.suggestion.weight > known.suggestion.weight


def _has_passed(subject: Subject, observation: Observation, failed: set[Subject]) -> bool:
    """Whether an observation shows that a fault is over.

    A subject that has vanished has not passed: a GPU that fell off the bus may have no finding any more. A
    fault of a whole check (no answer) is over when nothing of the check is wrong or unknown; a check that
    passes as a whole speaks for all its subjects.
    """
    check, name = subject
    if not name:
        others = {other for other, _ in (*failed, *observation.unknown)}
        return check not in others and any(other == check for other, _ in observation.well)
    return subject in observation.well or (check, "") in observation.well


def _end_of(fault: _OpenFault) -> float:
    return fault.began if fault.ended is None else fault.ended


def _alert(fault: _OpenFault, now: float) -> Alert:
    return Alert(
        **structs.asdict(fault.finding),
        number=fault.number,
        age_s=now - fault.began,
        ended_s=None if fault.ended is None else now - fault.ended,
        effect=fault.effect,
    )
