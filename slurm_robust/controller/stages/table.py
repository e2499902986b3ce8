"""Which class serves which transition: the list of all stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_robust.controller import transitions as to
from slurm_robust.controller.core import Stage
from slurm_robust.controller.stages.checkpointing import Checkpointing
from slurm_robust.controller.stages.deciding import Deciding
from slurm_robust.controller.stages.ending import Ending, Observing, Reconnecting
from slurm_robust.controller.stages.gathering import Gathering
from slurm_robust.controller.stages.localising import Localising
from slurm_robust.controller.stages.requeueing import Requeueing
from slurm_robust.controller.stages.running import Launching, Running
from slurm_robust.controller.stages.saving import Saving
from slurm_robust.controller.stages.stopping import Stopping
from slurm_robust.controller.stages.testing import Testing
from slurm_robust.controller.stages.unreachable import Unreachable

# Each class takes exactly the transition it stands beside; Any because a dict cannot say so.
STAGES: dict[type[Any], Callable[[Any], Stage]] = {
    to.ToGathering: Gathering,
    to.ToLaunching: Launching,
    to.ToRunning: Running,
    to.ToLocalising: Localising,
    to.ToReconnecting: Reconnecting,
    to.ToObserving: Observing,
    to.ToUnreachable: Unreachable,
    to.ToCheckpointing: Checkpointing,
    to.ToStopping: Stopping,
    to.ToDeciding: Deciding,
    to.ToTesting: Testing,
    to.ToRequeueing: Requeueing,
    to.ToSaving: Saving,
    to.ToEnding: Ending,
}


def build(transition: to.Transition) -> Stage:
    """The stage that a transition names."""
    return STAGES[type(transition)](transition)
