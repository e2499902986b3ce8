"""The recovery ladder: ``decide(state, observation, now, rules) -> Decision``. Pure."""

from slurm_robust.policy.decide import decide
from slurm_robust.policy.rules import Rules

__all__ = ["Rules", "decide"]
