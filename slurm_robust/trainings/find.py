"""Finds the job or the training that a person names by its id, folder or name, and reads its journal."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from slurm_robust.home import page
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.events import AnyEvent, RunStarted, decode_event
from slurm_robust.model.job import JOBS_FOLDER, JobDirectory
from slurm_robust.model.journal import parse, read_bytes
from slurm_robust.model.record import Record
from slurm_robust.model.training import ASIDE, PREFIX, Chapter, TrainingDirectory, training_of, trainings
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.records import SlurmJob
from slurm_robust.terminal.console import BYTES, Bar
from slurm_robust.trainings.folders import listed, own_folders
from slurm_robust.trainings.slurmview import SlurmView, ask_slurm, make_slurm, newest_run, waits_for
from slurm_robust.util.files import read_regular
from slurm_robust.util.text import one_line, some_of

_ID = re.compile(r"(?P<job>\d+)(?:_(?P<task>\d+))?")
# Other ids that squeue and sacct show: components of heterogeneous jobs, waiting tasks, steps.
_LOOKS_LIKE_ID = re.compile(r"\d+\+\d+(\.\w+)?|\d+_\[.*\]|\d+(_\d+)?\.(\d+|batch|extern)")


class NoSuchJob(SrobustError):
    """No job directory with a journal was found."""

    exit_code = ExitCode.NO_INPUT


class NotBegun(NoSuchJob):
    """Slurm knows the job, or does not answer, and there is no journal. ``may_begin``: one may still come."""

    def __init__(self, text: str, *, fix: str, may_begin: bool) -> None:
        super().__init__(text, fix=fix)
        self.may_begin = may_begin


def find(name: str, root: str | None, slurm: SlurmClient | None = None) -> JobDirectory:
    """Return the folder of the job that a person named.

    ``name`` is a job id, the id of an array's task as squeue shows it (``38_1``), a folder, or the name of a
    training, which stands for its newest job. Ids and names are looked up in ``root``, else in
    ``srobust-jobs`` here; only if that has no such id, Slurm is asked for the folder from which the job was
    submitted. Raises :class:`NoSuchJob` naming the places.
    """
    found = named(name, root, slurm)
    return newest_job(found, slurm or make_slurm()) if isinstance(found, TrainingDirectory) else found


def named(name: str, root: str | None, slurm: SlurmClient | None = None) -> JobDirectory | TrainingDirectory:
    """Return the job or the training that a person named. As :func:`find`."""
    if not name:
        raise NoSuchJob("JOB is empty", fix="give a job's id, or its folder", code=ExitCode.USAGE)
    number = _ID.fullmatch(name)
    if number is None:
        return _by_name(name, root)
    task = number["task"] is not None
    here = root_of(root)
    found, closed = _search(here, name, task)
    if found is not None:
        return found
    training = None
    with suppress(NoSuchJob):  # a folder that may not be read is no hint at a training of that name
        training = find_training(name, root)
    if training is not None:
        return training
    slurm = slurm or make_slurm()
    view = ask_slurm(slurm, int(number["job"]))
    roots = [here]
    if not root and view.job is not None and view.job.work_dir:
        roots = list(dict.fromkeys((here, Path(view.job.work_dir) / JOBS_FOLDER)))
        found, there = _search(roots[-1], name, task)
        if found is not None:
            return found
        closed = there or closed
    if closed is not None:
        raise closed
    places = " or ".join(str(each / name) for each in roots)
    # Slurm's record is of the whole array, which says little about one task; that there is none says more.
    own = listed(own_folders(here))
    hint = f"your jobs here: {own}; or " if own else ""
    if task:
        raise _nothing(name, places, hint, view if view.silent else None)
    raise _without_journal(name, places, view, slurm, hint)


def root_of(root: str | None) -> Path:
    """Return the folder with the folders of jobs and trainings: ``--job-dir``, else ``srobust-jobs`` here."""
    return Path(root) if root else Path.cwd() / JOBS_FOLDER


def _by_name(name: str, root: str | None) -> JobDirectory | TrainingDirectory:
    """Return the training or the folder that has a name which is no job id."""
    path = Path(name)
    if _LOOKS_LIKE_ID.fullmatch(name) and not path.exists():
        raise _no_such_id(name)
    training = find_training(name, root)
    if training is not None and not (path.is_dir() and JobDirectory(path).journal.exists()):
        return training
    if "/" not in name and not path.exists():
        raise no_such_training(name, root, "there is neither a training nor a folder")
    return _folder(path)


# -- trainings ---------------------------------------------------------------------------------------


def find_training(name: str, root: str | None) -> TrainingDirectory | None:
    """Return the training that a person named by its name or folder, with a chapter; None if there is none.

    Raises :class:`NoSuchJob` for one that may not be read.
    """
    training = TrainingDirectory(Path(name))
    if "/" not in name:
        training = TrainingDirectory.of(root_of(root), name.removeprefix(PREFIX))
    elif not training.path.name.startswith(PREFIX):
        return None
    try:
        return training if training.read() else None
    except OSError as error:
        raise unreadable(training.path, error) from error


def no_such_training(name: str, root: str | None, text: str) -> NoSuchJob:
    """Return the error for a name that nothing has; it lists those that there are."""
    where = root_of(root)
    try:
        known = [one.path.name.removeprefix(PREFIX) for one in trainings(where)]
    except OSError as error:
        return unreadable(where, error)
    said = f"{text} {name}; {where} has " + (f"the trainings {some_of(known)}" if known else "no training")
    return NoSuchJob(
        said, fix="give a job's id or folder, a training's name, or the --job-dir of 'srobust run'"
    )


def moved_aside(root: Path, name: str) -> tuple[str, ...]:
    """Return the folders in ``root`` of trainings ``name`` that made room for a new one, if readable."""
    try:
        every = trainings(root)
    except OSError:
        return ()
    return tuple(one.path.name for one in every if one.name == name and ASIDE in one.path.name)


class TrainingPosition(Record):
    """The position of a job among those of its training."""

    training: str
    """Its name as commands take it, also if ``--fresh`` has moved it aside."""
    newest: str | None = None
    """Its newest job as squeue shows it, "" if it is this one; None if that is not known."""
    moved_aside: tuple[str, ...] = ()
    """Folders of other trainings of this name."""


def place_of(directory: JobDirectory, training: str, run_id: str) -> TrainingPosition:
    """Return the position of the job of this folder and run in its ``training``."""
    try:
        found = training_of(directory, training, run_id)
        chapters = found.read() if found is not None else ()
    except OSError:
        found, chapters = None, ()
    own = found.path.name if found is not None else f"{PREFIX}{training}"
    newest = None if not chapters else "" if chapters[-1].run_id == run_id else chapters[-1].job
    aside = tuple(name for name in moved_aside(directory.path.parent, training) if name != own)
    return TrainingPosition(training=own.removeprefix(PREFIX), newest=newest, moved_aside=aside)


def chapter_folder(training: TrainingDirectory, chapter: Chapter) -> JobDirectory | None:
    """Return the present folder of one of its jobs; None if it is gone and another job has its place.

    If it has no journal yet, it is the folder that it will have. Raises ``OSError``.
    """
    first = training.job(chapter).path
    for place in (first, *sorted(first.parent.glob(f"{chapter.folder}.*"))):
        if _has_journal(place) and _run_of(JobDirectory(place)) in ("", chapter.run_id):
            return JobDirectory(place)
    return None if _has_journal(first) else JobDirectory(first)


def _run_of(directory: JobDirectory) -> str:
    """Return the ``run_id`` of a journal, "" if it does not begin with one."""
    try:
        with directory.journal.open("rb") as file:
            first = decode_event(file.readline())
    except msgspec.DecodeError:
        return ""
    return first.run_id if isinstance(first, RunStarted) else ""


def newest_job(training: TrainingDirectory, slurm: SlurmClient) -> JobDirectory:
    """Return the folder of the newest job of a training that has begun.

    Raises :class:`NotBegun` while the newest one is only pending or starting, :class:`NoSuchJob`.
    """
    try:
        chapters = training.read()
        for chapter in reversed(chapters):
            directory = chapter_folder(training, chapter)
            if directory is not None and _has_journal(directory.path):
                return directory
            if chapter is chapters[-1] and directory is not None:
                _check_starting(training, chapter, slurm)
    except OSError as error:
        raise unreadable(training.path, error) from error
    raise NoSuchJob(
        f"none of the jobs of training {training.name} has a folder any more",
        fix=f"'srobust training {training.name}' shows what is left",
    )


def _check_starting(training: TrainingDirectory, chapter: Chapter, slurm: SlurmClient) -> None:
    """Raise :class:`NotBegun` for a job without a journal that Slurm has, or may have."""
    view = ask_slurm(slurm, chapter.job_id)
    if not view.goes_on:
        return
    how = "is only starting"
    if view.job is not None and view.job.is_pending:
        how = f"is pending ({view.job.reason or 'None'})"
    elif view.away:
        how = f"has no journal yet, and Slurm {view.silent}"
    raise NotBegun(
        f"job {chapter.job}, the newest of training {training.name}, {how}",
        fix=f"try again in a few seconds; 'srobust training {training.name}' shows the jobs before it",
        may_begin=True,
    )


# -- folders -----------------------------------------------------------------------------------------


def _folder(path: Path) -> JobDirectory:
    try:
        if _has_journal(path):
            return JobDirectory(path)
        if not path.is_dir():
            raise NoSuchJob(f"there is no folder {path}", fix="give a job's id, or its folder")
        begun = JobDirectory(path).journal.exists()
    except OSError as error:
        raise unreadable(path, error) from error
    text = f"{JobDirectory(path).journal} is empty" if begun else f"{path} has no journal.jsonl"
    raise NoSuchJob(
        f"{text}: its run has not begun, or it is no job's folder",
        fix="wait until the job has begun, or give the folder of another job",
    )


def _search(root: Path, name: str, task: bool) -> tuple[JobDirectory | None, NoSuchJob | None]:
    """Return the folder of job ``name`` below ``root``, or why it cannot be read."""
    try:
        places = [root / name, *sorted(root.glob(f"{name}.*"))]
        found = next((place for place in places if _has_journal(place)), None)
        if found is None and task:
            found = next(_of_task(root, name), None)
    except (FileNotFoundError, NotADirectoryError):
        return None, None
    except OSError as error:
        return None, unreadable(root / name, error)
    return (JobDirectory(found) if found is not None else None), None


REFUSALS = {c for c in ExitCode if ExitCode.USAGE <= c <= ExitCode.CONFIG} - {ExitCode.REQUEUED}
"""Exit codes with which ``srobust run`` ends before it writes a journal."""


MAX_LOG = 1 << 20
"""The log of a job that has not begun is hardly ever larger."""

SAID = re.compile(r"srobust: \d{4}-\d\d-\d\dT[\d:]{8} (.+)")
"""A line of the job's log that slurm_robust wrote."""


def _has_journal(folder: Path) -> bool:
    """Return whether it has an event. Raises ``OSError`` if it may not be read."""
    try:
        # Not Path.exists: from Python 3.14 on it says False of what may not be read.
        return os.stat(JobDirectory(folder).journal).st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _nothing(name: str, places: str, hint: str, view: SlurmView | None = None) -> NoSuchJob:
    """Return why there is no job of this name. ``view``: what Slurm says of it, if that counts."""
    said = ""
    if view is not None:
        said = f", and Slurm {view.silent or 'does not know it (any more)'}"
        hint = f"{view.fix}; or {hint}" if view.fix else hint
    return NoSuchJob(
        f"no journal of job {name} in {places}{said}",
        fix=f"{hint}give --job-dir as 'srobust run' had it, or the job's folder instead of its number",
    )


def _without_journal(job_id: str, places: str, view: SlurmView, slurm: SlurmClient, hint: str) -> NoSuchJob:
    """Return why a job has no journal, by its state in Slurm. ``hint``: which jobs there are."""
    had = "if its 'srobust run' has a --job-dir, give the same"
    if view.away:
        text = f"no journal of job {job_id} in {places}, and Slurm {view.silent}"
        fix = "try again when Slurm can say from where the job was submitted, or give its folder"
        return NotBegun(text, fix=fix, may_begin=True)
    if view.is_over:
        row = view.row or newest_run(slurm, int(job_id))
        code = f" {row.exit_code}:{row.signal}" if row is not None else ""
        ended = f"job {job_id} has ended ({view.state}{code}), and there is no journal of it in {places}: "
        why = "it ended before srobust began, or found its training finished, or its folder was removed"
        if row is not None and row.exit_code in REFUSALS:
            why = f"by its exit code 'srobust run' refused to begin: {ExitCode(row.exit_code).name}"
        log = _log_of(view.job, job_id) if view.job is not None else ""
        text = f"{ended}{why}; see its log{' ' + log if log else ''}"
        return NotBegun(text, fix=had, may_begin=False)
    if view.job is not None and view.job.is_pending:
        text = f"job {job_id} is pending ({view.job.reason or 'None'}): it has not started yet"
        waits = waits_for(slurm, view.job, None)
        fix = (waits.advice if waits is not None else "") or f"'srobust logs {job_id} -f' waits for it"
        return NotBegun(text, fix=fix, may_begin=True)
    if view.state:
        text = f"job {job_id} is {view.state}, but srobust has not begun: there is no journal in {places}"
        if view.job is not None and (said := _last_said(_log_of(view.job, job_id))):
            text += f"; its log says: {said}"
        return NotBegun(text, fix=f"try again in a few seconds; {had}", may_begin=True)
    return _nothing(job_id, places, hint, view)


def _log_of(job: SlurmJob, job_id: str) -> str:
    """Return the path of the job's log, "" if Slurm does not say."""
    return job.stdout.replace("%j", job_id).replace("%A", job_id)


def _last_said(log: str) -> str:
    """Return what ``srobust run`` said last in a job's log, such as for what it waits; "" if nothing."""
    try:
        lines = read_regular(Path(log), MAX_LOG).decode(errors="replace").splitlines() if log else []
    except OSError:
        return ""
    said = [found for line in lines if (found := SAID.match(line))]
    return one_line(said[-1][1]) if said else ""


def _of_task(root: Path, task: str) -> Iterator[Path]:
    """Yield folders below ``root`` whose run is this task of an array, the newest first."""
    for folder in sorted(root.iterdir(), key=lambda path: path.name, reverse=True):
        try:
            with JobDirectory(folder).journal.open("rb") as file:
                first = decode_event(file.readline())
        except (OSError, msgspec.DecodeError):
            continue  # not a job's folder, another user's, or one that has just begun
        if isinstance(first, RunStarted) and first.array_task == task:
            yield folder


def _no_such_id(name: str) -> NoSuchJob:
    if "+" in name:
        job_id = name.partition("+")[0]
        text = f"{name} is a component of heterogeneous job {job_id}, in which srobust does not run"
        fix = "submit the training as an ordinary job: one group of nodes, without '#SBATCH hetjob'"
    elif "[" in name:
        job_id = name.partition("_")[0]
        text = f"{name} stands for several tasks of array {job_id}"
        fix = f"give one of them as squeue shows it while it runs, like {job_id}_1"
    else:
        job_id = name.partition(".")[0]
        text = f"{name} is a step of job {job_id}"
        fix = f"give the job: {job_id}"
    return NoSuchJob(text, fix=fix)


class ReadJournal(Record):
    """A job's journal as it was read."""

    events: list[AnyEvent]
    breaks_off: int = 0
    """The line that is torn, the last one, from 1: it is being written, or the file was cut; 0 for none."""


def load_events(directory: JobDirectory, *, quiet: bool = False) -> list[AnyEvent]:
    """Return the events of :func:`load`."""
    return load(directory, quiet=quiet).events


def load(directory: JobDirectory, *, quiet: bool = False) -> ReadJournal:
    """Return the journal. Raises :class:`NoSuchJob` when it cannot be read, ``JournalDamaged``.

    The journal of a job of months takes seconds; ``quiet``: without a bar.
    """
    try:
        data = read_bytes(directory.journal)
        with Bar("reading the journal", len(data), BYTES, quiet=quiet) as bar:
            events, whole = parse(data, str(directory.journal), bar.advance)
    except OSError as error:
        raise unreadable(directory.path, error) from error
    if data and not events:
        raise without_events(directory)
    return ReadJournal(events=events, breaks_off=data.count(b"\n", 0, whole) + 1 if whole < len(data) else 0)


def without_events(directory: JobDirectory) -> NoSuchJob:
    """Return the error for a journal of which nothing counts."""
    return NoSuchJob(
        f"{directory.journal} has no whole event: the job has just begun, its folder was removed "
        "meanwhile, or the file is of another program",
        fix="try again, or give another folder",
    )


def unreadable(folder: Path, error: OSError) -> NoSuchJob:
    """Return the error for a job's folder that storage does not let this user read."""
    if not isinstance(error, PermissionError):
        return NoSuchJob(f"{folder} cannot be read: {error.strerror}")
    return NoSuchJob(
        f"{folder} may not be read by uid {os.getuid()}",
        fix="the job's owner and root can; its folder is closed to all others "
        f"({page('on-call.md#somebody-elses-job')})",
    )
