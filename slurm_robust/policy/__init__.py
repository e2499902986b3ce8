"""The recovery ladder: ``decide(state, fault, now, rules) -> Decided``. Pure."""

from slurm_robust.policy.decide import at_the_end, decide
from slurm_robust.policy.rules import Rules

__all__ = ["Rules", "at_the_end", "decide"]
