"""What a stage returns to name the next stage. :mod:`.stages.table` builds it."""

from __future__ import annotations

from typing import TypeAlias

from slurm_robust.engine.units.checkpoints import RestorePoint
from slurm_robust.model.incident import Borrow, Diagnose, Fault, QuickTest, Replay
from slurm_robust.model.record import Record
from slurm_robust.policy.resharding import Way


class ToGathering(Record):
    """Wait until every slot has a node that can start workers."""

    start: bool = False
    """Agents must be started (again)."""
    expected: bool = False
    """Those of an earlier controller may come by themselves first."""


class ToLaunching(Record):
    """Send the launch orders of the next generation."""

    point: RestorePoint
    """From where it begins."""


class ToRunning(Record):
    """All ranks live."""

    agents: dict[str, str]
    """By node the id of the agent that holds its ranks, as launched."""
    launched: float | None = None
    """Monotonic time of the launch, None if it is not known or long ago."""


class ToLocalising(Record):
    """Find out by the stacks of all ranks where ``fault`` lies, while they stand."""

    agents: dict[str, str]
    fault: Fault


class ToReconnecting(Record):
    """Another controller launched the generation that runs; find its agents again."""


class ToObserving(Record):
    """Observe mode: something is wrong, and training is left to its fate."""

    agents: dict[str, str]
    fault: Fault


class ToUnreachable(Record):
    """Many nodes fell silent together, which convicts none of them: wait for them."""

    fault: Fault
    agents: dict[str, str] = {}
    ended: bool = False
    """The generation has ended; else it is left to train, on ``agents``."""


class ToCheckpointing(Record):
    """The end of the run is near: have a checkpoint taken first."""

    agents: dict[str, str]


class ToStopping(Record):
    """End all workers of the generation."""

    reason: str
    fault: Fault | None = None
    """None if nothing is wrong with it."""
    waited: bool = False
    """Nodes that cannot be reached have been waited for."""
    update: int = 0
    """The update for which the generation ends, 0 for none."""
    relaunch: bool = False
    """The launch did not reach all nodes: the next generation follows at once."""


class ToUpdating(Record):
    """Have all ranks take a snapshot at one step and wait there, then end them for the update that is due."""

    agents: dict[str, str]


class ToDeciding(Record):
    """Ask the policy about ``fault``, with which a generation has ended."""

    fault: Fault


class ToTesting(Record):
    """Test the held nodes, by ``action``, before the policy is asked about ``fault`` again."""

    fault: Fault
    action: Diagnose | Replay | QuickTest


class ToBorrowing(Record):
    """Get nodes from outside the allocation, before the policy is asked about ``fault`` again."""

    fault: Fault
    action: Borrow


class ToRequeueing(Record):
    """Give the allocation back; the same job starts again without ``exclude``."""

    exclude: tuple[str, ...]
    reason: str
    failure: bool
    holders: tuple[str, ...] = ()
    """Nodes that alone have parts of the newest step."""


class ToEnding(Record):
    """End agents and controller with ``code``."""

    code: int
    reason: str
    final: bool = True
    """The run is over for good."""


class ToStoring(Record):
    """Put what can be restored only from storage there, then gather again."""

    way: Way
    """How it is restored from there."""
    after: int
    """The step from which training would go on without it."""


class ToSaving(Record):
    """Put what only memory holds on storage, then leave the allocation by ``then``."""

    then: ToRequeueing | ToEnding


Transition: TypeAlias = (
    ToGathering
    | ToLaunching
    | ToRunning
    | ToLocalising
    | ToReconnecting
    | ToObserving
    | ToUnreachable
    | ToCheckpointing
    | ToStopping
    | ToUpdating
    | ToDeciding
    | ToTesting
    | ToBorrowing
    | ToRequeueing
    | ToSaving
    | ToStoring
    | ToEnding
)
