"""The health of an agent's node while training runs: from observations of the inspector to alerts.

:class:`Inspection` reads the inspector, in calls that return immediately. :class:`Doubts` and
:class:`AlertBook` are pure, without a clock.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from slurm_robust.analysis.progress.traffic import TrafficMeter
from slurm_robust.inspector.inspector import Inspector
from slurm_robust.inspector.observation import Observation, Subject, subject_of
from slurm_robust.model.findings import MAX_ALERTS, REMEMBERED_S, Alert, Effect, Finding
from slurm_robust.model.progress import Traffic
from slurm_robust.nodes.gpus.judging import CONFIRM_AFTER_S
from slurm_robust.nodes.gpus.presence import LOST

# A bound for broken checks: a node has far fewer parts that can fail.
_MAX_FAULTS = 256


class AlertBook:
    """Turns observations of one node into alerts. Times are monotonic seconds.

    A fault that stood before training began is an alert only if it keeps jobs away. An alert that gets worse,
    or happens again while it stands, is over and begins anew, so that it is counted again.

    Alerts are kept as of time 0, so that their ages are negative here. A fault that is no alert has number 0.
    """

    def __init__(self) -> None:
        self._standing: dict[Subject, Alert] = {}
        self._over: list[Alert] = []
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
        """Return those that stand and those that ended lately, in the order of their numbers."""
        over = [a for a in self._over if a.ended_s is not None and now + a.ended_s <= REMEMBERED_S]
        self._over = over[-MAX_ALERTS:]
        standing = sorted((a for a in self._standing.values() if a.number), key=lambda a: a.number)
        recent = [*self._over, *standing][-MAX_ALERTS:]
        return tuple(_as_of(alert, now) for alert in sorted(recent, key=lambda a: a.number))

    def _failed(self, finding: Finding, effects: Mapping[str, Effect], now: float, *, training: bool) -> bool:
        effect = effects.get(finding.check, Effect.FAULT)
        subject = subject_of(finding)
        known = self._standing.get(subject)
        if known is None and len(self._standing) >= _MAX_FAULTS:
            return False
        if known is not None:
            if finding.count <= known.count and finding.suggestion.weight <= known.suggestion.weight:
                self._standing[subject] = structs.replace(known, **structs.asdict(finding))
                return False
            self._end(subject, now)
        is_alert = training or finding.suggestion.keeps_jobs_away
        self._number += is_alert
        number = self._number if is_alert else 0
        self._standing[subject] = Alert(**structs.asdict(finding), number=number, age_s=-now, effect=effect)
        return is_alert

    def _end(self, subject: Subject, now: float) -> bool:
        alert = structs.replace(self._standing.pop(subject), ended_s=-now)
        if alert.number:
            self._over.append(alert)
        return alert.number > 0


def _has_passed(subject: Subject, observation: Observation, failed: set[Subject]) -> bool:
    """Return whether an observation shows that a fault is over.

    A subject that has vanished has not passed: a GPU that fell off the bus may have no finding any more. A
    fault of a whole check (no answer) is over when nothing of the check is wrong or unknown; a check that
    passes as a whole speaks for all its subjects.
    """
    check, name = subject
    if not name:
        others = {other for other, _ in (*failed, *observation.unknown)}
        return check not in others and any(other == check for other, _ in observation.well)
    return subject in observation.well or (check, "") in observation.well


def _as_of(alert: Alert, now: float) -> Alert:
    ended_s = None if alert.ended_s is None else now + alert.ended_s
    return structs.replace(alert, age_s=now + alert.age_s, ended_s=ended_s)


BUSY_S = 120.0
"""Workers that start, restore or are being killed excuse the driver for at most this long at one go."""

PROBE_S = 5.0
"""A probe that reports now may have begun this long ago."""

_DRIVER = (LOST, "")


class Doubts:
    """Decides which silence of the GPUs' driver counts: none that a starting or dying worker causes.

    A driver registers the memory of a worker that starts or restores, and gives back that of one that was
    killed; what asks it meanwhile may wait, or be answered with an error, on a node that is sound. Times are
    monotonic seconds.

    A failure that was a doubt before counts when two undisturbed observations have seen it, the second at
    least :data:`~slurm_robust.nodes.gpus.judging.CONFIRM_AFTER_S` after the first, and none in between the
    opposite. What was no doubt before (a GPU that is lost) counts immediately.
    """

    def __init__(self) -> None:
        self._busy_since: float | None = None
        self._disturbed = float("-inf")
        # When an observation that counts has seen each first; None: only others have.
        self._first: dict[Subject, float | None] = {}

    def note(self, now: float, *, busy: bool) -> None:
        """Note whether a worker of this node starts, restores or is being killed. Call it often."""
        if not busy:
            self._busy_since = None
            return
        self._busy_since = now if self._busy_since is None else self._busy_since
        if now - self._busy_since <= BUSY_S:
            self._disturbed = now

    def settle(self, observation: Observation, now: float) -> Observation:
        """Return ``observation`` with the failures that do not count yet as unknown."""
        failed = [subject_of(found) for found in observation.failed]
        self._forget(observation, failed)
        counts = now - self._disturbed > PROBE_S
        doubts = [subject for subject in observation.unknown if subject[0] == LOST]
        early = {
            subject
            for subject in failed
            if subject in self._first and not self._confirms(subject, now, counts)
        }
        for subject in (*doubts, *early):
            if self._first.get(subject) is None:
                self._first[subject] = now if counts else None
        if not early:
            return observation
        kept = tuple(found for found in observation.failed if subject_of(found) not in early)
        return structs.replace(observation, failed=kept, unknown=(*observation.unknown, *sorted(early)))

    def _confirms(self, subject: Subject, now: float, counts: bool) -> bool:
        first = self._first[subject]
        return counts and first is not None and now - first >= CONFIRM_AFTER_S

    def _forget(self, observation: Observation, failed: list[Subject]) -> None:
        """Forget doubts that have passed; and a driver that says anything of a GPU is not silent."""
        passed = {subject for subject in observation.well if subject[0] == LOST}
        if any(subject[0] == LOST and subject[1] for subject in (*passed, *failed, *observation.unknown)):
            passed.add(_DRIVER)
        for subject in passed:
            self._first.pop(subject, None)


# A launcher that imports torch needs the cores first. A spare is checked soon, too.
WAIT_S = 15.0

# A bound: far more than ever happen.
_NOTES = 20


class Inspection:
    """The inspector and the alerts that follow from it; without an inspector there are none.

    It begins with training, and ``wait_s`` after the first call if there is none.
    """

    def __init__(self, inspector: Inspector | None, wait_s: float = WAIT_S) -> None:
        self._inspector = inspector
        self._wait_s = wait_s
        self._since: float | None = None
        self._begun = False
        self._book = AlertBook()
        self._doubts = Doubts()
        self._generation = 0
        self._meter = TrafficMeter()
        self._noted: set[str] = set()
        self._notes: list[str] = []

    def fileno(self) -> int:
        """Return the descriptor, readable when :meth:`follow` has something to do; -1 for none."""
        return self._inspector.fileno() if self._inspector else -1

    @property
    def traffic(self) -> Traffic | None:
        """What the links between nodes have carried in this generation, for the heartbeat."""
        return self._meter.traffic

    def follow(self, now: float, generation: int, *, busy: bool = False) -> bool:
        """Take in what was seen; whether that changes any alert. To be called every second at least.

        ``generation``: that of the workers, 0 before the first. ``busy``: one of them starts, restores or is
        being killed.
        """
        self._doubts.note(now, busy=busy)
        has_news, training = False, generation > 0
        if generation != self._generation:
            self._generation, self._meter = generation, TrafficMeter()
        self._since = now if self._since is None else self._since
        self._begun |= training or now - self._since >= self._wait_s
        for observation in self._inspector.read(now) if self._inspector and self._begun else ():
            has_news |= self._book.take(self._doubts.settle(observation, now), now, training=training)
            if observation.nbytes is not None:
                self._meter.see(observation.nbytes, now)
            for text in observation.notes:
                if text not in self._noted and len(self._noted) < _NOTES:
                    self._noted.add(text)
                    self._notes.append(text)
        return has_news

    def alerts(self, now: float) -> tuple[Alert, ...]:
        """Return the alerts for the heartbeat."""
        return self._book.alerts(now)

    def notes(self) -> list[str]:
        """Return the notes for the journal since the last call."""
        found, self._notes = self._notes, []
        return found

    def close(self) -> None:
        """End the inspector."""
        if self._inspector:
            self._inspector.close()
