"""The live status: what a controller knows of its job right now, in one file for readers.

``srobust top`` and exporters read it. It decides nothing and recovers nothing: that is the journal's. It may
be missing (an old release, ``timings.moment_s: 0``, a full disk) or old (a controller that has died); readers
go by the journal then, and say so. Ages are in seconds at :attr:`LiveStatus.t`. What is not known is None,
-1 or "".
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import msgspec
from msgspec import structs

from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.record import Record, decoded
from slurm_robust.model.totals import JobTotals
from slurm_robust.util.files import read_regular

FORMAT = 1
"""Raised when a field changes its meaning. New fields do not: older readers leave them out."""

LATE_S = 5.0
"""The live status of a running controller is hardly ever older, also on storage that caches for seconds."""

OLD_S = 10.0
"""The live status of a running controller is younger: it makes one every ``timings.moment_s``."""

MAX_BYTES = 64 << 20
"""No reader takes more; 1,200 nodes need less than 1 MB."""

MAX_ALERTS = 4
"""Alerts that are kept for one node: the newest."""


class NodeState(str, Enum):
    """What a node of the job does."""

    TRAINING = "training"
    """Its workers live."""
    STARTING = "starting"
    STOPPING = "stopping"
    """Its workers were ordered to end."""
    ENDED = "ended"
    """All its workers have ended."""
    IDLE = "idle"
    """It has a slot and an agent, and no workers yet."""
    STANDBY = "standby"
    SILENT = "silent"
    """Its agent has not been heard for ``timings.node_dead_s``."""
    DEAD = "dead"
    """Nothing on it answers."""
    ABSENT = "no agent"
    """It was not heard yet by this controller."""
    ASIDE = "set aside"
    """A standby that does not answer."""
    EVICTED = "evicted"

    @property
    def is_wrong(self) -> bool:
        """Whether it is lost to the job, for now at least."""
        return self in _WRONG


_WRONG = frozenset({NodeState.SILENT, NodeState.DEAD, NodeState.ASIDE, NodeState.EVICTED})


class LiveNode(Record):
    """One node of the job. Its step is that of the rank that was last to complete its newest step."""

    node: str
    state: NodeState
    slot: int = -1
    """-1: it has none."""
    why: str = ""
    """Why it is in this state, if that is not plain; how far a standby is."""
    heard_s: float | None = None
    """Since its agent was last heard."""
    step: int = -1
    """The newest that all its ranks have completed."""
    step_age_s: float | None = None
    """Since that step, or before the first since the launch."""
    step_s: float | None = None
    """Seconds per step lately."""
    phase: str = ""
    """What it does between steps (``checkpoint``, ``evaluation``, the script's own)."""
    failed: int = 0
    """Workers of this generation that ended with an error."""
    memory_step: int = -1
    """The newest step of which its memory has the snapshots of all its ranks."""
    peer_step: int = -1
    """The newest step of which its memory has all the copies that it keeps for other nodes."""
    local_step: int = -1
    """The newest step of which its own disk has the parts of all its ranks."""
    alerts: tuple[str, ...] = ()
    """What the inspector sees now, the newest first, :data:`MAX_ALERTS` at most."""

    @property
    def is_wrong(self) -> bool:
        """Whether a person should look at it."""
        return self.state.is_wrong or bool(self.alerts) or self.failed > 0


class LiveTier(Record):
    """What one tier holds of the whole world."""

    tier: Tier
    step: int
    """The newest that the copies of all ranks have reached."""
    generation: int
    age_s: float | None = None
    """Since it was written, if that is known."""


class LiveCompanion(Record):
    """A job of one node that lends it."""

    job_id: int
    source: str
    """The source of its node."""
    node: str = ""
    """"" while it waits."""


class LiveIncident(Record):
    """The incident that is open."""

    number: int
    symptom: str
    sign: str
    """What was seen first."""
    age_s: float
    """Since it was seen."""
    step: int
    """Newest completed step when it began."""
    reason: str = ""
    """Why it was decided what to do, in one short sentence; "" as long as nothing is."""
    actions: str = ""
    """What is done about it."""
    blame: str = ""
    """``node``, ``code``, ``nobody`` or ``drill``; "" as long as nothing is decided."""
    suspects: tuple[str, ...] = ()
    carried_out: bool = True
    """False in observe mode."""
    why: str = ""
    """Why ``sign`` is a fault; "" if it says all."""
    drill: str = ""
    """``drill 2 by alice`` if that caused it."""


class LiveRelease(Record):
    """The release that runs."""

    name: str
    state: str
    """``candidate``, ``good`` …"""
    update: int = 0
    """The update that brought a candidate, 0 for none."""
    before: str = ""
    """The good release before a candidate."""
    first_step: int = -1
    """The first step that a candidate completed, -1 before it."""


class LiveUpdate(Record):
    """The update that waits to be applied."""

    number: int
    release: str
    when: str
    """``now`` or ``lazy``."""
    by: str
    """Who asked for it, and where."""
    message: str = ""
    tried: bool = False
    """Its trial is over."""
    doing: str = ""
    """What the trial is at, "" if that is not known."""
    left_s: float | None = None
    """Until a lazy one is applied at the latest."""


class LiveStatus(Record, kw_only=True):
    """A job as its controller sees it at ``t``."""

    format: int
    t: float
    """Seconds since 1970, by the clock of the controller's node."""
    number: int = 0
    """Counts what one controller has written; 0 if it was made from the journal."""
    job_id: int
    run_id: str
    run: int
    """How often Slurm has started the job again."""
    epoch: int
    host: str
    """The node of the controller."""
    mode: str = ""
    """``act`` or ``observe``."""
    generation: int
    stage: str = ""
    """What the controller does: ``running``, ``stopping``, ``deciding`` …"""
    stage_why: str = ""
    """What brought it there, "" if that is plain."""
    stage_s: float = 0.0
    """Since it came there."""
    stage_most_s: float | None = None
    """How long it stays there at most; None without a fixed limit."""
    world: int = 0
    """Ranks."""
    ranks: int = 0
    """Those of them of which a step record is known."""
    step: int = -1
    """The newest that all ranks have completed in this generation, -1 before the first."""
    step_age_s: float | None = None
    """Since that step, or before the first since the launch."""
    step_s: float | None = None
    """Seconds per step lately."""
    usual_step_s: float | None = None
    """The median of the job."""
    hang_s: float | None = None
    """Without a step for this long, training is called a hang; None if that is never done, or not now."""
    best_step: int = -1
    """The newest of any generation, by the script's numbers."""
    reports: bool = False
    """Whether the script numbers its steps; else optimizer steps of the generation are counted."""
    loss: float | None = None
    """The loss of the rank that was last; None also if it is no number."""
    grad_norm: float | None = None
    non_finite: bool = False
    """Some rank's loss is NaN or infinite."""
    restored_step: int = -1
    """Step of the checkpoint with which the generation began, -1 for a fresh start."""
    nodes: tuple[LiveNode, ...] = ()
    """Those with slots in order, standbys, then evicted ones."""
    companions: tuple[LiveCompanion, ...] = ()
    lost_node: str = ""
    """What the loss of a node does when no standby is left (``costs a requeue``); "" if unknown."""
    opened: int = 0
    """Incidents so far."""
    closed: int = 0
    """Those of them that are over."""
    incident: LiveIncident | None = None
    release: LiveRelease | None = None
    """None for a job without releases."""
    update: LiveUpdate | None = None
    updates: int = 0
    """How many were requested so far."""
    tiers: tuple[LiveTier, ...] = ()
    """Nearest first; tiers that hold nothing whole are left out."""
    unkept: dict[str, str] = {}
    """Nodes whose memory has no room for snapshots of their own ranks, with what is there."""
    unkept_peers: dict[str, str] = {}
    """Nodes whose memory has no room for copies of other nodes, likewise."""
    kept_age_s: float | None = None
    """Since the newest step that is whole in some tier became that, while training runs."""
    kept_every_s: float | None = None
    """Seconds that training computes from one snapshot in memory to the next; None if that is not known."""
    ettr: float | None = None
    """Since the job's first start."""
    ettr_hour: float | None = None
    """ETTR of the last hour."""
    ettr_age_s: float | None = None
    """Since both were computed from the journal."""
    totals: JobTotals | None = None
    """Counted from the journal."""
    turn_s: float | None = None
    """The longest turn of the controller's loop in the last minute."""
    left_s: float | None = None
    """Until the time limit of this run."""
    ending: str = ""
    """Why the end of this run is near, or was ordered."""
    held: bool = False
    """Nothing is decided, since storage does not take the journal."""
    behind: int = 0
    """Events that are in memory only."""
    trouble: str = ""
    """Why storage does not take them."""
    missed: int = 0
    """Moments of this controller that storage did not take."""
    final: bool = False
    """The controller has ended in order; the job may be requeued."""
    code: int | None = None
    """The exit code with which the job ends for good."""


def newest_whole(tiers: Iterable[LiveTier]) -> CheckpointId | None:
    """Return the newest checkpoint that is whole in one of ``tiers``."""
    return max((CheckpointId(step=tier.step, generation=tier.generation) for tier in tiers), default=None)


class NotALiveStatus(ValueError):
    """A file that holds something else: torn, foreign, or of a newer release."""


# Made while there is one thread; see Record.
_decoder = msgspec.json.Decoder(LiveStatus)


class _Format(Record):
    format: int


_formats = msgspec.json.Decoder(_Format)


def encode(status: LiveStatus) -> bytes:
    """Encode as one JSON object in a line."""
    return msgspec.json.encode(status) + b"\n"


def decode(data: bytes) -> LiveStatus:
    """Decode what :func:`encode` gives. Raises :class:`NotALiveStatus`."""
    found = decoded(_formats, data, NotALiveStatus).format
    if found > FORMAT:
        raise NotALiveStatus(f"format {found} is of a newer release of slurm_robust; this one knows {FORMAT}")
    return decoded(_decoder, data, NotALiveStatus)


def counts(found: LiveStatus, run_id: str, epoch: int, *, ended: bool) -> str:
    """Return why this is not what the controller of a job sees now; "" if it is, as far as it is not too old.

    ``run_id``, ``epoch``, ``ended``: by the job's journal.
    """
    if run_id and found.run_id != run_id:
        return "the live status is of another job"
    if found.epoch < epoch:
        return "the newest controller has written no live status yet"
    return "the controller has ended" if found.final or ended else ""


def aged(found: LiveStatus, by_s: float) -> LiveStatus:
    """Return it with the ages of what goes on, as they are ``by_s`` seconds later.

    Not with that of the newest step: another one may have followed.
    """
    return structs.replace(
        found,
        t=found.t + by_s,
        stage_s=found.stage_s + by_s,
        incident=structs.replace(found.incident, age_s=found.incident.age_s + by_s)
        if found.incident
        else None,
    )


def read(path: Path) -> LiveStatus:
    """Read the moment of a job. Raises ``OSError``, :class:`NotALiveStatus`."""
    return decode(read_regular(path, MAX_BYTES))
