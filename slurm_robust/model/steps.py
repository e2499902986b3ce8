"""What Slurm says of the steps that run agents, and of their nodes."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class Outlook(str, Enum):
    """Whether the same step could start later."""

    PASSES = "passes"  # slurmctld restarts, a daemon is busy
    STAYS = "stays"  # Slurm will not grant it, however often it is asked
    UNKNOWN = "unknown"


class StepEnd(Record):
    """The end of agents on ``nodes`` in Slurm's own words: of one srun, or of some of its tasks.

    ``code`` is srun's exit code, or a task's where that is told (-1: it is not). ``named`` are nodes that the
    words themselves hold responsible. ``fix``: what the reader can do, "" where the words do not say enough.
    ``is_task``: the agent itself ended, and Slurm still speaks with its node.
    """

    nodes: tuple[str, ...]
    code: int
    words: str = ""
    outlook: Outlook = Outlook.UNKNOWN
    fix: str = ""
    named: dict[str, str] = {}
    is_task: bool = False


class Witness(Record):
    """Slurm's word on one node: its state and reason, and whether that speaks ``against`` using it.

    ``gone``: Slurm has given the node up, or has taken it from the job.
    """

    node: str
    words: str
    against: bool
    gone: bool = False
