"""Stacks of the workers on this machine, taken from outside."""

from __future__ import annotations

from slurm_robust.agent.stacks.taker import StackTaker

__all__ = ["StackTaker"]
