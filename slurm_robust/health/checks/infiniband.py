"""Checks of the infiniband."""

from __future__ import annotations

from slurm_robust.health.check import AnyCheck

CHECKS: tuple[AnyCheck, ...] = ()
