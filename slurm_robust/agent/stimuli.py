"""What happens to an agent, and what it then does: the two alphabets of its state machine.

An order of the controller and news of the launcher are stimuli as they come. An order is also the instruction
to carry it out, if what the workers do allows that.
"""

from __future__ import annotations

from typing import TypeAlias

from slurm_robust.agent.launcher import LauncherMessage
from slurm_robust.model.record import Record
from slurm_robust.model.standby import Rehearsal
from slurm_robust.wire.messages import (
    Flush,
    Inject,
    Launch,
    Load,
    Order,
    Pace,
    ProbeNodes,
    Rehearse,
    RequestCheckpoint,
    Save,
    TakeStacks,
    Tried,
    TryRelease,
)

# -- stimuli --------------------------------------------------------------------------------------


class EpochSeen(Record):
    """A controller with ``epoch`` exists; orders of lower epochs are void from now on."""

    epoch: int


class TailRead(Record):
    """The last lines of a failed worker's output."""

    generation: int
    rank: int
    lines: tuple[str, ...]
    quiet_s: float | None = None
    """As in :class:`~slurm_robust.model.exits.WorkerExit`."""


class GpusReported(Record):
    """News of the memory of GPUs that ended workers may still hold."""

    held: str  # what they hold, for people; "" when nothing is left


class RehearsalOver(Record):
    """The rehearsal has ended by itself, or at one of its bounds."""

    rehearsal: Rehearsal
    pid: int  # also its process group; 0 if it never was there


class ReleaseTried(Record):
    """A release was tried on this node, as :class:`~slurm_robust.wire.messages.TryRelease` asks."""

    tried: Tried


class TermCame(Record):
    """Slurm ends the step."""

    grace_s: float  # seconds that workers get


class Ticked(Record):
    """Time has passed."""


Stimulus: TypeAlias = (
    Order
    | LauncherMessage
    | EpochSeen
    | TailRead
    | GpusReported
    | RehearsalOver
    | ReleaseTried
    | TermCame
    | Ticked
)

# -- instructions ---------------------------------------------------------------------------------


class StartLauncher(Record):
    """Start the launcher, which is not there."""


class EndWorker(Record):
    """TERM to a worker's group, or KILL."""

    pid: int
    kill: bool = False


class WatchGpus(Record):
    """Report what the process groups ``workers``, which have ended, still hold of the GPUs."""

    workers: tuple[int, ...]


class SweepGroups(Record):
    """Kill what ended workers left in their groups."""


class ReadTail(Record):
    """Read the last lines of a worker's output; TailRead follows, unless the storage hangs."""

    generation: int
    rank: int


class EndRehearsal(Record):
    """Kill the rehearsal, which need not be there any more; no RehearsalOver follows."""

    watch_gpus: bool  # and report what it holds of the GPUs, as for WatchGpus


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
    Launch
    | RequestCheckpoint
    | Pace
    | Flush
    | Save
    | TakeStacks
    | ProbeNodes
    | Rehearse
    | Load
    | TryRelease
    | Inject
    | StartLauncher
    | EndWorker
    | WatchGpus
    | SweepGroups
    | ReadTail
    | EndRehearsal
    | RenewPort
    | ForgetRecords
    | SendHeartbeat
    | EndAgent
)
