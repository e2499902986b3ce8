"""How fast a job's training is, as far as its past tells; kept over generations and controllers."""

from __future__ import annotations

from slurm_robust.model.record import Record


class PaceHistory(Record):
    """``steps`` were measured; their times in seconds: median, 99th percentile, longest.

    ``first_step_s``: the longest time from a launch to the first step; ``phases``: the longest of each phase
    that the script announces. 0 and absent: not seen yet.
    """

    steps: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    first_step_s: float = 0.0
    phases: dict[str, float] = {}
