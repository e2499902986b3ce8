"""How fast a job's training is, as far as its past tells; kept over generations and controllers."""

from __future__ import annotations

from slurm_robust.model.record import Record

RESTORE = "restore"
"""The phase in which a rank reads its checkpoint."""

CHECKPOINT = "checkpoint"
"""The phase in which ``step()``, or a framework, writes to storage."""

RESERVE = "reserves memory for snapshots"
"""The phase in which a rank has no room yet for its first snapshots, and a driver may hold it up."""

EVALUATION = "evaluation"
"""The phase in which a framework validates or evaluates."""

FINISHED = "after training"
"""The phase of a script that has closed its ``Checkpointer``, until its end."""


class PaceHistory(Record):
    """``steps`` were measured; their times in seconds: median, 99th percentile, longest.

    ``first_step_s``: the longest time from a launch to the first step; ``phases``: the longest of each phase
    that the script announces; ``pause_s``: the longest time without a step that looked like a hang and then
    ended by itself. 0 and absent: not seen yet, or no longer believed since it was exceeded. ``hung_after``:
    the step after which the training was last taken for hanging, -1 once it got beyond. ``doubts``: how often
    it was between steps, since it last went on for hours without. Whoever finds the cause of a hang may set
    it to 0: then it was none of the script's own doing.
    """

    steps: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    longest_s: float = 0.0
    first_step_s: float = 0.0
    phases: dict[str, float] = {}
    pause_s: float = 0.0
    hung_after: int = -1
    doubts: int = 0
