"""Drills: faults that the owner of a job plants in it, to see that it recovers."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.incident import (
    Action,
    Borrow,
    Diagnose,
    Evict,
    GiveUp,
    QuickTest,
    Replace,
    Requeue,
    Swap,
    Symptom,
)
from slurm_robust.model.record import Record


class DrillFault(str, Enum):
    """What a drill does."""

    KILL_RANK = "kill-rank"
    STOP_RANK = "stop-rank"
    HANG_RANK = "hang-rank"
    LOCK_RANK = "lock-rank"
    RAISE_ERROR = "raise-error"
    NAN_LOSS = "nan-loss"
    SLOW_RANK = "slow-rank"
    GROW_MEMORY = "grow-memory"
    KILL_LOADER = "kill-loader"
    STOP_LOADER = "stop-loader"
    KILL_AGENT = "kill-agent"
    KILL_CONTROLLER = "kill-controller"

    @property
    def in_script(self) -> bool:
        """Whether the training process plants the fault in itself, on the agent's order."""
        return self in _IN_SCRIPT

    @property
    def signal(self) -> int:
        """The signal to the rank that is all of it, 0 if it is something else."""
        return _SIGNALS.get(self, 0)

    @property
    def in_loader(self) -> bool:
        """Whether it is done to a process of the data loader of a rank."""
        return self in (DrillFault.KILL_LOADER, DrillFault.STOP_LOADER)


_IN_SCRIPT = frozenset(
    {
        DrillFault.HANG_RANK,
        DrillFault.LOCK_RANK,
        DrillFault.RAISE_ERROR,
        DrillFault.NAN_LOSS,
        DrillFault.SLOW_RANK,
        DrillFault.GROW_MEMORY,
    }
)

_SIGNALS = {DrillFault.KILL_RANK: 9, DrillFault.STOP_RANK: 19}
_COSTLY = (Evict, Replace, Swap, Requeue, Borrow, QuickTest, Diagnose, GiveUp)


class DrillPromise(Record):
    """What srobust does about a drill by its own rules, said before the fault is planted."""

    symptom: Symptom | None
    """As what it is seen; None if nothing is taken for a fault, since training goes on."""
    detect_s: float
    """It is seen within this time, or what comes of it is over."""
    actions: tuple[Action, ...] = ()
    observe: bool = False
    """Srobust only observes, so nothing is done about it."""
    standbys: int = 0
    """How many are left after it."""

    @property
    def is_costly(self) -> bool:
        """Whether more is lost than the time of a restart in place."""
        return (self.observe and self.symptom is not None) or any(
            isinstance(a, _COSTLY) for a in self.actions
        )


ERROR_TYPE = "PlantedError"
"""The exception that ``raise-error`` raises; its message names the drill by :func:`drill_text`."""


def drill_text(number: int) -> str:
    """Return the words by which the exception of a drill is recognised."""
    return f"drill {number} of the job's owner"
