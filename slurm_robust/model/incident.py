"""Observations, verdicts and actions: what was seen, what it means, what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeAlias

from slurm_robust.model.classification import Classification
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.diagnosis import Diagnosis
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation


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
    NON_FINITE = "loss or gradient norm is no number"
    SPIKE = "jump of loss or gradient norm"


# -- observations: the input of the policy ---------------------------------------------------------


class NodeExit(Record):
    """The end of a worker together with the node on which it ran."""

    node: str
    exit: WorkerExit


class GenerationFailed(Record, tag_field="kind", tag="generation failed"):
    """A generation is stopped and all that could be learnt about its end is here.

    ``root`` is the exit that came first by cause, not by clock (None when no worker failed, say when
    a node went silent). ``lost`` are nodes without a sign of life, ``unable`` nodes that answer but
    could start no worker, with the reason; ``alive`` are nodes of the placement that answer. ``stuck``: those
    on which workers that got SIGKILL are still there.
    ``unreachable``: one cause of all that are lost, in words, "" where each speaks for itself.
    ``restore``: the checkpoint that the generation began with. Where no agent came, with the
    reason: ``unstarted``, although those of other nodes did; ``refused``, because Slurm starts none.
    ``ended``: of ``lost`` nodes, those whose agent ended, in Slurm's words; ``oom``: for want of memory.

    What else was found out: ``symptom``, why the generation was stopped, and ``detail`` of that; ``named``,
    nodes that the inspection wants evicted, with the reason; ``cause``, what the output of ``root`` says;
    ``localisation``, where stacks place a hang or decline; ``diagnosis``, once the nodes were tested;
    ``replayed``, once the training was replayed in small groups.
    """

    generation: int
    root: NodeExit | None = None
    exits: tuple[NodeExit, ...] = ()
    lost: tuple[str, ...] = ()
    unable: dict[str, str] = {}
    stuck: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()
    unreachable: str = ""
    restore: CheckpointId | None = None
    unstarted: dict[str, str] = {}
    refused: dict[str, str] = {}
    ended: dict[str, str] = {}
    oom: dict[str, str] = {}
    symptom: Symptom | None = None
    detail: str = ""
    named: dict[str, str] = {}
    cause: Classification | None = None
    localisation: Localisation | None = None
    diagnosis: Diagnosis | None = None
    replayed: Diagnosis | None = None


class SpareLost(Record, tag_field="kind", tag="spare lost"):
    """A node in the spare state must not be counted on any more; training is not touched by it."""

    node: str
    reason: str


class EndApproaching(Record, tag_field="kind", tag="end approaching"):
    """This run of the Slurm job ends for ``reason``; workers are stopped.

    ``warned``: Slurm says so, because the time limit or a preemption is near (``--signal=B:USR1@...``).
    """

    reason: str
    warned: bool = False


class AllRanksDone(Record, tag_field="kind", tag="all ranks done"):
    """Every rank of the generation ended by itself with code 0."""

    generation: int


Observation: TypeAlias = GenerationFailed | SpareLost | EndApproaching | AllRanksDone


# -- verdict ---------------------------------------------------------------------------------------


class Blame(str, Enum):
    """Who is held responsible."""

    NODE = "node"
    CODE = "code"
    NOBODY = "nobody"


class Place(Record):
    """Where the stacks of all ranks placed a fault: the ``ranks`` and their ``nodes``, at which ``step``.

    ``stack``: what the ranks did there, in words.
    """

    symptom: Symptom
    step: int
    ranks: tuple[int, ...]
    nodes: tuple[str, ...]
    stack: str = ""


class Verdict(Record):
    """The conclusion drawn from an observation. ``rung`` is that of the recovery ladder (design, 5).

    ``signature`` names the fault so that the same one is recognised when it comes again;
    ``allowed`` is how often it may be answered without new progress in between.
    """

    rung: int
    blame: Blame
    signature: str
    reason: str
    suspects: tuple[str, ...] = ()
    confidence: float = 1.0
    allowed: int = 1


# -- actions: the output of the policy --------------------------------------------------------------


class Evict(Record, tag_field="action", tag="evict"):
    """Use ``node`` no more in this job."""

    node: str
    reason: str


class Replace(Record, tag_field="action", tag="replace"):
    """Put ``standby`` into the slot of ``node``, which stands by itself from now on unless it is evicted."""

    node: str
    standby: str


class Swap(Record, tag_field="action", tag="swap"):
    """Have ``first`` and ``second`` exchange their slots."""

    first: str
    second: str


class StartAgents(Record, tag_field="action", tag="start agents"):
    """Start agents again on ``nodes``; theirs are gone though nothing speaks against the nodes."""

    nodes: tuple[str, ...]


class Restart(Record, tag_field="action", tag="restart"):
    """Launch the next generation from the newest complete checkpoint."""


class Requeue(Record, tag_field="action", tag="requeue"):
    """Give the allocation back and let the same job start again without the nodes ``exclude``."""

    exclude: tuple[str, ...]
    reason: str


class RollBack(Record, tag_field="action", tag="roll back"):
    """Go back to the ``release`` before, then restart."""

    release: str


class Replay(Record, tag_field="action", tag="replay"):
    """Replay the training in small groups of the held nodes, then decide again."""

    reason: str


class Diagnose(Record, tag_field="action", tag="diagnose"):
    """Test the held nodes, then decide again. ``bitwise``: also with the reference model."""

    reason: str
    bitwise: bool = False


class GiveUp(Record, tag_field="action", tag="give up"):
    """Stop for good with exit code ``code`` and the evidence."""

    code: int
    reason: str


class Finish(Record, tag_field="action", tag="finish"):
    """Training has ended by itself; the job ends with ``code``."""

    code: int


Action: TypeAlias = (
    Evict | Replace | Swap | StartAgents | Restart | RollBack | Diagnose | Replay | Requeue | GiveUp | Finish
)


def finds_out_more(actions: Sequence[Action]) -> bool:
    """Whether these actions only ask for more evidence, so that another decision follows."""
    return any(isinstance(action, Diagnose | Replay) for action in actions)


class Decision(Record):
    """What to do, and why, in words for the journal and the person on call."""

    actions: tuple[Action, ...]
    reason: str
    verdict: Verdict | None = None
    place: Place | None = None
