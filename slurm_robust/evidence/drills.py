"""Drills in words, as every view of a job has them. Pure."""

from __future__ import annotations

from slurm_robust.model.drill import DrillFault
from slurm_robust.model.events import DrillPlanted
from slurm_robust.util.text import one_line


def title(drill: DrillPlanted) -> str:
    """Return ``drill 2 by alice``."""
    by = f" by {drill.by.user}" if drill.by is not None else ""
    return one_line(f"drill {drill.drill}{by}")


def what(drill: DrillPlanted) -> str:
    """Return ``kill-rank on rank 2 (n3, generation 1)``."""
    if drill.fault is DrillFault.KILL_CONTROLLER:
        return f"{drill.fault.value} on {drill.node}"
    return one_line(f"{drill.fault.value} on rank {drill.rank} ({drill.node}, generation {drill.generation})")


def cause(drill: DrillPlanted) -> str:
    """Return ``drill 2 by alice: kill-rank on rank 2 (n3, generation 1)``."""
    return f"{title(drill)}: {what(drill)}"
