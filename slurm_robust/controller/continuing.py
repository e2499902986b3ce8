"""The first start of a job: which training it takes, and from which earlier job it goes on.

Everything is checked before anything is changed. The pure part is :mod:`slurm_robust.policy.continuing`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from slurm_robust.checkpoint.adopting import adopt
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.part import read_sidecar
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.controller.holding import Asked, await_free, is_free
from slurm_robust.controller.output import say
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.journal import minute
from slurm_robust.model.record import Record
from slurm_robust.model.training import ASIDE, Chapter, TrainingDirectory, encoded, is_name
from slurm_robust.policy import continuing as policy
from slurm_robust.report.earlier import Earlier, earlier_job, newest_of_script
from slurm_robust.report.find import NoSuchJob, find
from slurm_robust.util.files import names_in, publish_once
from slurm_robust.util.ours import check_own_folder, make_own_folder
from slurm_robust.util.text import count

LATEST = "latest"


class Wish(Record):
    """What the options of ``srobust run`` ask for."""

    training: str = ""
    source: str = ""
    """Of ``--from``."""
    step: int | None = None
    fresh: bool = False

    def check(self) -> None:
        """Raise :class:`PreflightError` for what makes no sense together."""
        if self.step is not None and self.step < 0:
            raise _usage(f"--step {self.step}: steps are counted from 0", "give the number of a step")
        if self.fresh and self.step is not None:
            raise _usage(
                "--fresh begins anew, and --step goes on from an earlier step",
                "leave out one of them; nothing was moved",
            )
        if self.fresh and not self.training:
            raise _usage(
                "--fresh moves the folder of a training aside, and this job has none",
                "leave it out: a job without --training begins anew; or give --training NAME",
            )
        if self.step is not None and not (self.training or self.source):
            raise _usage(
                "--step chooses a checkpoint of an earlier job, and none is named",
                "add --training NAME, or --from JOB",
            )


NOTHING = Wish()


class Here(NamedTuple):
    """The job that starts."""

    directory: JobDirectory
    chapter: Chapter
    """It, as it would be written down."""
    storage: Path
    """Where its checkpoints will be."""
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    keep: int
    """Checkpoints that are kept."""
    asked: Asked
    fits: Callable[[int], object] = lambda _: None
    """Raises :class:`PreflightError` where the nodes are too few after a job of so many slots (0: any)."""

    @property
    def root(self) -> Path:
        """The folder of the folders of all jobs."""
        return self.directory.path.parent


class Started(NamedTuple):
    """How the job begins."""

    continued: ev.Continued | None = None
    finished: str = ""
    """Why there is nothing to do, "" where there is."""


class Source(NamedTuple):
    """From where it goes on."""

    event: ev.Continued
    store: CheckpointStore
    reasons: Mapping[CheckpointId, str] = {}
    earlier: Earlier | None = None
    jobs: Mapping[int, str] = {}
    """The ids of jobs as squeue shows them."""


def start(wish: Wish, here: Here) -> Started:
    """Decide how the job begins, take its training, and put its checkpoints in place.

    Raises :class:`PreflightError`, ``NoSuchJob``, ``JournalDamaged``.
    """
    wish.check()
    with _friendly(here.root):
        if wish.training:
            return _take(wish, here)
        if not wish.source:
            for line in _hint(here):
                say(line)
            return Started()
        source = _source(wish.source, here)
        _check_step(source, wish)
        here.fits(source.event.slots)
        return Started(_go_on(source, wish, here, before=None, chapter=0))


# -- a training ------------------------------------------------------------------------------------


def _take(wish: Wish, here: Here) -> Started:
    training = TrainingDirectory.of(here.root, wish.training)
    while True:
        if training.path.exists():
            check_own_folder(training.path)
        claimed = training.claims()
        chapters = training.read()
        others = [chapter for chapter in chapters if not _is_mine(chapter, here)]
        if others:
            await_free(others[-1], training.job(others[-1]), here.asked)
        told = _newest_that_tells(training, others)
        named = _source(wish.source, here, of=training) if wish.source else None
        _check_source(named, told, others, wish)
        by_itself = not (wish.fresh or wish.source or wish.step is not None)
        if told is not None and by_itself and (finished := _finished(told, others[-1], wish, here)):
            return Started(finished=finished)
        source = named or (None if wish.fresh else told)
        _check_step(source, wish)
        here.fits(source.event.slots if source is not None else 0)
        number = max(len(chapters), *claimed, 0) + 1
        if not _claim(training, number, chapters, here.chapter):
            continue  # another job was faster
        if not (wish.fresh and others):
            break
        if (old := _move_aside(training, here)) is not None:
            say(f"training {wish.training} as it was is now {old}")
            others = []
            break
    _write(training, here.chapter)
    if source is None and (told is None or wish.fresh):
        jobs = f" after {count(len(others), 'job')} without a checkpoint" if others else ""
        say(f"training {wish.training} begins{jobs}; folder {training.path}")
        return Started(_renumbered(told, wish, here) if told is not None else None)
    assert source is not None  # for type checkers: what tells is a source
    return Started(_go_on(source, wish, here, before=told, chapter=len(others) + 1))


def _is_mine(chapter: Chapter, here: Here) -> bool:
    """Whether it is this job, which took the training in a start that did not get far."""
    own = here.chapter
    same = (chapter.job_id, chapter.cluster, chapter.folder) == (own.job_id, own.cluster, own.folder)
    if chapter.submitted is None or own.submitted is None:
        return same
    return same and own.submitted >= chapter.submitted


def _newest_that_tells(training: TrainingDirectory, chapters: Sequence[Chapter]) -> Source | None:
    """What counts after the newest of these jobs that has something to tell."""
    for chapter in reversed(chapters):
        found = earlier_job(training.job(chapter), chapter.run_id)
        if found is not None and policy.tells(found.state):
            return _of_job(found)._replace(jobs={each.job_id: each.job for each in chapters})
    return None


def _of_job(found: Earlier) -> Source:
    check_own_folder(found.directory.path)
    event = policy.lineage(found.state, str(found.directory.path), time.time())
    return Source(event, CheckpointStore(found.storage), found.state.banned, found, found.jobs)


def _finished(told: Source, newest: Chapter, wish: Wish, here: Here) -> str:
    """Why a training whose newest job ended with 0 needs no other one; "" where it does."""
    earlier = told.earlier
    if earlier is None or earlier.started.run_id != newest.run_id:
        return ""
    ended, started = earlier.state.ended, earlier.started
    if ended is None or not ended.final or ended.code != 0:
        return ""
    if (started.kind, started.command) != (here.kind.value, here.command):
        return ""
    return (
        f"training {wish.training} is finished: job {newest.job} ended with 0 at {minute(ended.t)}, and the "
        "command is the same. Nothing is started. Another command, or other arguments, would go on from its "
        "newest checkpoint, --step N from that of step N, and --fresh would begin anew"
    )


def _check_source(named: Source | None, told: Source | None, chapters: Sequence[Chapter], wish: Wish) -> None:
    """A training that has a past goes on from one of its own jobs. Raises :class:`PreflightError`."""
    if named is None or told is None:
        return
    own = named.event.runs[-1:] and named.event.runs[-1] in {chapter.run_id for chapter in chapters}
    if wish.fresh and own:
        raise _usage(
            f"--fresh begins anew, and --from {wish.source} is a part of training {wish.training}",
            "leave out one of them; nothing was moved",
        )
    if not wish.fresh and not own:
        raise _usage(
            f"--from {wish.source} is no job of training {wish.training}, which has checkpoints of its own",
            f"leave out --from to go on with {wish.training}; or give this job another training; or add "
            f"--fresh, which moves {wish.training} aside",
        )


def _check_step(source: Source | None, wish: Wish) -> None:
    if wish.step is None:
        return
    found = policy.counted(source.event, _stored(source.store) or ()) if source is not None else []
    if wish.step not in {ref.step for ref in found}:
        whose = f"training {wish.training}" if wish.training else f"--from {wish.source}"
        steps = policy.steps_text(found)
        raise PreflightError(
            f"{whose} has no checkpoint of step {wish.step} on storage that counts; there {_are(steps)}",
            fix="give one of those to --step, or leave it out for the newest"
            if found
            else "leave out --step",
            code=ExitCode.NO_INPUT,
        )


def _are(steps: str) -> str:
    return f"is {steps}" if steps == "none" or steps.startswith("step ") else f"are {steps}"


def _claim(training: TrainingDirectory, number: int, before: Sequence[Chapter], chapter: Chapter) -> bool:
    """Take the training as its chapter ``number``; False where it is not as it was ``before`` any more."""
    make_own_folder(training.path)
    if not publish_once(training.claim(number), encoded(chapter)):
        return False
    if {each.run_id for each in training.read()} == {each.run_id for each in (*before, chapter)}:
        return True
    training.claim(number).unlink()  # somebody has moved the training aside meanwhile
    return False


def _write(training: TrainingDirectory, chapter: Chapter) -> None:
    file = os.open(training.chapters, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, encoded(chapter))
        os.fsync(file)
    finally:
        os.close(file)


def _move_aside(training: TrainingDirectory, here: Here) -> Path | None:
    """Make room for a new beginning; where the old folder is now, None where another job was faster."""
    name = f"{training.path.name}{ASIDE}{minute(time.time())}"
    target, number = training.path.with_name(name), 2
    while target.exists():
        target, number = training.path.with_name(f"{name}-{number}"), number + 1
    training.path.rename(target)
    old = TrainingDirectory(target)
    for path in map(old.claim, old.claims()):
        if path.read_bytes() == encoded(here.chapter):
            path.unlink()  # it is no chapter of the old one
    return target if _claim(training, 1, (), here.chapter) else None


def _renumbered(told: Source, wish: Wish, here: Here) -> ev.Continued | None:
    """For a new beginning among checkpoints that stay where they are: their generations are taken."""
    newest = CheckpointStore(here.storage).newest_generation()
    if not newest:
        return None
    return ev.Continued(
        t=time.time(),
        training=wish.training,
        chapter=1,
        from_job=told.event.from_job,
        from_folder=told.event.from_folder,
        generation=max(newest, told.event.generation),
        reason="begins anew (--fresh) in a folder of checkpoints that stay",
    )


# -- going on --------------------------------------------------------------------------------------


def _go_on(source: Source, wish: Wish, here: Here, *, before: Source | None, chapter: int) -> ev.Continued:
    """The event for the journal. The checkpoints are in this job's folder when this returns; tells all."""
    event = source.event if wish.step is None else policy.until(source.event, wish.step)
    target = CheckpointStore(here.storage)
    generation = max(event.generation, target.newest_generation())
    runs = event.runs
    if before is not None:
        generation = max(generation, before.event.generation)
        runs = tuple(dict.fromkeys((*before.event.runs, *runs)))
    reason = f"chosen by --step {wish.step}" if wish.step is not None else event.reason
    event = structs.replace(
        event, training=wish.training, chapter=chapter, generation=generation, runs=runs, reason=reason
    )
    stored = _stored(source.store)
    for line in policy.first_lines(event, stored, source.reasons, source.jobs):
        say(line)
    if stored is not None and not _same(source.store.path, target.path):
        copied = adopt(source.store, target, policy.counted(event, stored)[: here.keep])
        if copied:
            say(f"{copied / 1e9:.1f} GB of checkpoints were copied from {source.store.path}")
    return event


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _stored(store: CheckpointStore) -> list[CheckpointId] | None:
    """What is complete there; None where storage does not say."""
    try:
        return store.complete()
    except OSError:
        return None


# -- --from ----------------------------------------------------------------------------------------


def _source(text: str, here: Here, of: TrainingDirectory | None = None) -> Source:
    """The job, training or folder that a person named. ``of``: the training that this job has taken.

    Raises :class:`PreflightError`, ``NoSuchJob``.
    """
    if text == LATEST:
        newest = newest_of_script(here.root, here.directory.path, here.kind.value, here.command, here.cwd)
        if newest is None:
            raise PreflightError(
                f"--from latest: in {here.root} no job of {here.command[0]}, submitted from {here.cwd}, has "
                "left a checkpoint",
                fix="give a job's id, or its folder; or leave out --from to begin anew",
                code=ExitCode.NO_INPUT,
            )
        return _free(newest, here)
    path = Path(here.cwd, text)
    named = TrainingDirectory.of(here.root, text) if is_name(text) else None
    if named is not None and named.path.is_dir() and not (text.isdigit() and (here.root / text).is_dir()):
        return _of_training(named, here, of)
    if TrainingDirectory(path).chapters.exists():
        return _of_training(TrainingDirectory(path), here, of)
    if path.is_dir() and not JobDirectory(path).journal.exists() and _has_checkpoints(path):
        return _of_folder(path)
    try:
        directory = find(text, str(here.root))
    except NoSuchJob:
        if not path.is_dir():
            directory = find(text, None)  # submitted from elsewhere
        else:
            raise
    earlier = earlier_job(JobDirectory(Path(os.path.abspath(directory.path))))
    if earlier is None or not policy.tells(earlier.state):
        raise PreflightError(
            f"--from {text}: job {text} ended before its training began, so it has no checkpoint",
            fix="give an earlier job, or leave out --from to begin anew",
            code=ExitCode.NO_INPUT,
        )
    return _free(earlier, here)


def _free(earlier: Earlier, here: Here) -> Source:
    """``earlier``, which must have ended."""
    source = _of_job(earlier)
    if earlier.directory.path != here.directory.path:
        await_free(
            earlier.chapter, earlier.directory, here.asked._replace(what=f"the folder of job {earlier.name}")
        )
    return source


def _of_training(training: TrainingDirectory, here: Here, of: TrainingDirectory | None) -> Source:
    check_own_folder(training.path)
    chapters = [chapter for chapter in training.read() if not _is_mine(chapter, here)]
    if chapters and (of is None or not _same(of.path, training.path)):
        asked = here.asked._replace(what=f"training {training.name}")
        await_free(chapters[-1], training.job(chapters[-1]), asked)
    found = _newest_that_tells(training, chapters)
    if found is None:
        raise PreflightError(
            f"no job of training {training.name} in {training.path} has left a checkpoint",
            fix="give another job, training or folder, or leave out --from to begin anew",
            code=ExitCode.NO_INPUT,
        )
    return found


def _has_checkpoints(path: Path) -> bool:
    return any(name.startswith("gen-") for name in names_in(path))


def _of_folder(path: Path) -> Source:
    """A folder of checkpoints that somebody has put somewhere."""
    check_own_folder(path)
    store = CheckpointStore(path)
    sizes = {ref: store.world_size(ref) for ref in store.complete()}
    runs: dict[str, None] = {}
    for ref, size in sizes.items():
        try:
            runs[read_sidecar(store.part_path(ref, 0, size)).header.run_id] = None
        except CheckpointError:
            continue
    if not sizes:
        raise PreflightError(
            f"no checkpoint in {path} is complete",
            fix="give another folder, or leave out --from to begin anew",
            code=ExitCode.NO_INPUT,
        )
    return Source(policy.of_folder(str(path), sizes, tuple(runs), time.time()), store)


def _hint(here: Here) -> Iterator[str]:
    """What an earlier job of the same script has left: it is only said."""
    newest = newest_of_script(here.root, here.directory.path, here.kind.value, here.command, here.cwd)
    if newest is not None and is_free(newest.chapter, newest.end, here.asked.slurm):
        yield newest.hint()


# -- errors ----------------------------------------------------------------------------------------


def _usage(text: str, fix: str) -> PreflightError:
    return PreflightError(text, fix=fix, code=ExitCode.USAGE)


@contextmanager
def _friendly(root: Path) -> Iterator[None]:
    """Raise :class:`PreflightError` for what storage refuses."""
    try:
        yield
    except OSError as error:
        raise PreflightError(
            f"an earlier job cannot be gone on from: {error}",
            fix=f"only what is yours counts: look at {root} and what you gave to --from; the owner of a "
            "checkpoint can hand it on by 'srobust checkpoint export'",
            code=ExitCode.NO_INPUT,
        ) from error


def check_still_ours(training: TrainingDirectory, run_id: str, job: str) -> None:
    """A job that was requeued is still the newest chapter of its training. Raises :class:`PreflightError`."""
    with _friendly(training.path.parent):
        chapters = training.read()
        make_own_folder(training.path)
    if chapters and chapters[-1].run_id != run_id and run_id in {chapter.run_id for chapter in chapters}:
        raise PreflightError(
            f"job {chapters[-1].job} has gone on with training {training.name} since job {job} ended",
            fix=f"end this job (scancel {job}); a new one goes on from the newest checkpoint",
            code=ExitCode.OTHER_CONTROLLER,
        )
