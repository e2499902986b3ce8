"""Which checkpoint a test speaks of."""

from __future__ import annotations

from slurm_robust.checkpoint.state import Training, Unread
from slurm_robust.model.copies import CheckpointId


def ref(generation: int, step: int) -> CheckpointId:
    """Return the checkpoint of ``step`` that this generation wrote."""
    return CheckpointId(generation=generation, step=step)


def named(*entries: str) -> Training:
    """Return a script that names these entries, and takes whatever state they have."""
    return Training(entries={name: Unread() for name in entries})
