"""``srobust training``: which trainings there are, how far each is, and the jobs of one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.ledger.summary import Summary
from slurm_robust.model.errors import SrobustError
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.model.training import ASIDE, PREFIX, TrainingDirectory, training_of, trainings
from slurm_robust.report.chapters import chapters_table
from slurm_robust.report.job_main import of_training
from slurm_robust.report.status import ettr_text
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import facts_table, section, show, told_table, track
from slurm_robust.trainings.find import (
    NoSuchJob,
    find,
    find_training,
    load_events,
    moved_aside,
    no_such_training,
    root_of,
    unreadable,
)
from slurm_robust.trainings.jobs import (
    ChapterRow,
    ChapterState,
    NewestJob,
    begun,
    jobs_of,
    newest_of,
    storage,
)
from slurm_robust.trainings.own import active_jobs, folders_of
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.files import disk_use
from slurm_robust.util.text import count, one_line, size_text


class _TrainingLine(Record):
    """One training."""

    name: str
    folder: str
    moved_aside: bool
    """``--fresh`` began it anew; its folder has another name since."""
    jobs: int = 0
    newest: str = ""
    """The id of its newest job, as squeue shows it."""
    state: ChapterState | None = None
    """That job's state; None if nothing is known."""
    how: str = ""
    """What that does, or how it ended."""
    slurm: str = ""
    """Slurm's own state of it, "" if Slurm does not know it."""
    holder: str = ""
    """The id of the job that has the training now, "" for none."""
    step: int = -1
    """The newest that any job has completed, -1 before the first."""
    stored: int = -1
    """The newest step that is complete on storage, -1 for none."""
    checkpoints: int = 0
    """Complete ones on storage."""
    nbytes: int = 0
    """Bytes of all files of checkpoints on storage."""
    storage: str = ""
    """The place in which they are."""
    unlisted: str = ""
    """Why storage does not say which checkpoints it has, "" if it does."""
    trouble: str = ""
    """Why it cannot be read, "" if it can."""


class TrainingShown(Record):
    """What ``srobust training NAME`` shows."""

    training: _TrainingLine
    jobs: tuple[ChapterRow, ...]
    ledger: Summary | None
    """Of all jobs together; None if none of them has a journal."""
    moved_aside: tuple[str, ...]
    """Folders of earlier trainings of this name."""


def list_main(*, json: bool, job_dir: str | None) -> int:
    """Print all trainings here and where Slurm has jobs. Raises ``NoSuchJob`` if they cannot be read."""
    root, slurm = root_of(job_dir), make_slurm()
    try:
        found = trainings(root)
    except OSError as error:
        raise unreadable(root, error) from error
    elsewhere = () if job_dir else running_elsewhere(root, slurm)
    rows = tuple(
        structs.replace(row, how=f"{row.how} (in {one.path.parent})") if one in elsewhere else row
        for one in track([*found, *elsewhere], "reading", "trainings", quiet=json)
        for row in (row_of(one, slurm),)
    )
    show(rows, partial(render_list, root), json=json)
    return 0


def running_elsewhere(root: Path, slurm: SlurmClient) -> tuple[TrainingDirectory, ...]:
    """Return the trainings outside ``root`` of which Slurm has a job; none that cannot be read."""
    found: list[TrainingDirectory] = []
    active = active_jobs(slurm) or ()
    ids = {job.job_id for job in active}
    for place in folders_of(active):
        with suppress(OSError):
            if place != root:
                found += (one for one in trainings(place) if any(job.job_id in ids for job in one.read()))
    return tuple(found)


def show_main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print a training with its jobs; of a job, its training. Raises ``NoSuchJob``, ``JournalDamaged``."""
    slurm, training = make_slurm(), find_training(name, job_dir)
    if training is None and not job_dir:
        elsewhere = running_elsewhere(root_of(job_dir), slurm)
        training = next((one for one in elsewhere if one.name == name.removeprefix(PREFIX)), None)
    if training is None:
        with suppress(NoSuchJob):
            job = find(name, job_dir, slurm)
            state = fold(load_events(job))
            training = training_of(job, state.training, state.run_id) if state.training else None
    if training is None:
        raise no_such_training(name, job_dir, "there is no training")
    show(shown(training, slurm), render, json=json)
    return 0


def shown(training: TrainingDirectory, slurm: SlurmClient) -> TrainingShown:
    """Return all that is known of a training. Raises ``NoSuchJob`` if it cannot be read."""
    jobs = jobs_of(training, slurm)
    report = of_training(training, slurm) if begun(jobs) else None
    return TrainingShown(
        training=_row(training, slurm),
        jobs=report.chapters if report is not None else tuple(j for j in jobs if isinstance(j, ChapterRow)),
        ledger=report.ledger if report is not None else None,
        moved_aside=moved_aside(training.path.parent, training.name),
    )


def row_of(training: TrainingDirectory, slurm: SlurmClient) -> _TrainingLine:
    """Return one line of the list, also for a training that cannot be read."""
    try:
        return _row(training, slurm)
    except SrobustError as error:
        return _bare(training, trouble=str(error))


def _bare(training: TrainingDirectory, **known: Any) -> _TrainingLine:
    name = training.path.name
    return _TrainingLine(name=training.name, folder=name, moved_aside=ASIDE in name, **known)


def _row(training: TrainingDirectory, slurm: SlurmClient) -> _TrainingLine:
    many, newest, begun = newest_of(training, slurm)
    where = storage(training, begun)
    known: dict[str, Any] = {"jobs": many, "storage": str(where)}
    try:
        complete = CheckpointStore(where).complete()
        known |= {"checkpoints": len(complete), "nbytes": disk_use(where)}
        known["stored"] = complete[0].step if complete else -1
    except OSError as error:
        known["unlisted"] = error.strerror or str(error)
    if begun is not None:
        state = fold(begun.events)
        known["step"] = max(state.world.best_step, state.world.steps_here)
    if newest is not None:
        now = NewestJob.of(newest, slurm)
        known |= {"newest": now.job, "state": now.state, "how": now.how}
        known |= {"slurm": now.slurm, "holder": now.holder}
    return _bare(training, **known)


# -- the screen ------------------------------------------------------------------------------------


def render_list(root: Path, rows: Sequence[_TrainingLine]) -> RenderableType:
    """Return one line for each training."""
    if not rows:
        return f"no training in {one_line(str(root))}: 'srobust run --training NAME' begins one"
    columns = ("training", "jobs", "newest", "Slurm", "step", "on storage", "size", "how")
    table = told_table(columns, map(_cells, rows), right=("jobs", "step", "on storage", "size"))
    return Group(table, Text("'srobust training NAME' shows the jobs of one", style="dim"))


def _cells(row: _TrainingLine) -> tuple[Text, ...]:
    name = row.folder.removeprefix(PREFIX) if row.moved_aside else row.name
    if row.trouble:
        return Text(one_line(name)), *[Text("-")] * 6, Text(one_line(row.trouble), style="yellow")
    cells = (
        name,
        str(row.jobs),
        row.newest or "-",
        row.slurm or "-",
        "-" if row.step < 0 else str(row.step),
        "?" if row.unlisted else "-" if row.stored < 0 else str(row.stored),
        "?" if row.unlisted else size_text(row.nbytes),
        row.how + (" (moved aside by --fresh)" if row.moved_aside else ""),
    )
    return tuple(Text(one_line(cell), style="dim" if row.moved_aside else "") for cell in cells)


def render(found: TrainingShown) -> RenderableType:
    """Return the whole screen of one training."""
    row = found.training
    many = f"{count(row.checkpoints, 'checkpoint')} with {size_text(row.nbytes)}"
    stored = f"step {row.stored}, {many}" if row.checkpoints else f"nothing complete, {size_text(row.nbytes)}"
    if row.unlisted:
        stored = f"not known, since it does not list its checkpoints now: {row.unlisted}"
    facts = [
        ("training", row.name + (", moved aside by --fresh" if row.moved_aside else "")),
        ("held by", f"job {row.holder}" if row.holder else "no job"),
        ("newest job", ": ".join(filter(None, (row.newest, row.how)))),
        ("Slurm", row.slurm),
        ("step", "none yet" if row.step < 0 else str(row.step)),
        ("on storage", f"{stored}, in {row.storage}"),
        ("ETTR", ettr_text(found.ledger) if found.ledger is not None else ""),
        ("earlier", ", ".join(found.moved_aside) + " (moved aside by --fresh)" if found.moved_aside else ""),
    ]
    table = facts_table((name, one_line(value, None)) for name, value in facts if value)
    return Group(table, *section("Jobs", chapters_table(found.jobs)))
