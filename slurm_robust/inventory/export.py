"""``srobust checkpoint export``: one checkpoint as a folder for ``torch.distributed.checkpoint``.

Made of the copies within reach of this node. If parts of other nodes are missing, it says on which node
to run it again with the same folder: that adds the parts there, and the last one completes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from slurm_robust.checkpoint.disk import write_metadata, write_part
from slurm_robust.checkpoint.errors import CheckpointError, MissingCheckpoint
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.part import read_sidecar, verify_part
from slurm_robust.checkpoint.storage_writer import snapshot_of
from slurm_robust.checkpoint.store import METADATA, CheckpointStore
from slurm_robust.inventory.listing import (
    JobHere,
    NoSuchCheckpoint,
    friendly,
    open_job,
    releases_of,
    would_restore,
)
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.terminal.console import show, track
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import named_ranks, one_line

LATEST = "latest"


class TargetInTheWay(SrobustError):
    """The folder to write to holds something else already."""

    exit_code = ExitCode.USAGE
    fix = "name a folder that does not exist yet with --to"


class Exported(Record):
    """What was done: which ranks were written now, which are missing still, which copies were passed over."""

    token: str
    directory: str
    written: tuple[int, ...]
    missing: tuple[int, ...]
    damaged: tuple[str, ...]
    release: str = ""
    """The release of the job's code that wrote the checkpoint, "" if it is not known."""


class OneFolder(CheckpointStore):
    """A store of a single checkpoint, whose files lie in the folder itself."""

    def folder(self, ref: CheckpointId) -> Path:
        """Return the folder itself."""
        return self.path


def main(name: str, step: str, to: Path, *, json: bool, job_dir: str | None) -> int:
    """Export a checkpoint; return 66 while parts are missing.

    Raises ``NoSuchJob``, :class:`NoSuchCheckpoint`, :class:`TargetInTheWay`, ``NoAccess``.
    """
    job = open_job(name, job_dir)
    with friendly():
        ref = choose(job, step)
        done = export(job, ref, to, quiet=json)
    show(done, partial(render, job, ref), json=json)
    return int(ExitCode.NO_INPUT) if done.missing else 0


def render(job: JobHere, ref: CheckpointId, done: Exported) -> str:
    """Return a line for each damaged copy, then whether the folder is complete."""
    by = f", written by release {done.release}" if done.release else ""
    whole = f"{done.directory}: step {ref.step} of generation {ref.generation}{by}, complete"
    end = missing_text(job, ref, done) if done.missing else f"{whole}; load it with dcp.load()"
    return "\n".join([*(f"damaged: {one_line(text)}" for text in done.damaged), end])


def choose(job: JobHere, step: str) -> CheckpointId:
    """Return the checkpoint that a person means by a step, a token, or ``latest``.

    Raises :class:`NoSuchCheckpoint`.
    """
    copies = job.copies()
    present = {c.checkpoint for c in copies}
    present.update(ref for ref in job.store.present() if job.store.parts(ref))
    if step == LATEST:
        plan = would_restore(job, copies, job.store.complete())
        found = [plan.ref] if plan else []
    else:
        # If a step is in several generations, the latest counts: it was reached after a restore.
        found = [ref for ref in sorted(present) if step in (str(ref.step), str(ref))]
    if found:
        return found[-1]
    what = "no checkpoint is complete" if step == LATEST else f"there is no part of step {step}"
    raise NoSuchCheckpoint(f"{what} within reach of node {job.node}")


def export(job: JobHere, ref: CheckpointId, to: Path, *, quiet: bool) -> Exported:
    """Write the parts within reach that are not in ``to`` yet.

    Raises :class:`NoSuchCheckpoint`, :class:`TargetInTheWay` or ``OSError``.
    """
    world_size = _world_size(job, ref)
    target = OneFolder(to)
    _check_target(job, ref, target, world_size)
    written: list[int] = []
    damaged: list[str] = []
    todo = [rank for rank in range(world_size) if not target.part_path(ref, rank, world_size).exists()]
    for rank in track(todo, "exporting", "parts", quiet=quiet):
        if _export_rank(job, ref, rank, world_size, target, damaged):
            written.append(rank)
    missing = tuple(rank for rank in todo if rank not in written)
    if not missing:
        write_metadata(target, ref)
    return Exported(
        token=str(ref),
        directory=str(to),
        written=tuple(written),
        missing=missing,
        damaged=tuple(damaged),
        release=releases_of(job, [ref]).get(ref.generation, ""),
    )


def missing_text(job: JobHere, ref: CheckpointId, done: Exported) -> str:
    """Return which parts are missing, and the command that adds them."""
    placement = job.placement(ref.generation)
    ranks = [rank for rank in done.missing if rank < placement.world_size]
    nodes = {placement.node_of(rank) for rank in ranks} - {job.node}
    text = f"{done.directory} is incomplete: {named_ranks(done.missing)} missing"
    if not nodes:
        return text + ": no copy is left within reach of this node"
    srun = f"srun --jobid={job.state.job_id} --overlap -w {fold(nodes)}"
    command = f"srobust checkpoint export {job.directory.path.absolute()} {ref}"
    to = f"--to {Path(done.directory).absolute()}"
    return f"{text}, which ran on {fold(nodes)}; while the job runs, add it by\n  {srun} {command} {to}"


def _export_rank(
    job: JobHere, ref: CheckpointId, rank: int, world_size: int, target: OneFolder, damaged: list[str]
) -> bool:
    for write in _sources(job, ref, rank, world_size, target):
        try:
            write()
        except MissingCheckpoint:
            continue
        except CheckpointError as error:
            damaged.append(str(error))
        else:
            return True
    return False


def _sources(
    job: JobHere, ref: CheckpointId, rank: int, world_size: int, target: OneFolder
) -> Iterator[Callable[[], None]]:
    """Yield functions that write the part of ``rank``, from the nearest copy first.

    Each raises CheckpointError.
    """
    for tier in (job.memory, job.local):
        own = tier.find(rank, ref) if tier is not None else None
        if own is not None:
            yield partial(_write_images, ref, own, _shared(job, ref) if rank == 0 else None, target)
    yield partial(_copy_from_storage, job.store, ref, rank, world_size, target)


def _copy_from_storage(
    store: CheckpointStore, ref: CheckpointId, rank: int, world_size: int, target: OneFolder
) -> None:
    """Copy both files, verified before the sidecar gets its name."""
    source = store.part_path(ref, rank, world_size)
    if not source.exists():
        raise MissingCheckpoint(
            f"{source} is not there", fix="srobust checkpoint ls JOB shows the checkpoints that are whole"
        )
    verify_part(source)
    with target.publishing_data(ref, rank) as path:
        shutil.copyfile(store.data_path(ref, rank), path)
    with target.publishing(ref, rank, world_size) as path:
        shutil.copyfile(source, path)


def _write_images(ref: CheckpointId, own: Path, shared: Path | None, target: OneFolder) -> None:
    """Write the part that the storage writer would write."""
    opened: list[Image] = []
    try:
        opened += [open_image(path) for path in (own, shared) if path is not None]
        snapshot = snapshot_of(opened[0], opened[1] if len(opened) > 1 else None)
        write_part(target, ref, opened[0].header, snapshot)
    finally:
        for image in opened:
            image.close()


def _shared(job: JobHere, ref: CheckpointId) -> Path | None:
    found = job.memory.find(SHARED, ref)
    return found or (job.local.find(SHARED, ref) if job.local is not None else None)


def _world_size(job: JobHere, ref: CheckpointId) -> int:
    parts = job.store.parts(ref)
    for path in parts:
        return int(path.stem.split("-")[3])
    return job.placement(ref.generation).world_size


def _check_target(job: JobHere, ref: CheckpointId, target: OneFolder, world_size: int) -> None:
    """Refuse everything but a new folder, or one that an export of the same checkpoint left unfinished."""
    try:
        names = os.listdir(target.path)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise _in_the_way(target.path, "is not a folder") from None
    if METADATA in names:
        raise _in_the_way(target.path, "holds a checkpoint already")
    if not names:
        return
    parts = target.parts(ref)
    if not parts:
        raise _in_the_way(target.path, "is not empty")
    for path in parts:
        header = read_sidecar(path).header
        expected = (job.spec.run_id, ref.generation, ref.step, world_size)
        if (header.run_id, header.generation, header.step, header.world_size) != expected:
            raise _in_the_way(target.path, f"holds parts of another checkpoint (step {header.step})")


def _in_the_way(path: Path, what: str) -> TargetInTheWay:
    return TargetInTheWay(f"{path} {what}; nothing was written")
