"""The messages between controller and agents. MessagePack, tagged by ``kind``.

The protocol is built on state, not on events: every :class:`Heartbeat` carries all that the agent knows
(a :class:`Pulse` says that nothing of it has changed), so a lost message, a restarted controller or a
late agent costs nothing but time. Orders carry the controller's epoch; an agent obeys only the highest
epoch it has seen and ignores the rest. Orders are idempotent: the controller repeats one until a heartbeat
shows that it was carried out.
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar, Generic, TypeAlias, TypeVar, get_args

import msgspec

from slurm_robust.model.copies import CheckpointId, Copy, Peer, RestoreSource
from slurm_robust.model.drill import DrillPromise
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.findings import Alert
from slurm_robust.model.probes import ProbeTarget
from slurm_robust.model.progress import Progress as Progress
from slurm_robust.model.progress import SnapshotTimes, Traffic
from slurm_robust.model.record import UNREADABLE, Record, decoded
from slurm_robust.model.release import Requester, When
from slurm_robust.model.stacks import RankStacks
from slurm_robust.model.standby import Rehearsal
from slurm_robust.util.text import one_line

T = TypeVar("T")
A = TypeVar("A", bound="AgentAnswer")


class Phase(str, Enum):
    """What the workers of an agent are doing."""

    IDLE = "idle"  # no worker of any generation is alive or waiting to be started
    FREEING = "freeing"  # a launch order was taken; ended workers still hold memory of the GPUs
    STARTING = "starting"  # a launch order was taken; the zygote is not ready yet or forks now
    RUNNING = "running"  # at least one worker of the generation is alive
    STOPPING = "stopping"  # TERM was sent, KILL follows
    ENDED = "ended"  # every worker of the generation has ended; exits are in the heartbeat


# -- agent to controller --------------------------------------------------------------------------


class Tried(Record):
    """What came of :class:`TryRelease` on a node."""

    number: int
    ok: bool
    text: str = ""  # why it failed, one line
    traceback: str = ""
    took_s: float = 0.0


class Heartbeat(Record, tag_field="kind", tag="heartbeat"):
    """Everything an agent knows. Sent every ``heartbeat_s`` and immediately when something changes."""

    node: str
    agent: str  # unique for each start of an agent process, to distinguish a reboot from a silence
    seq: int
    epoch: int  # the epoch this agent obeys
    phase: Phase
    generation: int = 0  # of the workers described, 0 for none
    address: str = ""  # address under which other nodes reach this one
    rendezvous_port: int = 0  # TCP port that the agent holds bound for the next launch
    ready: bool = False  # the zygote has imported everything (always True in exec mode)
    progress: tuple[Progress, ...] = ()
    exits: tuple[WorkerExit, ...] = ()
    spent: dict[str, float] = {}  # seconds in finished phases and checkpoints
    timings: dict[str, float] = {}  # seconds of the start phases that are over (model/startup.py)
    notes: tuple[str, ...] = ()  # facts for the journal: resources missing, what could not be done
    data_port: int = 0  # TCP port at which other agents reach this one's copies, 0 for none
    data_address: str = ""  # address for that port, if it is not ``address``
    copies: tuple[Copy, ...] = ()  # whole copies that this node holds, in memory and on its disk
    lag_s: float = 0.0  # from a snapshot's completion until its peer had it, slowest of the last ones
    flushed: int = -1  # newest step of this generation that this node has put on storage for Flush
    saved: CheckpointId | None = None  # checkpoint of the newest Save that was carried out
    alerts: tuple[Alert, ...] = ()  # what the inspection of the node has seen during this generation
    traffic: Traffic | None = None  # of the links between nodes; None if there are none, or nothing came
    probe_port: int = 0  # TCP port on which this node's kernel refuses every connection, 0 for none
    still_s: float | None = None  # since killed workers that are still there last got further, if it is known
    fatal: str = ""  # why this agent can start no worker at all (say, a preload that cannot be imported)
    rehearsal: Rehearsal | None = None  # the newest on this node
    learned: tuple[str, ...] = ()  # modules that rank 0 has imported; until an Ack
    loaded: int = 0  # the newest Load that is over, whatever came of it
    termed: bool = False  # Slurm has told this agent to end (SIGTERM)
    warned: bool = False  # Slurm has warned this agent of the end of the run (USR1: --signal without B:)
    unsaved: str = ""  # why the newest Save could not be carried out, if it could not
    unflushed: str = ""  # why a checkpoint of the generation did not get onto storage: step N: …
    saved_ranks: tuple[int, ...] = ()  # whose parts of ``saved`` that Save has put on storage
    save_begun: float = 0.0  # ``begun`` of the Save that saved and unsaved answer
    protocol: int = 0  # that the agent speaks (wire/protocol.py)
    clique: str = ""  # NVLink clique of all of the node's GPUs; "" for none, or not known (yet)
    block: str = ""  # Slurm's block that the node is in (topology/block), "" for none
    imex: str = ""  # state of the node's IMEX daemon (READY); "" if none runs, or not known (yet)
    stride: int = 0  # as the workers know it, 0 if that is not known: see Pace
    local_stride: int = 0
    snapshots: SnapshotTimes | None = None  # the worst of the ranks; None if it is not known (yet)
    release: str = ""  # that the workers described run, "" for none
    image: str = ""  # container image of a release that the agent runs in, "" for that of the configuration
    tried: Tried | None = None  # the answer to the newest TryRelease
    outside: tuple[
        str, ...
    ] = ()  # code that rank 0 has read from its place and not from the release; until an Ack
    told: tuple[str, ...] = ()  # notes for the job's log, too; until an Ack
    undrilled: dict[int, str] = {}  # drills that could not be done here, each with the reason; until an Ack
    unkept: str = ""  # why some rank keeps no snapshots in this node's memory, if there is no room for any
    unkept_peers: str = ""  # why this node's memory takes no copies of other nodes' ranks, likewise


class Pulse(Record, tag_field="kind", tag="pulse"):
    """All that the agent knows is as in its heartbeat ``base``, and as much older as that is by now.

    Sent in place of a heartbeat which the controller has answered; it answers only if it still holds that
    one, and without an answer the agent sends the next heartbeat.
    """

    node: str
    agent: str
    seq: int
    base: int


class AgentAnswer(Record):
    """What the agent on ``node`` answers to question ``number``."""

    node: str
    number: int


class StacksTaken(AgentAnswer, tag_field="kind", tag="stacks"):
    """What the workers of ``generation`` on the node do."""

    generation: int
    stacks: tuple[RankStacks, ...] = ()


class NodesProbed(AgentAnswer, tag_field="kind", tag="nodes_probed"):
    """What the probes of other nodes have brought."""

    answering: tuple[str, ...]  # nodes whose kernels have answered
    asked: tuple[str, ...]  # nodes to which a probe was sent


# -- controller to agent --------------------------------------------------------------------------


class Ack(Record, tag_field="kind", tag="ack"):
    """Answer to a heartbeat, so that an agent knows that its controller lives."""

    epoch: int
    seq: int  # the heartbeat's; notes of heartbeats up to it are in the journal and need no repetition
    protocol: int = 0  # that the controller speaks (wire/protocol.py)


class Launch(Record, tag_field="kind", tag="launch"):
    """Start the workers of ``generation`` on this node."""

    epoch: int
    generation: int
    ranks: tuple[int, ...]  # global, in local order
    world_size: int
    slot: int
    slots: int
    master_addr: str
    master_port: int
    restore: CheckpointId | None = None  # None: a fresh start
    restart_count: int = 0  # generations before this one, for TORCHELASTIC_RESTART_COUNT
    layout: str = ""  # identity of the parallel layout, stamped on every copy
    restore_layout: str = ""  # that of ``restore`` if it is another one, so that it is resharded
    sources: tuple[
        RestoreSource, ...
    ] = ()  # the places of the parts of ``restore`` for this node; none: on storage
    peers: tuple[Peer, ...] = ()  # receivers of copies of this node's ranks
    stride: int = 1  # steps that are multiples of it are copied to peers
    announce_step: int = 0  # the agent sends a heartbeat immediately when a rank has completed this step
    local_stride: int = 1  # snapshots are taken of steps that are multiples of it
    release: str = ""  # what the workers run, a folder of ``releases/``; "": the command in its place
    discard_optimizer: bool = False  # the optimizer's state in ``restore`` is left out


class Stop(Record, tag_field="kind", tag="stop"):
    """End all workers of generations up to ``generation``: TERM, after ``grace_s`` seconds KILL."""

    epoch: int
    generation: int
    grace_s: float


class RequestCheckpoint(Record, tag_field="kind", tag="checkpoint"):
    """Ask the workers of ``generation`` for a checkpoint at exactly ``step``."""

    epoch: int
    generation: int
    step: int
    hold_s: float = 0.0  # ranks begin no other step after it for this long: they are about to be ended


class Pace(Record, tag_field="kind", tag="pace"):
    """Which steps of ``generation`` are kept in memory, and which of them go to peers.

    Shown by :attr:`Heartbeat.stride` and :attr:`Heartbeat.local_stride`.
    """

    epoch: int
    generation: int
    stride: int  # a power of two: its multiples go to peers
    local_stride: int = 1  # another one, which is not larger: of its multiples snapshots are taken


class Flush(Record, tag_field="kind", tag="flush"):
    """Put the snapshot of exactly ``step``, which is still to come, on disk and on storage."""

    epoch: int
    generation: int
    step: int


class Save(Record, tag_field="kind", tag="save"):
    """Put the parts of ``ranks`` of ``checkpoint`` from this node's memory on storage.

    Workers of a later generation may live; answered by :attr:`Heartbeat.saved` or :attr:`Heartbeat.unsaved`.
    """

    epoch: int
    checkpoint: CheckpointId
    ranks: tuple[int, ...]
    world_size: int
    layout: str = ""
    begun: float = 0.0  # UNIX time at which the controller began to save; an order repeated later has its own
    anew: dict[int, int] = {}  # of ``ranks`` those whose parts are lost, and from which rank's they are made


class Stay(Record, tag_field="kind", tag="stay"):
    """What an agent holds is being saved: for ``for_s`` seconds it does not end by Slurm's order alone."""

    epoch: int
    for_s: float


TRAVEL_S = 1.0
"""Seconds that a question and its answer travel, on top of the time that it takes to find the answer."""


class AgentQuestion(Record, Generic[A]):
    """What the controller asks some agents; each answers with an ``A`` of the same number.

    An agent answers a question that it gets again with the answer that it has, and does not look again.
    """

    answer: ClassVar[type[AgentAnswer]]
    again_s: ClassVar[float | None] = None
    """Agents that have not answered are asked again after this long; None: only once."""

    epoch: int
    number: int  # of no other question of any controller of the job

    @property
    def limit_s(self) -> float:
        """How long to wait for answers, in seconds."""
        raise NotImplementedError


class TakeStacks(AgentQuestion[StacksTaken], tag_field="kind", tag="take_stacks"):
    """Take the stacks of all workers of ``generation`` within ``budget_s`` seconds."""

    answer: ClassVar[type[AgentAnswer]] = StacksTaken
    again_s: ClassVar[float | None] = 1.0

    generation: int
    budget_s: float
    native: tuple[int, ...] = ()  # ranks of which to take the calls in libraries too, which pauses them

    @property
    def limit_s(self) -> float:
        """Return the time for the stacks, plus travel time."""
        return self.budget_s + TRAVEL_S


class ProbeNodes(AgentQuestion[NodesProbed], tag_field="kind", tag="probe_nodes"):
    """Probe the kernels at ``places`` (by node) for ``for_s`` seconds."""

    answer: ClassVar[type[AgentAnswer]] = NodesProbed

    places: dict[str, ProbeTarget]
    for_s: float

    @property
    def limit_s(self) -> float:
        """Return the time for the probes, plus travel time."""
        return self.for_s + TRAVEL_S


class Rehearse(Record, tag_field="kind", tag="rehearse"):
    """Run the job's script for ``steps`` steps as the first rank of the last of ``slots`` pretended nodes.

    Answered by :attr:`Heartbeat.rehearsal` with the same ``number``. A launch ends it immediately.
    """

    epoch: int
    number: int  # above that of the newest rehearsal on the node
    slots: int
    steps: int
    limit_s: float  # seconds until it is ended
    writes: tuple[str, ...] = ()  # folders in which it may change files, beside caches
    release: str = ""  # whose code it runs, "" for the command in its place
    beside: bool = (
        False  # workers may live on the node: it leaves them the GPUs, and takes only idle CPU time
    )
    checkpoint: CheckpointId | None = None  # which its model and optimizer have to fit, by their shapes
    discard_optimizer: bool = False  # the optimizer need not fit


class Load(Record, tag_field="kind", tag="load"):
    """Have later workers begin with ``modules`` imported, if they can be imported before a fork.

    Answered by :attr:`Heartbeat.loaded`; an order with a lower number than one before is void.
    """

    epoch: int
    number: int
    modules: tuple[str, ...]


class TryRelease(Record, tag_field="kind", tag="try_release"):
    """Unpack ``release`` on this node and import what it needs in a successor of the zygote.

    Answered by :attr:`Heartbeat.tried`; workers that live are not touched. An order with a lower number than
    one before is void.
    """

    epoch: int
    number: int
    release: str
    limit_s: float  # seconds until it counts as failed


class Inject(Record, tag_field="kind", tag="inject"):
    """A drill, which the job's owner has asked for: send ``signal`` to the worker with global ``rank``.

    Or do what ``fault`` says, where that is no signal to a worker. Why it could not be done is in
    :attr:`Heartbeat.undrilled`.
    """

    epoch: int
    rank: int
    signal: int
    fault: str = ""  # a DrillFault; "": only the signal
    drill: int = 0  # its number


class Shutdown(Record, tag_field="kind", tag="shutdown"):
    """Stop the workers as in :class:`Stop` and end the agent."""

    epoch: int
    grace_s: float
    keep_copies: bool = False  # the job may come back, and nothing else has what the copies hold


# -- clients of the owner, and the question whether a controller lives ----------------------------


class Ping(Record, tag_field="kind", tag="ping"):
    """Is a controller there? Answered with :class:`Pong` without any effect."""


class Pong(Record, tag_field="kind", tag="pong"):
    """A controller's answer to :class:`Ping`."""

    epoch: int
    host: str
    pid: int
    blocked: str = ""  # why it can do nothing that is asked for now


class Drill(Record, tag_field="kind", tag="drill"):
    """The owner asks for a fault."""

    fault: str  # a DrillFault
    rank: int
    by: Requester | None = None
    plan: bool = False  # only say what would come of it


class DrillReply(Record, tag_field="kind", tag="drill_reply"):
    """Answer to :class:`Drill`."""

    ok: bool
    text: str  # a line: what was done, or why not
    drill: int = 0  # its number
    node: str = ""
    promise: DrillPromise | None = None


class UpdateJob(Record, tag_field="kind", tag="update_job"):
    """The owner wants the job to run ``release``, which lies in the job's ``releases/``."""

    release: str
    when: When
    by: Requester
    deadline_s: float | None = None  # a lazy one is applied after so long at the latest; None: as configured
    message: str = ""
    changes: tuple[str, ...] = ()
    rollback: bool = False
    from_step: int = -1
    discard_optimizer: bool = False
    token: str = ""  # of this request: asked again with it, the controller gives the answer that it gave
    withdraw: bool = False  # the update that waits is given up, so ``release``, which runs, goes on
    running: str = ""  # what ran when its owner asked, if that is to run still: nothing is done if not
    updates: int = (
        -1
    )  # of how many its owner knew: nothing is done if there are others; -1: whatever there is


class UpdateReply(Record, tag_field="kind", tag="update_reply"):
    """Answer to :class:`UpdateJob`. What becomes of the update is in the journal."""

    ok: bool
    text: str  # a line: what was accepted, or why it was refused
    fix: str = ""
    update: int = 0  # its number


class ShowStacks(Record, tag_field="kind", tag="show_stacks"):
    """The owner wants to see what all ranks do; asked again until the answer is ``over``."""

    number: int = 0  # of the sample round in the answer before, 0 at first
    after: int = 0  # of how many nodes the stacks have come


class StacksShown(Record, tag_field="kind", tag="stacks_shown"):
    """The stacks of a sample round that came next."""

    number: int = 0  # of the round; if it is another than that of the question, these are its first stacks
    generation: int = 0
    nodes: tuple[str, ...] = ()  # that were asked, in the order of their slots
    stacks: tuple[StacksTaken, ...] = ()
    over: bool = False  # these were the last; the other nodes have not answered within ``limit_s``
    limit_s: float = 0.0
    error: str = ""  # why there are no stacks


class Refused(Record, tag_field="kind", tag="refused"):
    """Answer to a message of a kind that this controller does not know."""

    refused: str  # that kind
    protocol: int  # that the controller speaks


ToController: TypeAlias = (
    Heartbeat | Pulse | StacksTaken | NodesProbed | Ping | Drill | UpdateJob | ShowStacks
)
Order: TypeAlias = (
    Launch
    | Stop
    | RequestCheckpoint
    | Pace
    | Flush
    | Save
    | Stay
    | TakeStacks
    | ProbeNodes
    | Rehearse
    | Load
    | TryRelease
    | Inject
    | Shutdown
)
"""What the state machine of an agent must do."""

FromController: TypeAlias = Order | Ack | Pong | DrillReply | UpdateReply | StacksShown | Refused

_to_controller: msgspec.msgpack.Decoder[ToController] = msgspec.msgpack.Decoder(ToController)
_from_controller: msgspec.msgpack.Decoder[FromController] = msgspec.msgpack.Decoder(FromController)


class MalformedMessage(ValueError):
    """Bytes that are no message of any version of this protocol."""


class Foreign(Record):
    """A message of another version that this one cannot read; it is made by the reader and never sent."""

    kind: str
    node: str = ""  # of the agent that sent it; "" if it does not say so
    protocol: int | None = None  # of the sender, if the message says so
    why: str = ""  # the field that cannot be read; "" if the kind is unknown

    def describe(self) -> str:
        """Return a text such as ``message 'xyz' is unknown``."""
        name, why = one_line(self.kind, 40), one_line(self.why, 120)
        return f"message '{name}' cannot be read ({why})" if why else f"message '{name}' is unknown"


class _Envelope(Record):
    """What messages of all versions have."""

    kind: str
    node: str = ""
    protocol: int | None = None


_envelope = msgspec.msgpack.Decoder(_Envelope)
_KINDS = frozenset(str(message.__struct_config__.tag) for message in get_args(ToController | FromController))


def encode(message: ToController | FromController) -> bytes:
    """Encode one message."""
    return msgspec.msgpack.encode(message)


def decode_to_controller(data: bytes) -> ToController | Foreign:
    """Decode a message of an agent or client. Raises :class:`MalformedMessage`."""
    return _decode(_to_controller, data)


def decode_from_controller(data: bytes) -> FromController | Foreign:
    """Decode a message of a controller. Raises :class:`MalformedMessage`."""
    return _decode(_from_controller, data)


def _decode(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T | Foreign:
    try:
        return decoder.decode(data)
    except UNREADABLE as reason:
        envelope = decoded(_envelope, data, MalformedMessage)
        why = str(reason) if envelope.kind in _KINDS else ""
        return Foreign(kind=envelope.kind, node=envelope.node, protocol=envelope.protocol, why=why)
