"""Jobs in one line each: a list of the caller's jobs, and one job for a small screen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import RenderableType

from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.report.top.command import look_through
from slurm_robust.report.top.feed import JobFeed, LiveView
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import plain_table, show
from slurm_robust.trainings.find import find
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.text import count, duration, one_line

MAX_JOBS = 50
"""The newest; the journal of each is read."""


class BriefJob(Record):
    """A job in one line."""

    job: str
    """The name of its folder, which begins with Slurm's id."""
    training: str
    """Of which it is a chapter; "" for none."""
    state: str
    """``training``, ``recovering`` …, as ``srobust status`` says it."""
    what: str
    """What is wrong, what is done about it, or why it is in this state; "" for nothing."""
    slurm: str
    """Slurm's own state, if the job has not ended and its controller is silent."""
    step: int
    """The newest, -1 before the first."""
    step_age_s: float | None
    """None for a job that has ended, and before the first step."""
    loss: float | None
    ettr: float | None
    incidents: int
    """How many there were."""


def brief(view: LiveView, training: str) -> BriefJob:
    """Return the line of a job. Pure."""
    moment, wrong = view.moment, view.situation.wrong
    what = wrong[0] if wrong else view.trouble or view.reason
    return BriefJob(
        job=Path(view.folder).name,
        training=training,
        state=view.state,
        what=one_line(what),
        slurm=view.slurm,
        step=moment.step if moment.step >= 0 else moment.best_step,
        step_age_s=None if moment.final or moment.code is not None else moment.step_age_s,
        loss=moment.loss,
        ettr=moment.ettr,
        incidents=max(moment.opened, len(view.incidents)),
    )


def briefs(folders: Iterable[Path], slurm: SlurmClient) -> list[BriefJob]:
    """Return the lines of jobs, :data:`MAX_JOBS` at most."""
    found = []
    for path in [*folders][:MAX_JOBS]:
        feed = JobFeed(JobDirectory(path), slurm)
        found.append(brief(look_through(feed), feed.training))
    return found


def table(jobs: Sequence[BriefJob]) -> RenderableType:
    """Return a row for each job."""
    rows = plain_table(
        "job", "training", "state", "step", "age", "ETTR", "what", right=("step", "age", "ETTR")
    )
    for job in jobs:
        age = "-" if job.step_age_s is None else duration(job.step_age_s)
        what = job.what or (f"Slurm: {job.slurm}" if job.slurm else "")
        figures = (str(job.step) if job.step >= 0 else "-", age, _ettr(job))
        rows.add_row(one_line(job.job), one_line(job.training), job.state, *figures, what)
    return rows


def line(job: BriefJob) -> str:
    """Return ``4711 gpt-7b: training, step 2650 (0.4 s ago), loss 2.31, ETTR 97.1%, 1 incident``."""
    step = "no step yet" if job.step < 0 else f"step {job.step}"
    if job.step >= 0 and job.step_age_s is not None:
        step += f" ({duration(job.step_age_s)} ago)"
    what = f" ({job.what})" if job.what else ""
    parts = [f"{job.state}{what}", f"Slurm: {job.slurm}" if job.slurm else "", step]
    parts += [f"loss {job.loss:.4g}" if job.loss is not None else "", f"ETTR {_ettr(job)}"]
    parts.append(count(job.incidents, "incident") if job.incidents else "")
    name = f"{job.job} {job.training}".rstrip()
    return one_line(f"{name}: {', '.join(filter(None, parts))}")


def _ettr(job: BriefJob) -> str:
    return "-" if job.ettr is None else f"{job.ettr:.1%}"


def list_main(folders: Sequence[Path], *, json: bool) -> int:
    """Print jobs, one line each."""
    show(briefs(folders, make_slurm()), table, json=json)
    return ExitCode.SUCCESS


def short_main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print one job in one line. Raises ``NoSuchJob``."""
    slurm = make_slurm()
    (job,) = briefs([find(name, job_dir, slurm).path], slurm)
    show(job, line, json=json)
    return ExitCode.SUCCESS
