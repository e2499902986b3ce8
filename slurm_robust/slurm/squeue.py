"""What hooks ask Slurm about a job, in the cheapest form that every release answers.

``squeue --json`` of a large cluster prints megabytes, on each node, at each start of a job. squeue fetches
all jobs for a list of them; for a single job it fetches only that job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from slurm_robust.model.record import Record
from slurm_robust.slurm.errors import JobNotFound, classify
from slurm_robust.slurm.process import CommandTimeout, CompletedCommand, run_command
from slurm_robust.slurm.records import TERMINAL_STATES
from slurm_robust.util.hostlist import expand_if_valid


class QueuedJob(Record):
    """A job as squeue shows it."""

    state: str = ""
    """Empty for a job that Slurm does not know, or no longer."""

    nodes: tuple[str, ...] = ()
    """The nodes that it has now."""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good. A COMPLETING job may be one that is requeued."""
        return not self.state or self.state in TERMINAL_STATES


def queued_job(job_id: int, *, environ: Mapping[str, str], timeout_s: float) -> QueuedJob | None:
    """Return the job as Slurm knows it; None without an answer. ``environ`` has PATH and SLURM_CONF."""
    done = _ask(job_id, ["-o", "%A %T %N"], environ, timeout_s)
    if done is None or (done.exit_code == 0 and not done.stdout.strip()):
        return None  # squeue says so of a job that it does not know
    for rest in _lines_of(job_id, done):
        state, _, nodes = rest.partition(" ")
        if state:
            return QueuedJob(state=state, nodes=expand_if_valid(nodes))
    return QueuedJob()


def restart_count(job_id: int, *, environ: Mapping[str, str], timeout_s: float) -> int | None:
    """Return how often the job was requeued; None without an answer.

    Asked of squeue, which prints only the numbers: ``scontrol show job`` also prints text of the user.
    """
    done = _ask(job_id, ["-O", "JobID,RestartCnt"], environ, timeout_s)
    counts = [text for text in _lines_of(job_id, done) if text.isdecimal()] if done else []
    return int(counts[0]) if counts else None


def _ask(
    job_id: int, columns: Sequence[str], environ: Mapping[str, str], timeout_s: float
) -> CompletedCommand | None:
    command = ["squeue", "-a", "-h", "-j", str(job_id), "-t", "all", *columns]
    try:
        done = run_command(command, timeout_s=timeout_s, env=environ)
    except (CommandTimeout, OSError):
        return None
    return done if done.exit_code == 0 or isinstance(classify(done), JobNotFound) else None


def _lines_of(job_id: int, done: CompletedCommand) -> Iterator[str]:
    """Yield the job's lines without the first column. An array's first task has lines of others, too."""
    for line in done.stdout.splitlines():
        first, _, rest = line.strip().partition(" ")
        if first == str(job_id):
            yield rest.strip()
