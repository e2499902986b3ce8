"""The first start of a job: which training it takes, and from which earlier job it goes on.

Everything is checked before anything is changed. The pure part is :mod:`slurm_robust.policy.continuing`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from slurm_robust.checkpoint.adopting import adopt
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.journal import minute
from slurm_robust.model.record import Record
from slurm_robust.model.training import ASIDE, Chapter, TrainingDirectory, encoded, is_shared
from slurm_robust.policy import continuing as policy
from slurm_robust.run.holding import REAL, WaitClock, await_free, await_kept, check_not_held, is_free
from slurm_robust.run.sources import (
    Here,
    StartingPoint,
    find_source,
    has_written,
    newest_that_tells,
    of_folder,
    other_jobs,
    run_of,
    same,
    stored,
)
from slurm_robust.trainings.earlier import jobs_of_script
from slurm_robust.util.files import publish_once
from slurm_robust.util.ours import check_own_folder, make_own_folder
from slurm_robust.util.output import say
from slurm_robust.util.text import count


class ContinueOptions(Record):
    """What the options of ``srobust run`` ask for."""

    training: str = ""
    source: str = ""
    """The value of ``--from``."""
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

    def chosen(self) -> list[str]:
        """Return the options that choose a beginning, as they were given."""
        source = [f"--from {self.source}"] if self.source else []
        step = [f"--step {self.step}"] if self.step is not None else []
        return [*source, *step, *(["--fresh"] if self.fresh else [])]


NOTHING = ContinueOptions()


class Started(NamedTuple):
    """How the job begins."""

    continued: ev.Continued | None = None
    finished: str = ""
    """Why there is nothing to do, "" if there is."""


def start(wish: ContinueOptions, here: Here) -> Started:
    """Decide how the job begins, take its training, and put its checkpoints in place.

    Raises :class:`PreflightError`, ``NoSuchJob``, ``JournalDamaged``.
    """
    wish.check()
    with _friendly(here.root):
        if wish.training:
            return _take(wish, here)
        if wish.source:
            source = find_source(wish.source, here)
            _check_step(source, wish)
            _check_reach(source, here)
        elif here.requeued and (own := _own(here)) is not None:
            say(f"the journal of job {here.chapter.job} is gone, but its checkpoints are there")
            source = own
        else:
            for line in _hint(here):
                say(line)
            return Started(_renumbered(None, wish, here))
        here.fits(source.event.slots)
        return Started(_go_on(source, wish, here, before=None, chapter=0))


def _own(here: Here) -> StartingPoint | None:
    """Return what this job has written, though its journal is gone; None for nothing."""
    store, job_id = CheckpointStore(here.storage), here.chapter.job_id
    if same(here.storage, here.directory.checkpoints):
        return of_folder(here.storage) if stored(store) else None
    return of_folder(here.storage, job_id) if has_written(job_id, store) else None


# -- a training ------------------------------------------------------------------------------------


def _take(wish: ContinueOptions, here: Here) -> Started:
    training = TrainingDirectory.of(here.root, wish.training)
    while True:
        if training.path.exists():
            check_own_folder(training.path)
        claimed = training.claims()
        # The job that wrote what cannot be read may still run.
        if (path := training.unreadable()) is not None:
            raise PreflightError(
                f"{path}, which says what job took training {training.name} last, cannot be read: storage "
                "lost it, or another version of slurm_robust wrote it; nothing was changed",
                fix=f"use that version; or see that no job of the training runs, and remove {path}",
                code=ExitCode.JOURNAL,
            )
        chapters = training.read()
        others = other_jobs(training, chapters, here)
        if others:
            await_free(others[-1], training.job(others[-1]), here.asked)
        told = newest_that_tells(training, others)
        named = find_source(wish.source, here, of=training) if wish.source else None
        _check_source(named, told, others, wish)
        by_itself = not (wish.fresh or wish.source or wish.step is not None)
        if told is not None and by_itself and (finished := _finished(told, wish, here)):
            return Started(finished=finished)
        source = named or (None if wish.fresh else told or _left(training, here))
        _check_step(source, wish)
        _check_reach(source, here)
        here.fits(source.event.slots if source is not None else 0)
        here.take()
        number = max(len(chapters), *claimed, 0) + 1
        if not _claim(training, number, chapters, here.chapter):
            continue  # another job was faster
        if others:
            # Slurm may have requeued the last job meanwhile: then the training is that job's. It looks for
            # later chapters when it starts: if a claim and a start come at the same time, one sees the other.
            last = others[-1]
            try:
                check_not_held(last, training.job(last), here.asked)
            except BaseException:
                training.claim(number).unlink()
                raise
        if not (wish.fresh and others):
            break
        if (old := _move_aside(training, here)) is not None:
            say(f"training {wish.training} as it was is now {old}")
            others = []
            break
    file = os.open(training.chapters, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, encoded(here.chapter))
        os.fsync(file)
    finally:
        os.close(file)
    if source is None and (told is None or wish.fresh):
        jobs = f" after {count(len(others), 'job')} without a checkpoint" if others else ""
        say(f"training {wish.training} begins{jobs}; folder {training.path}")
        if not (wish.fresh or others):
            for line in _hint(here, wish.training):
                say(line)
        return Started(_renumbered(told, wish, here))
    assert source is not None  # for type checkers: what tells is a source
    return Started(_go_on(source, wish, here, before=told, chapter=len(others) + 1))


def _finished(told: StartingPoint, wish: ContinueOptions, here: Here) -> str:
    """Return why a training whose newest job that trained ended with 0 needs no other one; "" if it does."""
    earlier = told.earlier
    if earlier is None:
        return ""
    ended, started = earlier.state.ended, earlier.started
    if ended is None or not ended.final or ended.code != 0:
        return ""
    if (started.kind, started.command) != (here.kind.value, here.command):
        return ""
    return (
        f"training {wish.training} is finished: job {earlier.name} ended with 0 at {minute(ended.t)}, and "
        "the command is the same. Nothing is started. Another command, or other arguments, would go on from "
        "its newest checkpoint, --step N from that of step N, and --fresh would begin anew"
    )


def _left(training: TrainingDirectory, here: Here) -> StartingPoint | None:
    """Return what its storage has although no journal of its jobs is left; None without any checkpoint.

    Raises :class:`PreflightError` if the folder may be another training's.
    """
    found = stored(CheckpointStore(here.storage))
    if not found:
        return None
    if same(here.storage, training.checkpoints):
        say(f"no journal of an earlier job of training {training.name} is left, so all checkpoints count")
        return of_folder(here.storage)
    raise PreflightError(
        f"{here.storage} has a checkpoint of step {found[0].step} that no job of training {training.name} "
        "is known to have written, and this job would overwrite it",
        fix=f"add --from {here.storage} to go on from it, or give the training a folder of its own "
        "(checkpoint.directory)",
        code=ExitCode.CONFIG,
    )


def _check_source(
    named: StartingPoint | None,
    told: StartingPoint | None,
    chapters: Sequence[Chapter],
    wish: ContinueOptions,
) -> None:
    """Check the source: a training that has a past goes on from one of its own jobs. Raises
    :class:`PreflightError`.
    """
    if named is None or told is None:
        return
    own = named.event.runs[-1:] and named.event.runs[-1] in {chapter.run_id for chapter in chapters}
    if wish.fresh and own:
        raise _usage(
            f"--fresh begins anew, and --from {wish.source} belongs to training {wish.training}",
            "leave out one of them; nothing was moved",
        )
    if not wish.fresh and not own:
        raise _usage(
            f"--from {wish.source} is no job of training {wish.training}, which has checkpoints of its own",
            f"leave out --from to go on with {wish.training}; or give this job another training; or add "
            f"--fresh, which moves {wish.training} aside",
        )


def _check_step(source: StartingPoint | None, wish: ContinueOptions) -> None:
    if wish.step is None:
        return
    found = policy.counted(source.event, stored(source.store) or ()) if source is not None else []
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


def _check_reach(source: StartingPoint | None, here: Here) -> None:
    """Check that what goes into this job's folder is there now: a later run does not look elsewhere.

    Raises :class:`PreflightError`.
    """
    if source is None or same(source.store.path, here.storage):
        return
    event, path, found = source.event, source.store.path, stored(source.store)
    if found is None:
        what = f"the checkpoints in {path} cannot be listed now"
    elif event.stored is not None and not policy.counted(event, found):
        what = f"{path} has no checkpoint that counts, and step {event.stored.step} had been on storage"
    else:
        return
    raise PreflightError(
        f"{what}; nothing was changed",
        fix="bring the folder back and submit again; to begin anew, submit a job of a training with --fresh, "
        "or one without --from",
        code=ExitCode.CHECKPOINTS,
    )


def _are(steps: str) -> str:
    return f"is {steps}" if steps == "none" or steps.startswith("step ") else f"are {steps}"


def _claim(training: TrainingDirectory, number: int, before: Sequence[Chapter], chapter: Chapter) -> bool:
    """Take the training as its chapter ``number``; False if it is not as it was ``before`` any more."""
    make_own_folder(training.path)
    if not publish_once(training.claim(number), encoded(chapter)):
        return False
    if {each.run_id for each in training.read()} == {each.run_id for each in (*before, chapter)}:
        return True
    training.claim(number).unlink()  # a user has moved the training aside meanwhile
    return False


def _move_aside(training: TrainingDirectory, here: Here) -> Path | None:
    """Make room for a new beginning; the present place of the old folder, None if another job was faster."""
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


def _renumbered(told: StartingPoint | None, wish: ContinueOptions, here: Here) -> ev.Continued | None:
    """Return the event for a new beginning among checkpoints that stay: their generations are taken."""
    newest = CheckpointStore(here.storage).newest_generation()
    if not newest:
        return None
    if wish.fresh and told is not None:
        say(
            f"the earlier checkpoints stay in {here.storage}, and are removed one by one as newer ones come "
            "(checkpoint.keep); to keep one: srobust checkpoint export"
        )
    else:
        say(f"{here.storage} has checkpoints of others: they stay there, and this job writes beside them")
    return ev.Continued(
        t=time.time(),
        training=wish.training,
        chapter=int(bool(wish.training)),
        from_job=told.event.from_job if told is not None else 0,
        from_folder=told.event.from_folder if told is not None else str(here.storage),
        generation=max(newest, told.event.generation if told is not None else 0),
        runs=told.event.runs if told is not None else (),
        reason="begins anew in a folder where checkpoints have been",
    )


# -- going on --------------------------------------------------------------------------------------


def _go_on(
    source: StartingPoint, wish: ContinueOptions, here: Here, *, before: StartingPoint | None, chapter: int
) -> ev.Continued:
    """Return the event for the journal. The checkpoints are in this job's folder then; tells all."""
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
    found = stored(source.store)
    if found and (usable := policy.counted(event, found)):
        event = structs.replace(event, stored=usable[0])
        shared = not event.from_job and is_shared(target.path, here.directory)
        if shared and (writer := run_of(source.store, usable[0])):
            # The others that write there go on, and keep and remove their own.
            others = before.event.runs if before is not None else ()
            event = structs.replace(event, runs=tuple(dict.fromkeys((*others, writer))))
    for line in policy.first_lines(event, found, source.reasons, source.jobs):
        say(line)
    if before is not None and not wish.fresh and (text := policy.undone(event, before.event.best_step)):
        say(text)
    if found and wish.step is None and (unknown := policy.newest_unknown(event, found)) is not None:
        say(
            f"step {unknown.step} on storage is passed over: the journal of the job that wrote it is gone; "
            f"to take it, submit a new job with --from {source.store.path}"
        )
    if found is not None and not same(source.store.path, target.path):
        copied = adopt(source.store, target, policy.counted(event, found)[: here.keep])
        if copied:
            say(f"{copied / 1e9:.1f} GB of checkpoints were copied from {source.store.path}")
    return event


def _hint(here: Here, training: str = "") -> Iterator[str]:
    """Yield what earlier jobs of the same script have left: it is only said. ``training``: what begins."""
    jobs = [*jobs_of_script(here.root, here.directory.path, here.kind.value, here.command, here.cwd)]
    same_name = (job for job in jobs if training and job.started.training == training)
    if (before := next(same_name, None)) is not None and (loss := before.loss()):
        yield loss
    newest = next((job for job in jobs if job.newest is not None), None)
    if newest is not None and is_free(newest.chapter, newest.end, here.asked.slurm):
        yield newest.hint(training)


# -- errors ----------------------------------------------------------------------------------------


def _usage(text: str, fix: str) -> PreflightError:
    return PreflightError(text, fix=fix, code=ExitCode.USAGE)


@contextmanager
def _friendly(root: Path) -> Iterator[None]:
    """Raise :class:`PreflightError` for what another user owns, and for what storage refuses."""
    try:
        yield
    except PermissionError as error:
        raise PreflightError(
            f"an earlier job cannot be gone on from: {error}",
            fix=f"only what is yours counts: look at {root} and what you gave to --from; the owner of a "
            "checkpoint can hand it on by 'srobust checkpoint export'",
            code=ExitCode.NO_INPUT,
        ) from error
    except OSError as error:
        raise PreflightError(
            f"storage refuses to read or write in {root}, or in what --from names: {error}",
            fix="submit or requeue the job again when storage works; nothing was overwritten",
            code=ExitCode.JOB_DIR,
        ) from error


def check_still_ours(
    training: TrainingDirectory, run_id: str, job: str, timeout_s: float, clock: WaitClock = REAL
) -> None:
    """Check that a requeued job is still the newest chapter of its training. Raises :class:`PreflightError`.

    ``timeout_s``: for how long a later job may ask Slurm before it keeps the training, or gives it back.
    """
    with _friendly(training.path.parent):
        chapters = await_kept(training, run_id, timeout_s, clock)
        make_own_folder(training.path)
    if chapters and chapters[-1].run_id != run_id:
        is_in = run_id in {chapter.run_id for chapter in chapters}
        what = f"{'gone on with' if is_in else 'begun anew'} training {training.name}"
        raise PreflightError(
            f"job {chapters[-1].job} has {what} since job {job} ended",
            fix=f"nothing is to be done about job {job}, which ends now; to go on with training "
            f"{training.name} after job {chapters[-1].job}, submit a new job",
            code=ExitCode.OTHER_CONTROLLER,
        )
