"""slurm_robust keeps long PyTorch jobs on a plain Slurm cluster productive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_robust.version import __version__

if TYPE_CHECKING:
    from slurm_robust.worker.api import Checkpointer
    from slurm_robust.worker.phases import phase

__all__ = ["Checkpointer", "__version__", "phase"]


def __getattr__(name: str) -> object:
    """Import torch only when a training script asks for it: prologs import this package too."""
    if name == "Checkpointer":
        from slurm_robust.worker.api import Checkpointer

        return Checkpointer
    if name == "phase":
        from slurm_robust.worker.phases import phase

        return phase
    raise AttributeError(f"module 'slurm_robust' has no attribute {name!r}")
