"""What happens to an agent, and what it then does: the two alphabets of its state machine."""

from __future__ import annotations

from typing import TypeAlias

from slurm_robust.agent.launcher import LauncherMessage
from slurm_robust.model.record import Record
from slurm_robust.model.standby import Rehearsal
from slurm_robust.wire.messages import Launch, Load, Order, Rehearse, Save, TakeStacks

# -- stimuli --------------------------------------------------------------------------------------


class OrderCame(Record):
    """The controller wants something."""

    order: Order


class EpochSeen(Record):
    """A controller with ``epoch`` exists; orders of lower epochs are void from now on."""

    epoch: int


class LauncherReported(Record):
    """News of the workers or of the launcher itself."""

    message: LauncherMessage
    oom: str = ""  # as in ``WorkerExit``, and so is ``taken``
    taken: str = ""


class TailRead(Record):
    """The last lines of a failed worker's output."""

    generation: int
    rank: int
    lines: tuple[str, ...]


class GpusReported(Record):
    """News of the memory of GPUs that ended workers may still hold."""

    held: str  # what they hold, for people; "" when nothing is left


class RehearsalOver(Record):
    """The rehearsal has ended by itself, or at one of its bounds."""

    rehearsal: Rehearsal
    pid: int  # also its process group; 0 if it never was there


class TermCame(Record):
    """Slurm ends the step."""

    grace_s: float  # seconds that workers get


class Ticked(Record):
    """Time has passed."""


Stimulus: TypeAlias = (
    OrderCame | EpochSeen | LauncherReported | TailRead | GpusReported | RehearsalOver | TermCame | Ticked
)

# -- instructions ---------------------------------------------------------------------------------


class StartLauncher(Record):
    """Start the launcher, which is not there."""


class SpawnWorkers(Record):
    """Make step records and start the workers of ``launch``."""

    launch: Launch


class Terminate(Record):
    """TERM to a worker's group."""

    pid: int


class Kill(Record):
    """KILL to a worker's group."""

    pid: int


class InjectSignal(Record):
    """A drill: ``number`` to the worker alone."""

    pid: int
    number: int


class WatchGpus(Record):
    """Report what the process groups ``workers``, which have ended, still hold of the GPUs."""

    workers: tuple[int, ...]


class SweepGroups(Record):
    """Kill what ended workers left in their groups."""


class ReadTail(Record):
    """Read the last lines of a worker's output; TailRead follows, unless the storage hangs."""

    generation: int
    rank: int


class AskCheckpoint(Record):
    """Put the request for a checkpoint at ``step`` into the step records."""

    step: int


class SetStride(Record):
    """Steps that are multiples of ``stride`` go to peers from now on."""

    stride: int


class AskFlush(Record):
    """Have the snapshot of ``step`` kept when it comes, and put on disk and storage."""

    step: int


class SaveCopies(Record):
    """Put copies in memory on storage as ``order`` says."""

    order: Save


class SampleStacks(Record):
    """Take the stacks of ``workers`` (rank to pid) as ``order`` says, and send them."""

    order: TakeStacks
    workers: dict[int, int]


class StartRehearsal(Record):
    """Start the rehearsal of ``order``; RehearsalOver follows."""

    order: Rehearse


class EndRehearsal(Record):
    """Kill the rehearsal, which need not be there any more; no RehearsalOver follows."""

    watch_gpus: bool  # and report what it holds of the GPUs, as for WatchGpus


class LoadModules(Record):
    """Have the launcher import what ``order`` says; its LoadOver follows."""

    order: Load


class RenewPort(Record):
    """Hold another rendezvous port for the next launch; this one is being used now."""


class ForgetRecords(Record):
    """The step records describe nothing any more."""


class SendHeartbeat(Record):
    """Send a heartbeat now."""


class EndAgent(Record):
    """End the agent."""

    keep_copies: bool = False  # the job comes back, so the copies in memory stay


Instruction: TypeAlias = (
    StartLauncher
    | SpawnWorkers
    | Terminate
    | Kill
    | InjectSignal
    | WatchGpus
    | SweepGroups
    | ReadTail
    | AskCheckpoint
    | SetStride
    | AskFlush
    | SaveCopies
    | SampleStacks
    | StartRehearsal
    | EndRehearsal
    | LoadModules
    | RenewPort
    | ForgetRecords
    | SendHeartbeat
    | EndAgent
)
