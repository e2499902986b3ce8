"""What is found of a node: findings of checks, alerts while a job runs, and suspects that a job leaves.

Three-valued: what could not be measured is unknown, never a failure.
"""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class Outcome(str, Enum):
    """What a check says of its subject."""

    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"

    @property
    def order(self) -> int:
        """Place in a table, worst first: 0 for a failure, 1 for unknown, 2 for a pass."""
        return (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS).index(self)


class Party(str, Enum):
    """The party at which the cause lies, if the check can tell."""

    NODE = "node"
    """This node's hardware or kernel."""

    FABRIC = "fabric"
    """A link that has another end: cable, switch, neighbour."""

    STORAGE = "storage"
    """A file system that other nodes use, too."""

    SITE = "site"
    """How the node was set up: driver, firmware, services, limits."""

    JOB = "job"
    """What a job's program did or left."""


class Writer(str, Enum):
    """The parties that can cause what is seen, or fake it.

    What ordinary users can write convicts no node by itself (docs/security.md has all of it in one table).
    """

    KERNEL = "kernel"
    """The kernel, of its own hardware and file systems."""

    DRIVER = "driver"
    """A device's driver or firmware."""

    ROOT = "root"
    """Root and daemons of the system: how the node was set up."""

    PEER = "peer"
    """The other end of a link or a mount: switch, neighbour, file server."""

    OWNER = "owner of the job"
    """Whoever has, or had, a job on this node."""

    USER = "any user"
    """All users who can run a process on this node."""

    @property
    def is_user(self) -> bool:
        """Whether an ordinary user is enough."""
        return self in (Writer.OWNER, Writer.USER)


class Suggestion(str, Enum):
    """What should be done with the node, weakest first."""

    NONE = "none"
    MONITOR = "monitor"
    """Worth checking; no reason to keep jobs away."""

    RESET = "reset"
    """Reset the device, or restart the service."""

    REBOOT = "reboot"
    REPLACE = "replace"
    """Hardware for the repair desk."""

    @property
    def weight(self) -> int:
        """0 for none; the stronger, the higher."""
        return tuple(Suggestion).index(self)

    @property
    def keeps_jobs_away(self) -> bool:
        """Whether a failed check with this suggestion means that the node must not run jobs now."""
        return self not in (Suggestion.NONE, Suggestion.MONITOR)


class Effect(str, Enum):
    """What a check's failure means to training that runs."""

    FAULT = "fault"
    """Something is broken, or has happened."""

    LINK_DOWN = "link down"
    """One end of a link is down or slow for as long as the check fails; it may heal."""

    SLOW = "slow"
    """The node is slow at most: the pace of training tells whether that matters."""


class Finding(Record):
    """One result. Texts are for people, in one line; numbers in them have their unit."""

    check: str
    """Name of the check (``gpu.ecc``)."""
    outcome: Outcome
    subject: str = ""
    """The part that was checked (``gpu3``, ``mlx5_0/1``, ``/scratch``; empty: the node)."""
    text: str = ""
    """Says briefly what is wrong (``XID 79, fell off the bus``)."""
    value: str = ""
    """Measured."""
    limit: str = ""
    """Allowed."""
    source: str = ""
    """The source of the value."""
    blame: Party = Party.NODE
    suggestion: Suggestion = Suggestion.NONE
    count: int = 0
    """How often it happened lately, if the check counts that; else 0."""
    confirm: int = 1
    """Periodic runs in a row that must find it before it keeps jobs away; never less than the check's."""


MAX_ALERTS = 32
"""In one heartbeat; the newest."""

REMEMBERED_S = 600.0
"""How long an alert that has ended is still reported, so that a restarted controller counts it too."""


class Alert(Finding, kw_only=True):
    """A failed check of a node while training runs, from its beginning to its end."""

    number: int
    """Counts the alerts of one agent, so that each is counted once."""

    age_s: float
    """Seconds since it began, by the node's own clock."""

    ended_s: float | None = None
    """Seconds since it was seen to be over; None while it stands."""

    effect: Effect = Effect.FAULT
    """What the check's failure means to training that runs."""

    outcome: Outcome = Outcome.FAIL

    @property
    def is_link(self) -> bool:
        """Whether it is about one end of a link, which may heal."""
        return self.blame is Party.FABRIC


MAX_EVIDENCE = 20
"""Lines of evidence that are kept."""

MAX_TEXT = 500
"""Characters of each text that are kept."""


class Suspect(Record, forbid_unknown_fields=True):
    """``suspects/<node>.json`` in the folder with the job's id."""

    node: str
    job_id: int
    t: float
    """Seconds since 1970, by the controller's clock."""
    reason: str
    """Why the job stopped using the node."""
    symptom: str = ""
    """What was seen first."""
    evidence: tuple[str, ...] = ()
    """Lines for the person who repairs it."""
