"""The jobs of a training as they are on storage and in Slurm, for every command that shows several."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurm_robust.model.events import AnyEvent
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import JournalDamaged
from slurm_robust.model.record import Record
from slurm_robust.model.training import Chapter, TrainingDirectory
from slurm_robust.report.chapters import ChapterRow, ChapterState, without_journal
from slurm_robust.report.find import NoSuchJob, chapter_folder, load_events, unreadable
from slurm_robust.report.slurmview import SlurmView, ask_slurm
from slurm_robust.slurm.client import SlurmClient


class Begun(Record):
    """A job of a training that has a journal."""

    chapter: Chapter
    directory: JobDirectory
    events: list[AnyEvent]
    notes: tuple[str, ...] = ()
    """On how the journal was read."""


Load = Callable[[JobDirectory], tuple[list[AnyEvent], list[str]]]
"""Reads a journal, with notes on what of it could not be read. Raises ``NoSuchJob``, ``JournalDamaged``."""


def strictly(directory: JobDirectory) -> tuple[list[AnyEvent], list[str]]:
    """Read a journal of this release."""
    return load_events(directory, quiet=True), []


def jobs_of(
    training: TrainingDirectory, slurm: SlurmClient, load: Load = strictly
) -> list[Begun | ChapterRow]:
    """All jobs of a training, oldest first; a row for one without a journal, or whose journal is damaged.

    Raises :class:`NoSuchJob` where the training's folder cannot be read.
    """
    try:
        chapters = training.read()
    except OSError as error:
        raise unreadable(training.path, error) from error
    newest = chapters[-1] if chapters else None
    return [_job(training, chapter, slurm, load, is_newest=chapter is newest) for chapter in chapters]


def _job(
    training: TrainingDirectory, chapter: Chapter, slurm: SlurmClient, load: Load, *, is_newest: bool
) -> Begun | ChapterRow:
    try:
        directory = chapter_folder(training, chapter)
        if directory is not None and directory.journal.exists():
            events, notes = load(directory)
            return Begun(chapter=chapter, directory=directory, events=events, notes=tuple(notes))
        has_folder = directory is not None and directory.path.is_dir()
    except OSError as error:
        return unread(chapter, str(unreadable(training.job(chapter).path, error)))
    except (NoSuchJob, JournalDamaged) as error:
        if not is_newest or isinstance(error, JournalDamaged):
            return unread(chapter, str(error))
        has_folder = True
    # Only the newest can still be about to begin.
    view = ask_slurm(slurm, chapter.job_id) if is_newest else SlurmView()
    return without_journal(
        chapter,
        slurm=view.describe(),
        goes_on=view.goes_on,
        pending=view.job is not None and view.job.is_pending,
        has_folder=has_folder,
    )


def unread(chapter: Chapter, why: str) -> ChapterRow:
    """The row of a job whose journal cannot be read."""
    return ChapterRow(
        job=chapter.job,
        job_id=chapter.job_id,
        state=ChapterState.GONE,
        how=f"cannot be read: {why}",
        begin=chapter.submitted,
        folder=chapter.folder,
    )


def begun(jobs: Sequence[Begun | ChapterRow]) -> list[Begun]:
    """Those with a journal."""
    return [job for job in jobs if isinstance(job, Begun)]
