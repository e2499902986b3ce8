"""What the stacks of all ranks say about a job that hangs or is slow. Pure; docs/stacks.md."""

from __future__ import annotations

from slurm_robust.analysis.stacks.localise import MAX_SHARE, localise, vote
from slurm_robust.analysis.stacks.ranks import fingerprint

__all__ = ["MAX_SHARE", "fingerprint", "localise", "vote"]
