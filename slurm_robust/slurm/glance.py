"""The two questions that hooks ask of Slurm about a job, in the cheapest form that every release answers.

``squeue --json`` of a large cluster is megabytes, on each node, at each start of a job. For a list of jobs
squeue fetches all that there are; for a single one only that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.process import CommandTimeout, CompletedCommand, run_command
from slurm_robust.slurm.records import TERMINAL_STATES
from slurm_robust.util.hostlist import expand

_UNKNOWN_JOB = "Invalid job id specified"


class Glance(Record):
    """A job in squeue's words: its state, and the nodes that it has now.

    ``state`` is empty for a job that Slurm does not know, or no longer.
    """

    state: str = ""
    nodes: tuple[str, ...] = ()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good. Not so COMPLETING, which a job that is requeued is as well."""
        return not self.state or self.state in TERMINAL_STATES


def glance(job_id: int, *, environ: Mapping[str, str], timeout_s: float) -> Glance | None:
    """What Slurm says of the job; None without an answer. ``environ`` has PATH and SLURM_CONF."""
    done = _ask(job_id, ["-o", "%A %T %N"], environ, timeout_s)
    if done is None:
        return None
    for rest in _lines_of(job_id, done):
        state, _, nodes = rest.partition(" ")
        if state:
            return Glance(state=state, nodes=_expanded(nodes))
    return Glance()


def restarts(job_id: int, *, environ: Mapping[str, str], timeout_s: float) -> int | None:
    """How often the job was requeued; None without an answer.

    Of squeue, which prints nothing but the numbers: ``scontrol show job`` prints words of the user beside it.
    """
    done = _ask(job_id, ["-O", "JobID,RestartCnt"], environ, timeout_s)
    counts = [text for text in _lines_of(job_id, done) if text.isdecimal()] if done else []
    return int(counts[0]) if counts else None


def _ask(
    job_id: int, columns: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> CompletedCommand | None:
    words = ["squeue", "-a", "-h", "-j", str(job_id), "-t", "all", *columns]
    try:
        done = run_command(words, timeout_s=timeout_s, env=environ)
    except (CommandTimeout, OSError):
        return None
    return done if done.exit_code == 0 or _UNKNOWN_JOB in done.stderr else None


def _lines_of(job_id: int, done: CompletedCommand) -> Iterator[str]:
    """Without its first column. For the first task of an array there are lines of the others, too."""
    for line in done.stdout.splitlines():
        first, _, rest = line.strip().partition(" ")
        if first == str(job_id):
            yield rest.strip()


def _expanded(nodes: str) -> tuple[str, ...]:
    try:
        return tuple(expand(nodes.strip())) if nodes.strip() else ()
    except ValueError:
        return ()
