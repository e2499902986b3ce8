"""``srobust checkpoint rm`` and ``prune``: remove checkpoints from storage that no job needs any more."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.inventory.listing import NoSuchCheckpoint, friendly
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import fold
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.model.state import JobState
from slurm_robust.model.training import PREFIX, is_shared, training_of
from slurm_robust.policy.continuing import steps_text
from slurm_robust.policy.removal import Stock, needed, prunable, removal
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.terminal.console import show
from slurm_robust.trainings.earlier import earlier_job
from slurm_robust.trainings.find import load_events, named, newest_job
from slurm_robust.trainings.jobs import Begun, ChapterState, NewestJob, newest_of, storage
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.files import disk_use, free_on
from slurm_robust.util.text import count, one_line, size_text


class Needed(SrobustError):
    """A checkpoint that should be removed is still needed."""

    exit_code = ExitCode.REFUSED


DECLINED = 1
"""The exit code if a person answers no."""


class NotSure(SrobustError):
    """There is no terminal to ask at, or what was asked for has changed."""

    exit_code = ExitCode.USAGE


class Shelf(NamedTuple):
    """The checkpoints on storage of one training, or of a job without one."""

    whose: str
    store: CheckpointStore
    stock: Stock


class RemovalOptions(Record):
    """How it was asked for."""

    yes: bool = False
    """Without a question."""
    dry_run: bool = False
    json: bool = False
    force: bool = False


class Removed(Record):
    """What was done, or would be."""

    whose: str
    storage: str
    removed: tuple[str, ...]
    """Checkpoints, oldest first."""
    nbytes: int
    """Bytes of these."""
    incomplete: int
    """How many of them lacked parts."""
    left: tuple[str, ...]
    """Complete ones that stay, newest first."""
    left_nbytes: int
    free: int | None
    """Bytes that storage has free now, None if it does not say."""
    dry_run: bool
    warnings: tuple[str, ...] = ()
    """Names those that needed what is gone."""


def rm_main(name: str, steps: Sequence[str], options: RemovalOptions, *, job_dir: str | None) -> int:
    """Remove checkpoints by their steps. Raises ``NoSuchJob``, ``NoAccess`` and the errors of this module."""

    def plan(shelf: Shelf) -> tuple[CheckpointId, ...]:
        wanted = chosen(shelf, steps)
        found = removal(shelf.stock, wanted, force=options.force)
        if found.refused:
            why = "; ".join(f"step {ref.step}: {text}" for ref, text in found.refused.items())
            fix = "leave these out, or add --force if no job shall ever go on from there"
            raise Needed(
                f"nothing was removed: {shelf.whose} needs what was named: {why}",
                fix="wait until the job has ended" if options.force else fix,
            )
        return found.remove

    return _main(name, plan, options, job_dir)


def prune_main(name: str, keep: int | None, options: RemovalOptions, *, job_dir: str | None) -> int:
    """Remove all but the newest ``keep``, by default as many as the job keeps. Raises as :func:`rm_main`."""

    def plan(shelf: Shelf) -> tuple[CheckpointId, ...]:
        return prunable(shelf.stock, keep if keep is not None else shelf.stock.keep)

    return _main(name, plan, options, job_dir)


Plan = Callable[[Shelf], tuple[CheckpointId, ...]]


def _main(name: str, plan: Plan, options: RemovalOptions, job_dir: str | None) -> int:
    slurm = make_slurm()
    with friendly():
        shelf = shelf_of(name, job_dir, slurm)
        refs = plan(shelf)
        if refs and not options.dry_run and not options.yes:
            if not _may(shelf, refs):
                print("nothing was removed", file=sys.stderr)
                return DECLINED
            shelf = shelf_of(name, job_dir, slurm)  # the question may have stood there for long
            if (now := plan(shelf)) != refs:
                raise NotSure(
                    f"the checkpoints of {shelf.whose} have changed since: now {_steps(now)} would go",
                    fix="look again ('srobust checkpoint ls'); nothing was removed",
                )
        done = remove(shelf, refs, dry_run=options.dry_run)
    show(done, partial(render, shelf), json=options.json)
    return 0


def remove(shelf: Shelf, refs: Sequence[CheckpointId], *, dry_run: bool) -> Removed:
    """Remove ``refs``, and tell what that freed.

    Raises ``OSError``, :class:`NotSure` while another process prunes.
    """
    store, why = shelf.store, needed(shelf.stock)
    nbytes = sum(disk_use(store.folder(ref)) for ref in refs)
    if refs and not dry_run:
        generation = shelf.stock.generation if shelf.stock.holder else None
        if not store.remove(refs, generation):
            raise NotSure("another process removes checkpoints there right now", fix="try again in a minute")
    gone = set(refs)
    left = [ref for ref in sorted(shelf.stock.complete, reverse=True) if ref not in gone]
    return Removed(
        whose=shelf.whose,
        storage=str(store.path),
        removed=tuple(map(str, sorted(refs))),
        nbytes=nbytes,
        incomplete=len(gone.intersection(shelf.stock.incomplete)),
        left=tuple(map(str, left)),
        left_nbytes=sum(disk_use(store.folder(ref)) for ref in left),
        free=free_on(store.path),
        dry_run=dry_run,
        warnings=tuple(f"step {ref.step}: {why[ref]}" for ref in sorted(gone) if ref in why),
    )


# -- whose they are, and who needs them --------------------------------------------------------------


def shelf_of(name: str, job_dir: str | None, slurm: SlurmClient) -> Shelf:
    """Return the checkpoints of the training or the job that a person named.

    For a chapter, those of its training.

    Raises ``NoSuchJob``, ``JournalDamaged``, ``OSError``.
    """
    found = named(name, job_dir, slurm)
    if isinstance(found, JobDirectory):
        events = load_events(found)
        state = fold(events)
        training = training_of(found, state.training, state.run_id) if state.training else None
        if training is None:
            earlier = earlier_job(found)
            assert earlier is not None  # its journal has been read
            job = Begun(chapter=earlier.chapter, directory=found, events=events)
            store, now = store_of(earlier.storage, found, state), NewestJob.of(job, slurm)
            return Shelf(f"job {earlier.name}", store, stock_of(store, found, state, now))
        found = training
    _, newest, known = newest_of(found, slurm)
    if known is None:
        newest_job(found, slurm)  # says why no journal can tell which checkpoints count
    assert known is not None
    state = fold(known.events)
    store, now = store_of(storage(found, known), known.directory, state), NewestJob.of(newest or known, slurm)
    whose = f"training {found.path.name.removeprefix(PREFIX)}"
    return Shelf(whose, store, stock_of(store, known.directory, state, now))


def store_of(path: Path, directory: JobDirectory, state: JobState) -> CheckpointStore:
    """Return what a job and those before it have written to ``path``."""
    runs = (state.run_id, *(state.continued.runs if state.continued is not None else ()))
    return CheckpointStore(path, runs=runs if is_shared(path, directory) else ())


def stock_of(store: CheckpointStore, directory: JobDirectory, state: JobState, now: NewestJob) -> Stock:
    """Return what is on storage, and what decides about it. Raises ``OSError``."""
    present = sorted(store.present())
    whole = set(store.complete())
    complete = tuple(ref for ref in reversed(present) if ref in whole)
    # How many the job keeps, and after how many steps one for good; else the defaults
    keep, keep_every = 2, None
    try:
        keep = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec).copies.keep
        plan = msgspec.json.decode((directory.path / "plan.json").read_bytes(), type=_Plan)
        keep_every = plan.config.checkpoint.keep_every
    except (OSError, *UNREADABLE):
        pass  # an old folder, or a copy of the journal alone
    ended = state.ended if state.ended is not None and state.ended.final else None
    world = state.world
    open_ = {*world.unsealed, *((world.generation,) if world.running else ())}
    # The newest step that counts of each generation of which that is known, -1 for none.
    sealed = {g: world.sealed.get(g, -1) for g in range(1, world.generation + 1) if g not in open_}
    sealed |= {g: step for g, step in world.good_steps.items() if g in open_}
    runs = now.has_begun and bool(now.holder) and now.state is not ChapterState.PENDING
    back = state.candidate.checkpoint if state.candidate is not None else None
    return Stock(
        complete=complete,
        incomplete=tuple(ref for ref in present if ref not in whole),
        sealed=sealed,
        banned=world.banned,
        latest=store.latest(),
        keep=keep,
        keep_every=keep_every,
        holder=now.job if runs else "",
        generation=world.generation,
        restored=world.restored,
        # A job that Slurm is still ending may be requeued.
        waiting=now.job if now.may_hold and not runs else "",
        finished=ended is not None and ended.code == 0 and not now.may_hold,
        others={back: f"release {state.release} would be rolled back to it"} if back is not None else {},
    )


class _Checkpoint(Record):
    keep_every: int | None = None


class _Config(Record):
    checkpoint: _Checkpoint = _Checkpoint()


class _Plan(Record):
    config: _Config = _Config()


def chosen(shelf: Shelf, steps: Sequence[str]) -> tuple[CheckpointId, ...]:
    """Return what a person means by steps and tokens; of a step in several generations all.

    Incomplete ones too.

    Raises :class:`NoSuchCheckpoint` if one of them is not there.
    """
    present = [*shelf.stock.complete, *shelf.stock.incomplete]
    found: dict[CheckpointId, None] = {}
    for step in steps:
        wanted = [ref for ref in present if step in (str(ref.step), str(ref))]
        if not wanted and not step.isdecimal() and not step.startswith("gen-"):
            raise NoSuchCheckpoint(
                f"{one_line(step)!r} is no step",
                fix="give a number, or a whole name like gen-0003/step-00000120",
                code=ExitCode.USAGE,
            )
        if not wanted:
            there = steps_text(sorted(shelf.stock.complete, reverse=True))
            raise NoSuchCheckpoint(
                f"{shelf.whose} has no step {one_line(step)} in {shelf.store.path}; complete there: {there}",
                fix="choose one that 'srobust checkpoint ls' shows on storage; nothing was removed",
            )
        found |= dict.fromkeys(wanted)
    return tuple(found)


# -- words -------------------------------------------------------------------------------------------


def _may(shelf: Shelf, refs: Collection[CheckpointId]) -> bool:
    """Return whether a person says yes. Raises :class:`NotSure` without a terminal."""
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise NotSure(
            f"{_steps(refs)} of {shelf.whose} would be removed, and no user can be asked here",
            fix="add --yes, or --dry-run to see what would go",
        )
    why = needed(shelf.stock)
    for ref in sorted(refs):
        if ref in why:
            print(f"step {ref.step}: {why[ref]}", file=sys.stderr)
    size = size_text(sum(disk_use(shelf.store.folder(ref)) for ref in refs))
    print(f"remove {_steps(refs)} of {shelf.whose} ({size})? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _steps(refs: Collection[CheckpointId]) -> str:
    return steps_text(sorted(refs, reverse=True))


def render(shelf: Shelf, done: Removed) -> str:
    """Return what went, what stays, and how much room there is."""
    refs = [CheckpointId.parse(token) for token in done.removed]
    left = [CheckpointId.parse(token) for token in done.left]
    incomplete = f", {done.incomplete} of them incomplete" if done.incomplete else ""
    room = f"; {size_text(done.free)} free there" if done.free is not None else ""
    verb = "would remove" if done.dry_run else "removed"
    lines = [f"{verb} {_steps(refs)} of {shelf.whose}{incomplete}: {size_text(done.nbytes)}"]
    if not refs:
        lines = [f"nothing to remove of {shelf.whose}"]
    stays = f"{count(len(left), 'complete checkpoint')} with {size_text(done.left_nbytes)}"
    kept = f" ({_steps(left)})" if left else ""
    lines.append(f"{'would leave' if done.dry_run else 'left'}: {stays}{kept} in {done.storage}{room}")
    lines += [f"note: {one_line(text)}" for text in done.warnings]
    return "\n".join(lines)
