"""The jobs of a training as they are on storage and in Slurm, for every command that shows several."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import dropwhile, islice
from pathlib import Path

import msgspec

from slurm_robust.model.events import AnyEvent
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import JournalDamaged, fold
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.training import Chapter, TrainingDirectory, storage_of, training_of
from slurm_robust.policy.holding import Hold, end_of, judge
from slurm_robust.report.chapters import ChapterRow, ChapterState, without_journal
from slurm_robust.report.status import REQUEUED, phase_of
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.trainings.find import NoSuchJob, chapter_folder, load_events, unreadable
from slurm_robust.trainings.slurmview import SlurmView, ask_slurm, view_of


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


def newest_of(
    training: TrainingDirectory, slurm: SlurmClient
) -> tuple[int, Begun | ChapterRow | None, Begun | None]:
    """How many jobs a training has, the newest, and the newest with a journal.

    Raises :class:`NoSuchJob` where the training's folder cannot be read.
    """
    try:
        chapters = training.read()
    except OSError as error:
        raise unreadable(training.path, error) from error
    newest: Begun | ChapterRow | None = None
    for chapter in reversed(chapters):
        job = _job(training, chapter, slurm, strictly, is_newest=newest is None)
        newest = newest or job
        if isinstance(job, Begun):
            return len(chapters), newest, job
    return len(chapters), newest, None


def storage(training: TrainingDirectory, job: Begun | None) -> Path:
    """Where the checkpoints of a training are; ``job``: its newest that knows."""
    if job is None:
        return training.checkpoints
    try:
        spec = msgspec.json.decode(job.directory.spec.read_bytes(), type=JobSpec)
        return storage_of(job.directory, spec, training.name)
    except (OSError, *UNREADABLE):
        return training.checkpoints


def _job(
    training: TrainingDirectory, chapter: Chapter, slurm: SlurmClient, load: Load, *, is_newest: bool
) -> Begun | ChapterRow:
    try:
        directory = chapter_folder(training, chapter)
        if directory is not None and directory.journal.exists():
            events, notes = load(directory)
            return Begun(chapter=chapter, directory=directory, events=events, notes=tuple(notes))
        has_folder = directory is not None and directory.path.is_dir()
        why = ""
    except OSError as error:
        has_folder, why = True, str(unreadable(training.job(chapter).path, error))
    except (NoSuchJob, JournalDamaged) as error:
        # A newest one whose journal is not there yet has only just begun.
        has_folder, why = True, str(error) if isinstance(error, JournalDamaged) or not is_newest else ""
    # Only the newest can still be about to begin, or run.
    view = ask_slurm(slurm, chapter.job_id) if is_newest else SlurmView()
    if why:
        return unread(chapter, why, goes_on=view.goes_on or bool(view.silent))
    return without_journal(
        chapter,
        slurm=view.describe(),
        goes_on=view.goes_on,
        pending=view.job is not None and view.job.is_pending,
        has_folder=has_folder,
    )


def unread(chapter: Chapter, why: str, *, goes_on: bool) -> ChapterRow:
    """The row of a job whose journal cannot be read. ``goes_on``: Slurm may still have it."""
    return ChapterRow(
        job=chapter.job,
        job_id=chapter.job_id,
        state=ChapterState.STARTING if goes_on else ChapterState.GONE,
        how=f"cannot be read: {why}",
        begin=chapter.submitted,
        folder=chapter.folder,
    )


def begun(jobs: Sequence[Begun | ChapterRow]) -> list[Begun]:
    """Those with a journal."""
    return [job for job in jobs if isinstance(job, Begun)]


def later_of(jobs: Sequence[Begun]) -> list[list[list[AnyEvent]]]:
    """For each job the journals of those that came after it."""
    journals = [job.events for job in jobs]
    return [journals[place + 1 :] for place in range(len(jobs))]


def journals_after(directory: JobDirectory, events: Sequence[AnyEvent]) -> Iterator[list[AnyEvent]]:
    """Read the journals of the jobs that came after this one in its training, until one cannot be read."""
    state = fold(events)
    with suppress(OSError, NoSuchJob, JournalDamaged):
        training = training_of(directory, state.training, state.run_id) if state.training else None
        chapters = training.read() if training is not None else ()
        after = dropwhile(lambda chapter: chapter.run_id != state.run_id, chapters)
        for chapter in islice(after, 1, None):
            later = chapter_folder(training, chapter) if training is not None else None
            if later is not None and later.journal.exists():
                yield load_events(later, quiet=True)


# -- who has it -------------------------------------------------------------------------------------


class Now(Record):
    """What the newest job of a training does."""

    job: str
    """As squeue shows it."""
    state: ChapterState
    how: str
    slurm: str = ""
    """Slurm's own state of it, "" where Slurm does not know it."""
    may_hold: bool = True
    """The job has the training, or nobody can say that it has not."""
    has_begun: bool = True
    """It has a journal."""

    @classmethod
    def of(cls, row: ChapterRow) -> Now:
        """The same of a job without a journal."""
        holds = row.state in _HOLDS
        return cls(job=row.job, state=row.state, how=row.how, may_hold=holds, has_begun=False)

    @property
    def holder(self) -> str:
        """The job, if it has the training now, else ""."""
        return self.job if self.may_hold and self.state in _HOLDS else ""


_HOLDS = (ChapterState.PENDING, ChapterState.STARTING, ChapterState.RUNNING)


def now_of(job: Begun, slurm: SlurmClient) -> Now:
    """What the newest job does, by its journal and by Slurm."""
    view = view_of(job.events, slurm)
    phase, reason = phase_of(job.events, is_over=view.is_over)
    state = fold(job.events)
    ended = end_of(state.ended)
    hold = judge(job.chapter, ended, view.job, answers=not view.silent)
    states = {REQUEUED: ChapterState.PENDING, "starting": ChapterState.STARTING}
    how = f"{phase}: {reason}" if reason else phase
    found = states.get(phase, ChapterState.RUNNING)
    if ended is not None or view.is_over:
        found = ChapterState.ENDED
    elif hold is Hold.FREE:
        found, how = ChapterState.ENDED, f"its end is not known here; it was {how}"
    return Now(
        job=job.chapter.job,
        state=found,
        how=how,
        slurm=view.describe(),
        may_hold=hold is not Hold.FREE,
    )


# -- what it takes on storage ------------------------------------------------------------------------


def disk_use(folder: Path) -> int:
    """Bytes of all files below ``folder``, as far as they can be seen; links are not followed."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # removed meanwhile
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def free_on(folder: Path) -> int | None:
    """Bytes that the storage of ``folder`` has free, None where it does not say."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def size_text(nbytes: float) -> str:
    """``12.3 GB``."""
    for unit in ("kB", "MB", "GB"):
        nbytes /= 1000
        if nbytes < 999.5:
            return f"{nbytes:.{0 if nbytes >= 100 else 1}f} {unit}"
    return f"{nbytes / 1000:.1f} TB"
