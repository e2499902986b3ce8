"""Slurm behind one protocol. The only place that builds Slurm's command lines and reads its output."""

from slurm_robust.slurm.client import SlurmClient, StepHandle
from slurm_robust.slurm.environment import allocation_from_environment
from slurm_robust.slurm.select import make_client

__all__ = ["SlurmClient", "StepHandle", "allocation_from_environment", "make_client"]
