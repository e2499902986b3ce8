"""Which checkpoint a test speaks of."""

from __future__ import annotations

from slurm_robust.model.copies import CheckpointId


def ref(generation: int, step: int) -> CheckpointId:
    """Return the checkpoint of ``step`` that this generation wrote."""
    return CheckpointId(generation=generation, step=step)
