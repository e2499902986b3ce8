"""Faults, verdicts and actions: what was seen, what it means, what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeAlias

from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.findings import Outcome
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation


class Cause(str, Enum):
    """To whom or what a log points."""

    INFRASTRUCTURE = "infrastructure"
    USER_CODE = "user_code"
    USER_CONFIG = "user_config"
    TRANSIENT = "transient"
    SECONDARY = "secondary"
    """Another rank or node failed before; this one only lost it."""

    NONE = "none"
    """Nothing is wrong."""

    UNKNOWN = "unknown"
    """The cause is unknown: no rule knows the log, or it does not tell whose fault it is."""


class Remedy(str, Enum):
    """What a log asks for."""

    RESTART = "restart"
    EVICT = "evict"
    ROLLBACK_OR_FIX = "rollback_or_fix"
    RECONFIGURE = "reconfigure"
    NONE = "none"


class Classification(Record):
    """The verdict on one log."""

    symptom: str
    """The main one of ``symptoms``."""
    blame: Cause
    action: Remedy
    symptoms: tuple[str, ...] = ()
    line: str = ""
    """The line that decided, as it stands in the log."""
    rule: str = ""
    """Name of the rule that matched it, "" when none did."""
    place: str = ""
    """Module and line of a Python traceback (``train.py:12``), "" without one."""
    suspects: tuple[str, ...] = ()
    """Ranks ("rank 5") and hosts that failed first by what the lines say, not the rank that prints them."""


class TestResult(Record):
    """One test on one node."""

    test: str
    node: str
    outcome: Outcome
    text: str = ""
    """Says briefly what is wrong."""
    peers: tuple[str, ...] = ()
    """The nodes that took part."""
    value: str = ""
    """Measured."""
    limit: str = ""
    """Allowed."""
    digest: str = ""
    """What must be equal on all nodes, for tests whose result is compared."""
    rate: float = 0.0
    """What must not be far below that of others, in GB/s; 0 for none."""
    kind: str = ""
    """The models of processors and the version of PyTorch: digests and rates of one kind are compared."""
    took_s: float = 0.0


class Diagnosis(Record):
    """What tests of nodes, or a replay, have shown."""

    results: tuple[TestResult, ...] = ()
    suspects: tuple[str, ...] = ()
    """Nodes that failed by themselves, not only together with another one."""
    reason: str = ""
    """The reason, for people."""
    left_out: dict[str, str] = {}
    """Tests that could not run, with the reason."""


class Symptom(str, Enum):
    """What was seen first when training stopped being productive."""

    WORKER_EXIT = "worker exit"
    USER_EXCEPTION = "user exception"
    NODE_LOST = "node lost"
    UNREACHABLE = "nodes unreachable"
    LAUNCH_FAILED = "launch failed"
    AGENTS_LOST = "agent lost"
    NODE_FAULT = "node fault"
    NETWORK = "network alert"
    HANG = "hang"
    SLOW = "slow"
    NON_FINITE = "non-finite loss or gradient norm"
    SPIKE = "jump of loss or gradient norm"


# -- the fault: the input of the policy ------------------------------------------------------------


class NodeExit(Record):
    """The end of a worker together with the node on which it ran."""

    node: str
    exit: WorkerExit


class Fault(Record):
    """Why training is not productive any more: one record from the first sign to the decision.

    Detection makes it; stack samples, the end of the generation, tests and a replay add what they found.
    """

    # -- as detected
    symptom: Symptom | None = None
    """What was seen first; None if the generation ended before anything was detected."""
    detail: str = ""
    """What was seen, in one short sentence."""
    why: str = ""
    """Why that is a fault, such as the limit and where it comes from; "" if ``detail`` says all."""
    detect_s: float = 0.0
    """Seconds from the fault as seen from outside until it was detected."""
    times: int = 1
    """How often it was detected while training went on."""
    named: dict[str, str] = {}
    """Nodes that the observation names by itself, with the reason."""
    low_confidence: bool = False
    """Stop training only if the stacks name a straggler."""
    ranks: tuple[int, ...] = ()
    """The ranks whose loss or gradient norm is wrong."""
    good_step: int | None = None
    """Checkpoints of this generation count up to this step only (-1: none); None: all do."""

    # -- as localised
    localisation: Localisation | None = None
    """The place of the fault by the stacks of all ranks."""

    # -- as the generation ended
    generation: int = 0
    root: NodeExit | None = None
    """The exit that came first by cause, not by clock; None when no worker failed."""
    exits: tuple[NodeExit, ...] = ()
    cause: Classification | None = None
    """What the output of ``root`` says."""
    blames_peer: bool = False
    """``root`` failed because another rank, or the network to it, had gone: who failed first is not known."""
    lost: tuple[str, ...] = ()
    """Nodes without a sign of life."""
    unreachable: str = ""
    """One cause of all that are lost; "" if each speaks for itself."""
    ended: dict[str, str] = {}
    """The nodes of ``lost`` whose agent ended, with Slurm's message."""
    step_ended: dict[str, str] = {}
    """The nodes of ``lost``, and standbys, whose agent ended with its whole step, with what says so."""
    oom: dict[str, str] = {}
    """The nodes of ``lost`` whose agent ended for want of memory, with Slurm's message."""
    alive: tuple[str, ...] = ()
    """Nodes of the placement that answer."""
    unable: dict[str, str] = {}
    """Nodes that answer but could start no worker, with the reason."""
    unstarted: dict[str, str] = {}
    """Nodes on which no agent came although agents of other nodes did, with the reason."""
    refused: dict[str, str] = {}
    """Nodes on which no agent came because Slurm starts none, with the reason."""
    stuck: tuple[str, ...] = ()
    """Nodes on which workers that got SIGKILL are still there."""
    restore: CheckpointId | None = None
    """The checkpoint that the generation began with."""
    all_restored: bool = False
    """``restore()`` had returned on every rank."""

    # -- as tested
    diagnosis: Diagnosis | None = None
    """Results, once the nodes were tested."""
    replayed: Diagnosis | None = None
    """Results, once training steps were replayed in small groups."""

    # -- once companions were asked for
    not_lent: tuple[str, ...] | None = None
    """Why some of them lend no node; None before that."""
    asked: tuple[CompanionPool, ...] = ()
    """The places that were asked for nodes."""

    # -- once nodes were tested that were, or would be, evicted without proof
    cleared: tuple[str, ...] | None = None
    """Nodes that passed; None before that."""


# -- verdict ---------------------------------------------------------------------------------------


class Blame(str, Enum):
    """What is held responsible."""

    NODE = "node"
    CODE = "code"
    NOBODY = "nobody"


class FaultKind(str, Enum):
    """What kind of fault it is, so that the same one is recognised when it comes again."""

    NODE = "node"
    DISK_FULL = "full disk of node"
    UNREACHABLE = "nodes unreachable"
    AGENTS_LOST = "agents lost"
    AGENT_ENDED = "agent ended on"
    AGENTS_REFUSED = "agents not started"
    NO_WORKER_STARTS = "no worker can be started"
    RESTORE = "restore failed:"
    OUT_OF_MEMORY = "out of memory"
    PORT_TAKEN = "MASTER_PORT taken"
    """It counts as no attempt of the job: another job was faster."""

    GPU_NOT_FREE = "GPU memory not free yet"
    SLOW_TO_DIE = "workers slow to die"
    EXCEPTION = "exception"
    """Keyed by its type and place."""

    EXIT = "exit"
    """Keyed by the exit code or signal."""

    RANKS = "ranks"
    """Stacks place it; keyed by the symptom and the ranks."""

    SYMPTOM = "symptom"
    """Nothing but the symptom is known, which is the key."""

    RELEASE = "release"
    """A new release of the job's code; keyed by its name."""

    SILENT_END = "silent end"
    REPLAYED = "replayed"


_KEY_SAYS_IT = (FaultKind.EXCEPTION, FaultKind.EXIT, FaultKind.RANKS, FaultKind.SYMPTOM)


class Signature(Record):
    """Names a fault."""

    kind: FaultKind
    key: str = ""
    """Which of its kind: nodes, a checkpoint, a place in code …"""

    @classmethod
    def of_nodes(cls, kind: FaultKind, nodes: Iterable[str]) -> Signature:
        """Key by ``nodes``, in whatever order they come."""
        return cls(kind=kind, key=",".join(sorted(nodes)))

    def __str__(self) -> str:
        return self.key if self.kind in _KEY_SAYS_IT else f"{self.kind.value} {self.key}".strip()


class StackLocation(Record):
    """The place of a fault, by the stacks of all ranks or by the rank that crashed."""

    symptom: Symptom
    step: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    """The nodes of these ranks."""
    stack: str = ""
    """What the ranks did there."""
    silent: bool = False
    """They are named since nothing was heard of them (:attr:`.Localisation.silent`)."""
    t: float = 0.0
    """When the incident began, by the wall clock; 0 if that is not known."""


class Verdict(Record):
    """The conclusion drawn from a fault."""

    rung: int
    """The rung of the recovery ladder (design, section 5)."""
    blame: Blame
    signature: Signature
    """Names the fault, so that the same one is recognised when it comes again."""
    reason: str
    suspects: tuple[str, ...] = ()
    confidence: float = 1.0
    allowed: int = 1
    """How often it may be answered without new progress in between."""
    unproven: bool = False
    """Suspicion alone speaks against the suspects: one that passes a quick test may be used."""


# -- actions: the output of the policy --------------------------------------------------------------


class Evict(Record, tag_field="action", tag="evict"):
    """Use ``node`` no more in this job."""

    node: str


class Replace(Record, tag_field="action", tag="replace"):
    """Put ``standby`` into the slot of ``node``, which stands by itself from now on unless it is evicted."""

    node: str
    standby: str


class Swap(Record, tag_field="action", tag="swap"):
    """Have ``first`` and ``second`` exchange their slots."""

    first: str
    second: str


class RestartAgents(Record, tag_field="action", tag="start agents"):
    """Start agents again on ``nodes``; theirs are gone though nothing speaks against the nodes."""

    nodes: tuple[str, ...]


class Restart(Record, tag_field="action", tag="restart"):
    """Launch the next generation from the newest complete checkpoint."""


class Requeue(Record, tag_field="action", tag="requeue"):
    """Give the allocation back and let the same job start again without the nodes ``exclude``."""

    exclude: tuple[str, ...]
    reason: str


class Borrow(Record, tag_field="action", tag="borrow"):
    """Get ``nodes`` nodes from outside the allocation, by companions, then decide again."""

    nodes: int
    reason: str
    sources: tuple[CompanionPool, ...] = ()
    """The places that are asked for them, in this order."""
    some: bool = False
    """Fewer are of use, too: others may come from elsewhere."""
    near: tuple[str, ...] = ()
    """The nodes whose NVLink cliques they must be of."""


class QuickTest(Record, tag_field="action", tag="quick test"):
    """Test ``nodes``, against which only suspicion speaks, then decide again with the nodes that pass."""

    nodes: tuple[str, ...]
    reason: str


class Replay(Record, tag_field="action", tag="replay"):
    """Replay training steps in small groups of the held nodes, then decide again."""

    reason: str


class Diagnose(Record, tag_field="action", tag="diagnose"):
    """Test the held nodes, then decide again."""

    reason: str
    bitwise: bool = False
    """Also with the reference model."""


class RollBack(Record, tag_field="action", tag="roll back"):
    """Mark ``release`` as bad and go back to ``to``, at the step at which that was replaced (rung 7)."""

    release: str
    to: str
    step: int
    """That step, -1 for the beginning."""


class GiveUp(Record, tag_field="action", tag="give up"):
    """Stop with exit code ``code`` and the evidence."""

    code: int
    reason: str

    @property
    def is_for_good(self) -> bool:
        """Whether the job cannot go on: with 78 it can, with other sizes."""
        return self.code != ExitCode.CONFIG


Action: TypeAlias = (
    Evict
    | Replace
    | Swap
    | RestartAgents
    | Restart
    | Diagnose
    | Replay
    | QuickTest
    | Borrow
    | Requeue
    | RollBack
    | GiveUp
)


def finds_out_more(actions: Sequence[Action]) -> bool:
    """Return whether these actions only ask for more evidence, so that another decision follows."""
    return any(isinstance(action, Diagnose | Replay) for action in actions)


def is_final(actions: Sequence[Action]) -> bool:
    """Return whether no other decision on the same fault follows."""
    return not any(isinstance(action, Diagnose | Replay | QuickTest | Borrow) for action in actions)
