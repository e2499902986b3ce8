"""What the stacks of all ranks say about a training that hangs or is slow. Pure; docs/stacks.md."""

from __future__ import annotations

from slurm_robust.analysis.stacks.explain import explain
from slurm_robust.analysis.stacks.localise import MOST_SHARE, localise
from slurm_robust.analysis.stacks.ranks import fingerprint
from slurm_robust.analysis.stacks.voting import INTERVAL_S, ROUNDS, vote

__all__ = ["INTERVAL_S", "MOST_SHARE", "ROUNDS", "explain", "fingerprint", "localise", "vote"]
