"""What the site and the user allow the policy to do."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig, Limits
from slurm_robust.model.record import Record


class Rules(Record):
    """Bounds and choices that decisions depend on, taken from the configuration once.

    ``diagnose``: nodes may be tested, also in a slowdown for which ``slow_samples`` found no culprit (0: not
    for that); ``replay``: the script can be replayed in small groups.
    """

    limits: Limits
    final_exit_codes: tuple[int, ...] = (2,)
    requeue: bool = True
    diagnose: bool = False
    slow_samples: int = 0
    replay: bool = False

    @classmethod
    def of(cls, config: JobConfig) -> Rules:
        """The rules of one job's configuration."""
        return cls(
            limits=config.limits,
            final_exit_codes=config.final_exit_codes,
            requeue=config.slurm.requeue,
            diagnose=config.detect.diagnose,
            slow_samples=config.detect.slow_samples,
            replay=config.replay.args is not None,
        )
