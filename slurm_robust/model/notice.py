"""What people are told of a job, and how far that has come."""

from __future__ import annotations

from enum import Enum

import msgspec

from slurm_robust.model.record import Record


class NoticeKind(str, Enum):
    """What a notice is about."""

    INCIDENT = "incident"
    """An incident began, or it was decided what to do about it."""

    RECOVERY = "recovery"
    """An incident is over."""

    STANDBY = "standby"
    """There are fewer standbys than the job asked for, or all of them again."""

    TAKEOVER = "takeover"
    """The controller goes on on another node."""

    UPDATE = "update"
    """An update of the code was requested, applied, refused or rolled back, or its release is good."""

    DRILL = "drill"
    """The owner has a fault planted."""

    REQUEUE = "requeue"
    """The job is requeued, or begins its next run."""

    GIVE_UP = "give_up"
    """The job is given up: starting the same again cannot help."""

    END = "end"
    """The run is over."""


class Severity(str, Enum):
    """How urgent a notice is."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """The higher, the more urgent."""
        return list(Severity).index(self)


class Notice(Record):
    """One thing to tell. Every text is one line that a terminal may get."""

    key: str
    """Names it; what has the same key is told once in the life of the job."""
    t: float
    """When it happened, in seconds since 1970."""
    kind: NoticeKind
    severity: Severity
    text: str
    """What happened."""
    short: str = ""
    """The same for the subject of a message; "" if that is ``text``."""
    nodes: tuple[str, ...] = ()
    """The place."""
    action: str = ""
    """What the controller does about it; "" for nothing."""
    command: str = ""
    """What to type next to find out more."""
    incident: int = 0
    """Its number; 0 without one."""


class ChannelState(Record):
    """How far one channel is."""

    told: tuple[str, ...] = ()
    """Keys of what needs no telling any more: it was told, left out, or is not for this channel."""
    waiting: tuple[Notice, ...] = ()
    """What is still to be told."""
    left_out: int = 0
    """How many the next message says were left out."""
    sent: tuple[float, ...] = ()
    """When messages of the last hour were sent, maybe in vain, in seconds since 1970.
    """
    sending: float | None = None
    """When a message was begun, in seconds since 1970: written down before the channel gets it. None: none is
    on its way.
    """
    again: bool = False
    """A part of what waits may have arrived."""
    trouble: str = ""
    """Why the last try failed; "" after a message that arrived."""
    given_up_until: float | None = None
    """The channel is left alone until then, in seconds since 1970; None while it is used."""


class Notified(Record):
    """``notified.json`` in the job directory: what was told of the journal, channel by channel."""

    run_id: str
    offset: int = 0
    """Bytes of the journal whose events were told or wait here."""
    channels: dict[str, ChannelState] = {}
    """By name."""

    def given_up(self, now: float) -> dict[str, str]:
        """Return the channels that are left alone at ``now`` (seconds since 1970), with the reason."""
        return {
            name: channel.trouble
            for name, channel in self.channels.items()
            if channel.given_up_until is not None and channel.given_up_until > now
        }


# Made while there is one thread; see Record.
NOTIFIED: msgspec.json.Decoder[Notified] = msgspec.json.Decoder(Notified)
