"""A check: a source that reads the machine, and a pure judgement of what it read.

Several checks may judge the facts of one source, since asking a driver once is cheaper than a dozen times.
A new check is a function from :class:`View` and the site's configuration to findings, and a :class:`Check` in
the ``CHECKS`` of its module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

from msgspec import structs

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Effect, Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record

F = TypeVar("F", bound=Record)

ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "HOME": "/"}
"""The whole environment of a command, so that its output does not depend on who runs it."""


class CheckContext(str, Enum):
    """On whose behalf checks run."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    PERIODIC = "periodic"
    DEEP = "deep"
    """A suspect is tested: everything, with nothing from the cache."""

    PERSON = "person"
    """``srobust check``."""

    LIVE = "live"
    """A job's inspector, while training runs and as the job's user."""


EVERYWHERE = frozenset(CheckContext)
NOT_LIVE = EVERYWHERE - {CheckContext.LIVE}
"""For what only root, or only a node without jobs, can judge, what a job sees only its share of, and what
does not change while a job runs."""


class Probe(str, Enum):
    """A group of checks that the inspector and ``srobust-node watch`` run together, at a pace of its own."""

    KERNEL = "kernel"
    GPU = "gpu"
    NETWORK = "network"
    NODE = "node"
    """The rest: for ``srobust-node watch`` no group of its own, but part of the full run."""


class Hang(Record, kw_only=False):
    """What it means if gathering does not end in time: for a driver or a mount that is the fault itself."""

    outcome: Outcome = Outcome.UNKNOWN
    text: str = "no answer in time"
    suggestion: Suggestion = Suggestion.NONE
    blame: Party = Party.NODE


class Source(Record, Generic[F], kw_only=False):
    """Reads one part of the machine."""

    name: str
    facts: type[F]
    gather: Callable[[Host, NodeConfig], F]
    """Runs in a child process that is abandoned after ``timeout_s``, because a system call on a dead mount or
    a hung driver cannot be interrupted. Facts are absent (empty, None) for hardware that is not there; what
    cannot be read raises ``OSError`` or ``RuntimeError`` with the reason."""

    timeout_s: float = 5.0
    fresh_s: float = 60.0
    """A result that is not older may be used again by a prolog; 0: never."""

    history_s: float = 0.0
    """How long earlier facts are kept for the judges, at most :data:`HISTORY` of them."""

    hang: Hang = Hang()
    """The finding of each check of this source that has ``hangs``, when there was no answer."""


HISTORY = 64


class View(Record, Generic[F], kw_only=False):
    """The facts of one run, and what a judge sees beside them: earlier ones, and the site's baseline."""

    facts: F
    at: float
    """Wall-clock time, seconds since 1970."""

    boot_id: str = ""
    before: tuple[View[F], ...] = ()
    """Views of earlier runs, oldest first, which have facts, time and boot only."""

    baseline: F | None = None
    job_gone: bool | None = None
    """Whether no job is meant to run on the node (prolog, epilog, an idle node), so that what still runs is
    left over; None if that is not known.
    """


SETTLED_S = 900.0
"""What is not ready for so long, after the boot or since it was ready, will not be by itself."""

CONFIRM = 3
"""Periodic runs in a row in which it must be so before a failure that users can write keeps jobs away."""


class Check(Record, Generic[F], kw_only=False):
    """A question about a node. Who can write its evidence and where it runs has no default: each says it."""

    name: str
    source: Source[F]
    judge: Callable[[View[F], NodeConfig], Iterable[Finding]]
    """Pure. Returns one finding for each subject; nothing for hardware that is not there."""

    explain: str
    """Tells an administrator what is checked, why, and what to do."""

    written_by: Writer
    """The least of those who can bring about a failure that keeps jobs away, or any failure of a check that
    never does."""

    contexts: frozenset[CheckContext]
    """The contexts in which it runs, if the site does not say otherwise."""

    probe: Probe
    """The group with which it runs if the checks do not all run together."""

    second: str = ""
    """The second, independent evidence that the judge asks for if users can write the first."""

    hangs: bool = False
    """Whether this check speaks for the source when it hangs: one of each source; none if the source
    bounds its own question.
    """

    effect: Effect = Effect.FAULT
    """On a job that trains."""

    warns_training: bool = False
    """Whether a failure that keeps no jobs away is an alert anyway."""

    @property
    def confirm(self) -> int:
        """The one rule: what users can write counts when it stays, or with independent evidence."""
        return CONFIRM if self.written_by.is_user and not self.second else 1


def judged(
    check: str,
    bad: str,
    *,
    subject: str = "",
    value: str,
    limit: str,
    source: str,
    suggestion: Suggestion = Suggestion.MONITOR,
    blame: Party = Party.NODE,
) -> Finding:
    """Return a failure whose text is ``bad``; if that is empty, a pass, which neither suggests nor blames."""
    found = Finding(
        check=check, outcome=Outcome.PASS, subject=subject, value=value, limit=limit, source=source
    )
    if not bad:
        return found
    return structs.replace(found, outcome=Outcome.FAIL, text=bad, suggestion=suggestion, blame=blame)


AnyCheck = Check[Any]
AnySource = Source[Any]
