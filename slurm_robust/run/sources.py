"""The earlier job from which a new one goes on: what its owner named, or the newest of its training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.layout import replicated
from slurm_robust.model.training import Chapter, TrainingDirectory, is_name
from slurm_robust.policy import continuing as policy
from slurm_robust.run.holding import Applicant, await_free
from slurm_robust.trainings.earlier import Earlier, earlier_job, newest_of_script
from slurm_robust.trainings.find import NoSuchJob, find
from slurm_robust.util.files import names_in
from slurm_robust.util.ours import check_own_folder

LATEST = "latest"


class Here(NamedTuple):
    """The job that starts."""

    directory: JobDirectory
    chapter: Chapter
    """What its training would note about it."""
    storage: Path
    """The folder in which its checkpoints will be."""
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    keep: int
    """Checkpoints that are kept."""
    asked: Applicant
    requeued: bool = False
    """It has run before."""
    fits: Callable[[int], object] = lambda _: None
    """Called with the slots of the job that is gone on from, 0 without one.

    Raises :class:`PreflightError` if this job has too few nodes for them.
    """

    take: Callable[[], object] = lambda: None
    """Keeps other starts of the training on this node out. Raises :class:`PreflightError` if there is one."""

    @property
    def root(self) -> Path:
        """The folder of the folders of all jobs."""
        return self.directory.path.parent


class StartingPoint(NamedTuple):
    """The point from which it goes on."""

    event: ev.Continued
    store: CheckpointStore
    reasons: Mapping[CheckpointId, str] = {}
    earlier: Earlier | None = None
    jobs: Mapping[int, str] = {}
    """The ids of jobs as squeue shows them."""


def other_jobs(training: TrainingDirectory, chapters: Iterable[Chapter], here: Here) -> list[Chapter]:
    """Return the chapters but this job, which may have taken the training in a start that did not get far.

    A job that has a journal is another one, which only had the same id. Raises ``JournalDamaged``,
    ``OSError``.
    """

    def is_mine(chapter: Chapter) -> bool:
        own = here.chapter
        same = (chapter.job_id, chapter.cluster, chapter.folder) == (own.job_id, own.cluster, own.folder)
        return same and earlier_job(training.job(chapter), chapter.run_id) is None

    return [chapter for chapter in chapters if not is_mine(chapter)]


def newest_that_tells(training: TrainingDirectory, chapters: Sequence[Chapter]) -> StartingPoint | None:
    """Return what counts after the newest of these jobs that has something to tell."""
    for chapter in reversed(chapters):
        found = earlier_job(training.job(chapter), chapter.run_id)
        if found is not None and policy.tells(found.state):
            return _of_job(found)._replace(jobs={each.job_id: each.job for each in chapters})
    return None


def _of_job(found: Earlier) -> StartingPoint:
    check_own_folder(found.directory.path)
    event = policy.lineage(found.state, str(found.directory.path), time.time())
    return StartingPoint(event, CheckpointStore(found.storage), found.state.world.banned, found, found.jobs)


def same(one: Path, other: Path) -> bool:
    """Return whether both are one folder."""
    return os.path.realpath(one) == os.path.realpath(other)


def stored(store: CheckpointStore) -> list[CheckpointId] | None:
    """Return what is complete there; None if storage does not say."""
    try:
        return store.complete()
    except OSError:
        return None


def find_source(text: str, here: Here, of: TrainingDirectory | None = None) -> StartingPoint:
    """Return the job, training or folder that a person named. ``of``: the training that this job has taken.

    Raises :class:`PreflightError`, ``NoSuchJob``.
    """
    if text == LATEST:
        newest = newest_of_script(here.root, here.directory.path, here.kind.value, here.command, here.cwd)
        if newest is None:
            raise PreflightError(
                f"--from latest: in {here.root} no job of {here.command[0]}, submitted from {here.cwd}, has "
                "left a checkpoint",
                fix="give a job's id, or its folder",
                code=ExitCode.NO_INPUT,
            )
        return _free(newest, here)
    path = Path(here.cwd, text)
    named = TrainingDirectory.of(here.root, text) if is_name(text) else None
    if named is not None and named.path.is_dir() and not (text.isdigit() and (here.root / text).is_dir()):
        return _of_training(named, here, of)
    if TrainingDirectory(path).chapters.exists():
        return _of_training(TrainingDirectory(path), here, of)
    if (
        path.is_dir()
        and not JobDirectory(path).journal.exists()
        and any(name.startswith("gen-") for name in names_in(path))
    ):
        return of_folder(path)
    try:
        directory = find(text, str(here.root))
    except NoSuchJob:
        if not path.is_dir():
            directory = find(text, None)  # submitted from elsewhere
        else:
            raise
    check_own_folder(directory.path)
    earlier = earlier_job(JobDirectory(Path(os.path.abspath(directory.path))))
    if earlier is None or not policy.tells(earlier.state):
        raise PreflightError(
            f"--from {text}: job {text} ended before its training began, so it has no checkpoint",
            fix="give an earlier job",
            code=ExitCode.NO_INPUT,
        )
    return _free(earlier, here)


def _free(earlier: Earlier, here: Here) -> StartingPoint:
    """Return ``earlier``, which must have ended."""
    source = _of_job(earlier)
    if earlier.directory.path != here.directory.path:
        await_free(
            earlier.chapter, earlier.directory, here.asked._replace(what=f"the folder of job {earlier.name}")
        )
    return source


def _of_training(training: TrainingDirectory, here: Here, of: TrainingDirectory | None) -> StartingPoint:
    check_own_folder(training.path)
    chapters = other_jobs(training, training.read(), here)
    if chapters and (of is None or not same(of.path, training.path)):
        asked = here.asked._replace(what=f"training {training.name}")
        await_free(chapters[-1], training.job(chapters[-1]), asked)
    found = newest_that_tells(training, chapters)
    if found is None:
        raise PreflightError(
            f"no job of training {training.name} in {training.path} has left a checkpoint",
            fix="give another job, training or folder",
            code=ExitCode.NO_INPUT,
        )
    return found


def of_folder(path: Path, job_id: int = 0) -> StartingPoint:
    """Return a folder of checkpoints that a user has put somewhere.

    ``job_id``: only what this job wrote counts; 0 for all.
    """
    check_own_folder(path)
    store = CheckpointStore(path)
    sizes = {ref: store.world_size(ref) for ref in store.complete()}
    runs: dict[str, None] = {}
    layouts: dict[int, str] = {}
    for ref, size in tuple(sizes.items()):
        run_id, layout = _written_as(store, ref, size)
        if job_id and not run_id.startswith(f"{job_id}-"):
            del sizes[ref]
        elif layout:
            runs[run_id] = None
            layouts[ref.generation] = layout
    if not sizes:
        raise PreflightError(
            f"no checkpoint in {path} is complete",
            fix="give another folder",
            code=ExitCode.NO_INPUT,
        )
    return StartingPoint(policy.of_folder(str(path), sizes, tuple(runs), time.time(), layouts), store)


def has_written(job_id: int, store: CheckpointStore) -> bool:
    """Return whether a complete checkpoint is there that this job wrote."""
    return any(run_of(store, ref).startswith(f"{job_id}-") for ref in stored(store) or ())


def run_of(store: CheckpointStore, ref: CheckpointId) -> str:
    """Return the run that wrote a complete checkpoint, "" if its files do not say."""
    return _written_as(store, ref, store.world_size(ref))[0]


def _written_as(store: CheckpointStore, ref: CheckpointId, size: int) -> tuple[str, str]:
    """Return by which run, and with which layout."""
    try:
        header = read_sidecar(store.part_path(ref, 0, size)).header
    except CheckpointError:
        return "", ""
    return header.run_id, header.layout or replicated(size)
