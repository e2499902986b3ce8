"""What the core asks the loop to do, and what the loop answers. Records only."""

from __future__ import annotations

from enum import Enum
from typing import TypeAlias

from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.findings import Alert, Suspect
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.probes import ProbeTarget
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.wire.messages import FromController


class Now(Record):
    """One reading of both clocks, in seconds."""

    mono: float
    """For durations."""
    wall: float
    """For people."""


class RequeueStatus(str, Enum):
    """What became of a requeue that was asked for."""

    TAKEN = "taken"  # the job is requeued; TERM comes, and what is left takes a moment
    DONE = "done"  # and a watcher finishes the rest
    REFUSED = "refused"  # for good
    NOTHING = "nothing"  # Slurm gave no answer


class RequeueAnswer(Record):
    """What Slurm says to :class:`BeginRequeue`."""

    said: RequeueStatus
    detail: str = ""
    """Its message, or who has to release the job."""


class BorrowAnswer(Record):
    """What came of :class:`BorrowNodes`."""

    nodes: dict[int, str] = {}
    """By the companion that lends it."""
    refusals: tuple[tuple[CompanionPool, str], ...] = ()
    """Why others do not."""


class GiveBackAnswer(Record):
    """What became of :class:`GiveBack`."""

    said: RequeueStatus
    """DONE: the node is no longer the job's; REFUSED: for good; NOTHING: it may be asked again."""
    detail: str = ""


# -- core to loop ----------------------------------------------------------------------------------


class Write(Record):
    """Append ``event`` to the journal (durably, before any other effect of the same list is carried out)."""

    event: AnyEvent


class Send(Record):
    """Send ``message`` to the agent of ``node``; lost without trace if it cannot be reached."""

    node: str
    """Or the id of one agent, where several speak for a node."""
    message: FromController


class StartAgents(Record):
    """Start agents on ``nodes`` by steps of the job."""

    nodes: tuple[str, ...]
    apart: tuple[str, ...] = ()
    """Of these, nodes that get steps of their own, since they may end the step of others."""


class Knock(Record):
    """See which of ``places`` take a connection, and which refuse it; answered by ``on_knock``."""

    places: dict[str, tuple[str, int]]
    """Address and port by node."""


class ProbeKernels(Record):
    """Probe the kernels at ``places`` for ``for_s`` seconds; answered by ``on_answers`` with ``number``.

    ``each_kind``: see which kinds of probes are answered.
    """

    number: int
    places: dict[str, ProbeTarget]
    for_s: float
    each_kind: bool = False


class AskAboutNodes(Record):
    """Ask Slurm how ``nodes`` are; answered by ``on_nodes``."""

    nodes: tuple[str, ...]


class AskAboutRun(Record):
    """Ask Slurm whether and when it ends this run; answered by ``on_sentence``."""


class AskForDrains(Record):
    """Ask Slurm which of ``nodes`` are drained; answered by ``on_drains``, or not at all."""

    nodes: tuple[str, ...]


class FindCheckpoint(Record):
    """List all complete checkpoints on storage; answered by ``on_checkpoints`` with ``generation``."""

    generation: int


class Prune(Record):
    """Remove old checkpoints."""

    sealed: dict[int, int]
    """The newest step that counts of each ended generation."""


class BeginRequeue(Record):
    """Ask Slurm to requeue the job without ``exclude``; answered by ``on_requeue``. May be repeated."""

    exclude: tuple[str, ...]
    """The weakest first, which are given up first where too few other nodes are left."""
    holders: tuple[str, ...] = ()
    """Nodes that alone have parts of the newest step, to be asked for by name for a while."""
    pins: tuple[str, ...] = ()
    """Nodes that were asked for by name, by this requeue or an earlier one."""
    silent: tuple[str, ...] = ()
    """Nodes that do not answer: Slurm would wait for them until it gives them up."""


class Shed(Record):
    """Take ``nodes`` that are dead out of the allocation, for which a requeue would wait."""

    nodes: tuple[str, ...]


class GiveBack(Record):
    """Take ``node`` out of the allocation; answered by ``on_given_back``. May be repeated."""

    node: str


class LetGo(Record):
    """Have the end of ``node``, which is dead, end no agent elsewhere when it comes back."""

    node: str


class SaveEvidence(Record):
    """Write the folder of evidence of incident ``number``."""

    number: int


class SaveStacks(Record):
    """Put the stacks of all ranks, and what they say, into the folder of incident ``number``."""

    number: int
    stacks: tuple[RankStacks, ...]
    localisation: Localisation


class SaveAlerts(Record):
    """Put what the inspection of the nodes has seen into the folder of incident ``number``."""

    number: int
    alerts: dict[str, tuple[Alert, ...]]
    t: float


class TestNodes(Record):
    """Test ``nodes``; answered by ``on_tests``."""

    nodes: tuple[str, ...]
    bitwise: bool
    budget_s: float
    quick: bool = False
    """Only by the quick test."""


class TestStandby(Record):
    """Run the quick test on a standby; answered by ``on_standby_tested`` with ``number``."""

    number: int
    node: str
    budget_s: float


class EndStandbyTest(Record):
    """End the quick test ``number`` on a standby, since the node is needed; its answer does not count."""

    number: int


class ReplayTraining(Record):
    """Have ``nodes`` replay the training of ``layout``; answered by ``on_tests``."""

    nodes: tuple[str, ...]
    layout: ParallelLayout


class BorrowNodes(Record):
    """Get ``missing`` nodes by companions, none of ``exclude``.

    Answered by ``on_companion`` for each that was submitted, and by ``on_lent`` with ``number``.
    """

    number: int
    sources: tuple[CompanionPool, ...]
    missing: int
    exclude: tuple[str, ...]
    some: bool = False
    """Fewer are of use, too."""


class EndCompanions(Record):
    """Cancel the companions ``jobs``."""

    jobs: tuple[int, ...]


class SweepCompanions(Record):
    """Cancel all companions of this job but ``known``."""

    known: tuple[int, ...]


class SaveSuspect(Record):
    """Leave word for the administrator's side about a node that is given up."""

    suspect: Suspect


class Say(Record):
    """A line for the job's own output."""

    text: str
    ettr: bool = False
    """With the job's ETTR, which takes the whole journal."""


class Exit(Record):
    """End the controller with ``code``."""

    code: int


Effect: TypeAlias = (
    Write
    | Send
    | StartAgents
    | AskAboutNodes
    | AskAboutRun
    | AskForDrains
    | Knock
    | ProbeKernels
    | FindCheckpoint
    | Prune
    | BeginRequeue
    | GiveBack
    | LetGo
    | Shed
    | SaveEvidence
    | SaveStacks
    | SaveAlerts
    | TestNodes
    | TestStandby
    | EndStandbyTest
    | ReplayTraining
    | BorrowNodes
    | EndCompanions
    | SweepCompanions
    | SaveSuspect
    | Say
    | Exit
)
