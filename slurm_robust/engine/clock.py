"""The time by which the engine decides: it is told, never read."""

from __future__ import annotations

from slurm_robust.model.record import Record


class Now(Record):
    """One reading of both clocks, in seconds."""

    mono: float
    """Monotonic seconds, for durations."""
    wall: float
    """Seconds since 1970, for people."""
