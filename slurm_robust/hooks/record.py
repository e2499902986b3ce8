"""The node's own drains: ``drain.json`` in the state folder.

Slurm holds the drain itself. This file holds what Slurm cannot: which reasons are ours, which checks failed,
how many runs have passed since, and how often it came to that.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.model.record import Record
from slurm_robust.nodes.verdict import Report

DAY_S = 86400.0
LONGEST_S = 3600.0
"""The longest wait until Slurm is asked again, before chance lengthens it by up to a half."""

LOCK_LASTS_S = 60.0
"""How long Slurm keeps the drain lock of a node that died: it counts reservations in minutes."""

AHEAD_S = 300.0
"""A time that is further ahead was written while the clock was wrong."""

POLL_S = 0.05


class DrainAction(str, Enum):
    """What to do with a node."""

    NOTHING = "nothing"
    DRAIN = "drain"
    UPDATE_REASON = "update reason"
    UNDRAIN = "undrain"


class DrainCause(Record):
    """A check and the subject on which it failed."""

    check: str
    subject: str = ""


class Pending(Record):
    """What a drain is wanted for."""

    reason: str
    causes: tuple[Finding, ...]


class OwnDrain(Record):
    """The last drain of ours, and what keeps the next one waiting. Times are seconds since 1970."""

    reason: str = ""
    """What we wrote to Slurm; empty while no drain of ours stands."""

    former: str = ""
    """The reason before, while Slurm has not answered whether it took the new one, or since a person has
    undone the drain.
    """

    since: float = 0.0
    causes: tuple[DrainCause, ...] = ()
    """They stay when a person has undone the drain, until the next one."""

    unverified: bool = False
    """Slurm has not answered whether it took the drain, which may so have been one too many."""

    unanswered: int = 0
    """Runs that asked for that in vain."""

    passes: int = 0
    """Runs in a row since then in which all causes were checked and passed."""

    unproven: int = 0
    """Full runs in a row that found the node fit and did not see all causes pass."""

    drains: tuple[float, ...] = ()
    """Times of the drains within the last day."""

    stays: bool = False
    """They were too many, so a person must undo this one."""

    waits_until: float = 0.0
    """Slurm is not asked for a drain before, since there was no room or no answer."""

    tries: int = 0
    """How often in a row that was so."""

    pending: Pending | None = None
    """What Slurm could not be asked for, or had to wait for a cap."""

    pending_boot: str = ""
    """The boot during which it was found."""

    kept: str = ""
    """The reason with which a quarantine has drained the node again."""

    said: str = ""
    """The last event about it, so that the log has changes only."""

    def drains_since(self, time_: float) -> int:
        """Return how many drains began after ``time_``."""
        return sum(t > time_ for t in self.drains)


class Left(Record):
    """What a run found while another one held the lock."""

    conclusion: Pending
    boot_id: str
    """The boot during which it was found."""


def causes_of(report: Report | Pending) -> tuple[DrainCause, ...]:
    """Return the measured failures that keep jobs away. What is only unknown is never a cause to drain."""
    return tuple(dict.fromkeys(cause_of(f) for f in report.causes if f.outcome is Outcome.FAIL))


def cause_of(finding: Finding) -> DrainCause:
    """Return what failed, without the numbers."""
    return DrainCause(check=finding.check, subject=finding.subject)


def has_passed(cause: DrainCause, findings: Sequence[Finding]) -> bool | None:
    """Return whether a run shows that the cause is gone; None when the run did not check it.

    A subject that has vanished has not passed: a GPU that fell off the bus has no finding at all any more. A
    cause without a subject (no answer at all) has passed when nothing of its check is wrong or unknown.
    """
    own = [f for f in findings if f.check == cause.check]
    if not own:
        return None
    # A finding without a subject speaks for the whole check.
    relevant = [f for f in own if not cause.subject or f.subject in (cause.subject, "")]
    return bool(relevant) and all(f.outcome is Outcome.PASS for f in relevant)


def after_run(record: OwnDrain, report: Report, *, whole: bool = False) -> OwnDrain:
    """Return the record with this run counted; the same one if the run says nothing about the causes.

    ``whole``: a periodic run of all checks. What it does not check, the next one will not check either.
    """
    if not record.reason:
        return record
    seen = [has_passed(cause, report.findings) for cause in record.causes]
    passes, unproven = record.passes, record.unproven
    if not report.fit:
        passes = unproven = 0
    elif all(seen) and seen:
        passes, unproven = passes + 1, 0
    else:
        passes = 0 if False in seen else passes
        unproven += whole
    if (passes, unproven) == (record.passes, record.unproven):
        return record
    return msgspec.structs.replace(record, passes=passes, unproven=unproven)


def as_of(record: OwnDrain, now: float) -> OwnDrain:
    """Return the record without times of the future, which a clock that was ahead once has left."""
    ahead = now + AHEAD_S
    told = msgspec.structs.replace(
        record,
        since=record.since if record.since <= ahead else 0.0,
        drains=tuple(t for t in record.drains if t <= ahead),
        waits_until=record.waits_until if record.waits_until <= now + 1.5 * LONGEST_S else 0.0,
    )
    return record if told == record else told


class DrainFile:
    """The file, and a lock beside it, because two hooks may run at the same time."""

    def __init__(self, state: Path) -> None:
        self.path = state / "drain.json"

    def exists(self) -> bool:
        """Return whether there seems to be anything to remember.

        Not by ``Path.exists()``, which raises before Python 3.14 if the folder cannot be read.
        """
        return os.path.exists(self.path) or os.path.exists(self._left)

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[bool]:
        """Hold the lock. False when another hook held it all the time, or there can be no lock here."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path.with_name("drain.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            # A state folder that cannot be written must not keep a bad node in service.
            yield True
            return
        try:
            yield _take(fd, timeout_s)
        finally:
            os.close(fd)

    def load(self) -> OwnDrain:
        """Return the record; an empty one if there is none. A damaged file is set aside first.

        Nothing wrong follows from an empty record: a drain that it does not know is never undone.
        """
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=OwnDrain)
        except FileNotFoundError:
            return OwnDrain()
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
            try:
                self.path.replace(self.path.with_name("drain.damaged"))
            except OSError:
                pass  # The folder cannot be written; save() will tell.
            return OwnDrain()

    def save(self, record: OwnDrain) -> None:
        """Write it so that a crash leaves the old or the new one. Raises ``OSError``."""
        _write(self.path, self.path.with_name("drain.json.new"), record)

    def leave(self, left: Left) -> None:
        """Leave something for the hook that gets the lock next; the newest counts. Needs no lock itself."""
        try:
            _write(self._left, self._left.with_name(f"drain.left.{os.getpid()}"), left)
        except OSError:
            pass  # The run is in the log anyway.

    def take_left(self) -> Left | None:
        """Take what was left, once. A damaged record counts as none."""
        try:
            content = self._left.read_bytes()
            self._left.unlink()
            return msgspec.json.decode(content, type=Left)
        except (msgspec.MsgspecError, UnicodeDecodeError, OSError):
            return None

    @property
    def _left(self) -> Path:
        return self.path.with_name("drain.left")


def _write(path: Path, beside: Path, content: Record) -> None:
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(content) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _take(fd: int, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        except OSError:
            return True  # no locks on this file system; see locked()
