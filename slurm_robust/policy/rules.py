"""What the site and the user allow the policy to do."""

from __future__ import annotations

from slurm_robust.config.schema import JobConfig, Limits
from slurm_robust.model.record import Record


class Rules(Record):
    """Bounds and choices that decisions depend on, taken from the configuration once."""

    limits: Limits
    final_exit_codes: tuple[int, ...] = (2,)
    requeue: bool = True

    @classmethod
    def of(cls, config: JobConfig) -> Rules:
        """The rules of one job's configuration."""
        return cls(
            limits=config.limits,
            final_exit_codes=config.final_exit_codes,
            requeue=config.slurm.requeue,
        )
