"""How far a host's clock is ahead of slurmctld's."""

from __future__ import annotations

import time
from collections.abc import Callable

from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import CommandFailed, PermissionDenied, UnparsableOutput

_ROUND_TRIP_S = 1.0


def clock_offset(slurm: SlurmClient, clock: Callable[[], float] = time.time) -> float | None:
    """Return the offset in seconds, accurate to about one; None if slurmctld told no time, or too late.

    Raises the errors after which Slurm would answer nothing else either.
    """
    before = clock()
    try:
        then = slurm.now() + 0.5  # whole seconds, cut off
    except (CommandFailed, PermissionDenied, UnparsableOutput):
        return None
    after = clock()
    return (before + after) / 2 - then if after - before < _ROUND_TRIP_S else None
