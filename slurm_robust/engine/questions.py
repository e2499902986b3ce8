"""Questions to the world outside: Slurm, storage, tests, kernels, companions. Records only.

A question is one declaration: what is asked (its fields), what the answer is (``Question[Answer]``), and by
when it has to be there (``within_s``). A unit or stage asks by
:meth:`~slurm_robust.engine.context.Context.ask`. The loop looks up one function that answers it, runs that
beside the loop, and brings what it returns back to :meth:`~slurm_robust.engine.core.Core.on_answer`. What
goes wrong on the way is an answer, too: :class:`NoAnswer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Generic, TypeAlias, TypeVar

from slurm_robust.engine.clock import Now
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.exits import Witness
from slurm_robust.model.findings import Alert, Suspect
from slurm_robust.model.incident import Diagnosis
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.probes import Answers, PortsProbed, ProbeTarget
from slurm_robust.model.record import Record
from slurm_robust.model.release import Release
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.policy.leaving import Sentence

A = TypeVar("A")


class Question(Record, Generic[A]):
    """Something that is asked, or asked for; the answer is an ``A``, None if it only has to be done."""

    within_s: ClassVar[float] = 60.0
    """An answer that takes longer is :class:`NoAnswer`, though it is still heard when it comes."""
    again_s: ClassVar[float | None] = None
    """If there is no answer, the question is repeated after this long; None: only once."""

    @property
    def what(self) -> str:
        """Return the question in words, for people: ``start agents``."""
        return "".join(f" {c.lower()}" if c.isupper() else c for c in type(self).__name__).strip()


class NoAnswer(Record):
    """There is no answer, for this reason, which says nothing about what was asked."""

    reason: str
    fix: str = ""
    """What the reader of the reason can do."""
    late: bool = False
    """It did not come within the time; it may yet come."""
    is_error: bool = False
    """The function that answers has raised an unexpected error."""


class StageOver(Record):
    """A stage of what was asked for is over; an answer follows."""

    what: str
    ok: bool
    detail: str


class NoMoreAnswers(Record):
    """All answers have been told."""


@dataclass
class PendingAnswer(Generic[A]):
    """A question that was asked."""

    question: Question[A]
    within_s: float
    """Its bound."""
    due: float
    """Monotonic time after which an answer is late."""
    then: Callable[[A | NoAnswer, Now], None] | None = None
    """Hears each answer, and the time of it."""
    is_heard: bool = False
    """The asker was told something."""

    def hear(self, answer: A | NoAnswer, now: Now) -> None:
        """Take an answer in."""
        self.is_heard = True
        if self.then is not None:
            self.then(answer, now)


# -- answers ---------------------------------------------------------------------------------------


class RequeueStatus(str, Enum):
    """What became of a requeue, or of a node that was to be taken out of the allocation."""

    TAKEN = "taken"  # the job is requeued; TERM comes, and what is left takes a moment
    DONE = "done"  # and a watcher finishes the rest; or the node is no longer the job's
    REFUSED = "refused"  # for good
    NOTHING = "nothing"  # Slurm gave no answer


class SlurmAnswer(Record):
    """What Slurm says to :class:`BeginRequeue` and :class:`GiveBack`."""

    said: RequeueStatus
    detail: str = ""
    """Its message, or who has to release the job."""


class BorrowAnswer(Record):
    """What came of :class:`BorrowNodes`."""

    nodes: dict[int, str] = {}
    """By the companion that lends it."""
    refusals: tuple[tuple[CompanionPool, str], ...] = ()
    """Why others do not."""


class SubmittedCompanion(Record):
    """A companion was submitted for :class:`BorrowNodes`."""

    job_id: int
    source: CompanionPool


class StraysCancelled(Record):
    """Companions whose submission had no answer were cancelled."""

    jobs: tuple[int, ...]


Borrowed: TypeAlias = SubmittedCompanion | BorrowAnswer | StraysCancelled

# -- questions -------------------------------------------------------------------------------------


class FindSwitches(Question[Mapping[str, str]]):
    """Ask Slurm behind which leaf switch each node is."""

    again_s: ClassVar[float | None] = 60.0


class FindKillWait(Question[float | None]):
    """Ask Slurm how long it waits from SIGTERM to SIGKILL; None if it does not say."""

    again_s: ClassVar[float | None] = 60.0


class StartAgents(Question[Mapping[str, str]]):
    """Start agents on ``nodes`` by steps of the job; told which nodes' step could not be started, and why."""

    within_s: ClassVar[float] = 300.0
    nodes: tuple[str, ...]
    apart: tuple[str, ...] = ()
    """The nodes among them that get steps of their own, since they may end the step of others."""
    image: str = ""
    """Container image of the release for which they are, "" for that of the job's configuration."""


class ProbePorts(Question[PortsProbed]):
    """See which of ``places`` take a connection, and which refuse it."""

    within_s: ClassVar[float] = 30.0
    places: dict[str, tuple[str, int]]
    """Address and port by node."""


class ProbeKernels(Question[Answers]):
    """Probe the kernels at ``places`` for ``for_s`` seconds.

    ``each_kind``: see which kinds of probes are answered.
    """

    within_s: ClassVar[float] = 60.0
    places: dict[str, ProbeTarget]
    for_s: float
    each_kind: bool = False


class AskAboutNodes(Question[tuple[Witness, ...]]):
    """Ask Slurm how ``nodes`` are."""

    within_s: ClassVar[float] = 60.0
    nodes: tuple[str, ...]


class AskAboutRun(Question[Sentence | None]):
    """Ask Slurm whether and when it ends this run."""

    within_s: ClassVar[float] = 60.0


class AskForDrains(Question[Mapping[str, str]]):
    """Ask Slurm which of ``nodes`` are drained: each with who did it and why."""

    within_s: ClassVar[float] = 60.0
    nodes: tuple[str, ...]


class FindCheckpoint(Question[dict[CheckpointId, Tier]]):
    """List all complete checkpoints on storage."""

    within_s: ClassVar[float] = 600.0


class ReadRelease(Question[Release]):
    """Read what release ``name`` of the job is."""

    within_s: ClassVar[float] = 30.0
    name: str


class Prune(Question[None]):
    """Remove old checkpoints."""

    within_s: ClassVar[float] = 3600.0
    sealed: dict[int, int]
    """The newest step that counts of each ended generation."""
    generation: int
    """The newest."""
    needed: tuple[CheckpointId, ...] = ()
    """These stay, too …"""
    until: int = -1
    """… and the newest of those that count up to this step."""


class BeginRequeue(Question[SlurmAnswer]):
    """Ask Slurm to requeue the job without ``exclude``. May be repeated."""

    within_s: ClassVar[float] = 600.0
    exclude: tuple[str, ...]
    """The weakest come first: they are given up first if too few other nodes are left."""
    holders: tuple[str, ...] = ()
    """Nodes that alone have parts of the newest step, to be asked for by name for a while."""
    pins: tuple[str, ...] = ()
    """Nodes that were asked for by name, by this requeue or an earlier one."""
    silent: tuple[str, ...] = ()
    """Nodes that do not answer: Slurm would wait for them until it gives them up."""


class ShrinkJob(Question[None]):
    """Take ``nodes`` that are dead out of the allocation, for which a requeue would wait."""

    within_s: ClassVar[float] = 300.0
    nodes: tuple[str, ...]


class GiveBack(Question[SlurmAnswer]):
    """Take ``node`` out of the allocation. May be repeated."""

    within_s: ClassVar[float] = 180.0
    node: str


class LetGo(Question[None]):
    """Have the end of ``node``, which is dead, end no agent elsewhere when it comes back."""

    within_s: ClassVar[float] = 60.0
    node: str


class SaveEvidence(Question[None]):
    """Write the folder of evidence of incident ``number``."""

    within_s: ClassVar[float] = 600.0
    number: int


class SaveStacks(Question[None]):
    """Put the stacks of all ranks, and what they say, into the folder of incident ``number``."""

    within_s: ClassVar[float] = 600.0
    number: int
    stacks: tuple[RankStacks, ...]
    localisation: Localisation


class SaveAlerts(Question[None]):
    """Put what the inspection of the nodes has seen into the folder of incident ``number``."""

    within_s: ClassVar[float] = 600.0
    number: int
    alerts: dict[str, tuple[Alert, ...]]
    t: float


class TestNodes(Question[Diagnosis]):
    """Test ``nodes``."""

    within_s: ClassVar[float] = 3600.0
    nodes: tuple[str, ...]
    budget_s: float
    bitwise: bool = False
    quick: bool = False
    """Only by the quick test."""
    standby: int = 0
    """The number by which :class:`EndStandbyTest` ends the quick test of a standby, 0 for other nodes."""


class EndStandbyTest(Question[None]):
    """End the quick test ``number`` on a standby, since the node is needed; its answer does not count."""

    within_s: ClassVar[float] = 60.0
    number: int


class ReplayTraining(Question[Diagnosis]):
    """Have ``nodes`` replay the training steps of ``layout`` with the code of ``release``."""

    within_s: ClassVar[float] = 7200.0
    nodes: tuple[str, ...]
    layout: ParallelLayout
    release: str = ""


class BorrowNodes(Question[Borrowed]):
    """Get ``missing`` nodes by companions, none of ``exclude``; told of each that is submitted, too."""

    within_s: ClassVar[float] = 3600.0
    sources: tuple[CompanionPool, ...]
    missing: int
    exclude: tuple[str, ...]
    some: bool = False
    """Fewer are of use, too."""
    near: tuple[str, ...] = ()
    """Nodes whose NVLink cliques the first ones must be of."""


class EndCompanions(Question[str]):
    """Cancel the companions ``jobs``; told why one could not be."""

    within_s: ClassVar[float] = 1800.0
    jobs: tuple[int, ...]


class SweepCompanions(Question[tuple[int, ...]]):
    """Cancel all companions of this job but ``known``; the answer has those."""

    within_s: ClassVar[float] = 1800.0
    known: tuple[int, ...]


class SaveSuspect(Question[None]):
    """Leave word for the administrator's side about a node that is given up."""

    within_s: ClassVar[float] = 600.0
    suspect: Suspect
