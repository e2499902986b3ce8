"""The jobs of a training as they are on storage and in Slurm, for every command that shows several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from itertools import dropwhile, islice
from pathlib import Path

import msgspec

from slurm_robust.model.events import AnyEvent
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import JournalDamaged, fold
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.training import Chapter, TrainingDirectory, storage_of, training_of
from slurm_robust.policy.holding import Hold, end_of, judge
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.trainings.find import NoSuchJob, chapter_folder, load_events, unreadable
from slurm_robust.trainings.phase import REQUEUED, phase_of
from slurm_robust.trainings.slurmview import SlurmView, ask_slurm, view_of


class ChapterState(str, Enum):
    """How far a job of a training is."""

    PENDING = "pending"
    """It waits for nodes."""
    STARTING = "starting"
    """It has nodes, and has not made a step."""
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"
    """It has ended, and its folder is gone."""


class ChapterRow(Record):
    """One job of a training. Times are seconds since 1970, by slurmctld's clock if it is known."""

    job: str
    """As squeue shows it."""
    job_id: int
    state: ChapterState
    how: str
    """What it does, or how it ended."""
    begin: float | None = None
    """When it was submitted; of a job that waited for the one before, when that had ended."""
    started: float | None = None
    """When Slurm first started it; None before, and if that is not known."""
    end: float | None = None
    """None while it goes on."""
    nodes: int = 0
    """The most that it held at a time."""
    from_step: int | None = None
    """The step from which it began, by its checkpoint or as the script reports, -1 for the beginning; None
    before, and for a script that does not number its steps.
    """
    to_step: int | None = None
    """Its newest step; None before the first."""
    repeated: int | None = 0
    """Steps that it did again; None if that is not known."""
    incidents: int = 0
    """Without drills."""
    ettr: float | None = None
    """ETTR of its own time since its first start; None before."""
    exit_code: int | None = None
    """Exit code of its final end."""
    folder: str = ""
    """Its name."""


class Begun(Record):
    """A job of a training that has a journal."""

    chapter: Chapter
    directory: JobDirectory
    events: list[AnyEvent]
    notes: tuple[str, ...] = ()
    """On how the journal was read."""


LoadJournal = Callable[[JobDirectory], tuple[list[AnyEvent], list[str]]]
"""Reads a journal, with notes on what of it could not be read. Raises ``NoSuchJob``, ``JournalDamaged``."""


def strictly(directory: JobDirectory) -> tuple[list[AnyEvent], list[str]]:
    """Read a journal of this release."""
    return load_events(directory, quiet=True), []


def jobs_of(
    training: TrainingDirectory, slurm: SlurmClient, load: LoadJournal = strictly
) -> list[Begun | ChapterRow]:
    """Return all jobs of a training, oldest first; a row for one without a journal or with a damaged one.

    Raises :class:`NoSuchJob` if the training's folder cannot be read.
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
    """Return how many jobs a training has, the newest, and the newest with a journal.

    Raises :class:`NoSuchJob` if the training's folder cannot be read.
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
    """Return the folder with the checkpoints of a training; ``job``: its newest that knows."""
    if job is None:
        return training.checkpoints
    try:
        spec = msgspec.json.decode(job.directory.spec.read_bytes(), type=JobSpec)
        return storage_of(job.directory, spec, training.name)
    except (OSError, *UNREADABLE):
        return training.checkpoints


def _job(
    training: TrainingDirectory, chapter: Chapter, slurm: SlurmClient, load: LoadJournal, *, is_newest: bool
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
    """Return the row of a job whose journal cannot be read. ``goes_on``: Slurm may still have it."""
    return ChapterRow(
        job=chapter.job,
        job_id=chapter.job_id,
        state=ChapterState.STARTING if goes_on else ChapterState.GONE,
        how=f"cannot be read: {why}",
        begin=chapter.submitted,
        folder=chapter.folder,
    )


def without_journal(
    chapter: Chapter, *, slurm: str, goes_on: bool, pending: bool, has_folder: bool
) -> ChapterRow:
    """Return the row of a job that has written nothing yet, or of which nothing is left.

    ``slurm``: its state there, "" for an unknown job.
    """
    state, how = ChapterState.GONE, "has ended, and its folder is gone"
    if goes_on:
        state = ChapterState.PENDING if pending else ChapterState.STARTING
        how = state.value
    elif has_folder:
        state, how = ChapterState.ENDED, "ended before it began to train"
    return ChapterRow(
        job=chapter.job,
        job_id=chapter.job_id,
        state=state,
        how=how + (f"; Slurm: {slurm}" if slurm else ""),
        begin=chapter.submitted if chapter.submitted is not None else chapter.t,
        folder=chapter.folder,
    )


def begun(jobs: Sequence[Begun | ChapterRow]) -> list[Begun]:
    """Return those with a journal."""
    return [job for job in jobs if isinstance(job, Begun)]


def later_of(jobs: Sequence[Begun]) -> list[list[list[AnyEvent]]]:
    """Return for each job the journals of those that came after it."""
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


class NewestJob(Record):
    """What the newest job of a training does."""

    job: str
    """As squeue shows it."""
    state: ChapterState
    how: str
    slurm: str = ""
    """Slurm's own state of it, "" if Slurm does not know it."""
    may_hold: bool = True
    """The job has the training, or it is not known that it has not."""
    has_begun: bool = True
    """It has a journal."""

    @classmethod
    def of(cls, job: Begun | ChapterRow, slurm: SlurmClient) -> NewestJob:
        """Return what it does by its journal and by Slurm; without a journal by its row."""
        if isinstance(job, ChapterRow):
            holds = job.state in _HOLDS
            return cls(job=job.job, state=job.state, how=job.how, may_hold=holds, has_begun=False)
        view, state = view_of(job.events, slurm), fold(job.events)
        ended = end_of(state.ended)
        hold = judge(job.chapter, ended, view.job, answers=not view.silent)
        found, how = state_and_how(
            *phase_of(job.events, state, is_over=view.is_over, slurm=view.state),
            ended=ended is not None or view.is_over,
            lost=hold is Hold.FREE,
        )
        return cls(
            job=job.chapter.job,
            state=found,
            how=how,
            slurm=view.describe(),
            may_hold=hold is not Hold.FREE,
        )

    @property
    def holder(self) -> str:
        """The job, if it has the training now, else ""."""
        return self.job if self.may_hold and self.state in _HOLDS else ""


_HOLDS = (ChapterState.PENDING, ChapterState.STARTING, ChapterState.RUNNING)


def state_and_how(phase: str, reason: str, *, ended: bool, lost: bool) -> tuple[ChapterState, str]:
    """Return how far a job with a journal is, and in words what it does or how it ended.

    ``lost``: it does not go on, and its journal has no end.
    """
    how = f"{phase}: {reason}" if reason else phase
    if ended:
        return ChapterState.ENDED, how
    if lost:
        return ChapterState.ENDED, f"its end is not known here; it was {how}"
    states = {REQUEUED: ChapterState.PENDING, "starting": ChapterState.STARTING}
    return states.get(phase, ChapterState.RUNNING), how
