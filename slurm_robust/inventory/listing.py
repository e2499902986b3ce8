"""``srobust checkpoint``: which checkpoints of a job there are, in which tiers, and whether they are whole.

It sees storage, and what is in memory and on the disk of the node on which it runs; it asks no agent, so
it works for an ended job too. On another node: ``srun --jobid=JOB --overlap -w NODE srobust checkpoint …``.
"""

from __future__ import annotations

import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.checkpoint.errors import CheckpointError, MissingCheckpoint
from slurm_robust.checkpoint.image import open_image
from slurm_robust.checkpoint.local import LocalCopies, seal_key
from slurm_robust.checkpoint.memory import MemoryFolder, kind_of
from slurm_robust.checkpoint.part import read_sidecar, verify_part
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model import events as ev
from slurm_robust.model.copies import SHARED, CheckpointId, Copy, Tier
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.journal import fold
from slurm_robust.model.layout import Placement
from slurm_robust.model.live_status import LiveTier, NotALiveStatus, newest_whole, read
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState
from slurm_robust.model.training import PREFIX, TrainingDirectory, storage_of
from slurm_robust.policy import restore
from slurm_robust.terminal.console import BYTES, Bar, plain_table, show, track
from slurm_robust.trainings.find import NoSuchJob, TrainingPosition, load_events, named, newest_job, place_of
from slurm_robust.trainings.jobs import newest_of
from slurm_robust.trainings.slurmview import make_slurm
from slurm_robust.util.files import disk_use, free_on
from slurm_robust.util.text import count, duration, named_ranks, one_line, size_text
from slurm_robust.wire.keys import load_client

_FOR_EVER = 2**62


class NoSuchCheckpoint(SrobustError):
    """The job has no such checkpoint within reach."""

    exit_code = ExitCode.NO_INPUT
    fix = "choose one that 'srobust checkpoint ls' shows, or run this on another node of the job"


class NoAccess(SrobustError):
    """A file or folder cannot be read or written."""

    exit_code = ExitCode.NO_INPUT


@contextmanager
def friendly() -> Iterator[None]:
    """Raise :class:`NoAccess` for what storage, memory or a disk refuses."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output is gone, which is not an error of a file
    except OSError as error:
        raise NoAccess(
            str(error),
            fix="run this as the job's owner, on a node that sees the file, with space where it writes",
        ) from error


class JobHere:
    """A job as it is seen from this node."""

    def __init__(self, directory: JobDirectory, events: Sequence[ev.AnyEvent], spec: JobSpec) -> None:
        """Use :func:`open_job`."""
        self.directory = directory
        self.events = events
        self.spec = spec
        self.state: JobState = fold(events)
        self.node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.store = CheckpointStore(storage_of(directory, spec, self.state.training))
        self.memory = MemoryFolder.of(spec.run_id)
        self.local: LocalCopies | None = None
        if directory_on_disk := spec.copies.places.get(Tier.LOCAL):
            key = seal_key(load_client(directory.keys).client.secret)
            self.local = LocalCopies(directory_on_disk, spec.run_id, key)

    def copies(self) -> tuple[Copy, ...]:
        """Return the copies that are whole on this node. Raises ``OSError``."""
        return self.memory.inventory() + (self.local.inventory() if self.local else ())

    def placement(self, generation: int) -> Placement:
        """Return the nodes of a generation's ranks; those of the newest one if it is not in the journal."""
        for event in self.events:
            if isinstance(event, ev.GenerationLaunched) and event.generation == generation:
                return Placement(slots=event.slots, nproc_per_node=self.state.world.nproc_per_node)
        return self.state.world.placement


class StoredCheckpoint(Record):
    """A checkpoint on storage."""

    parts: int
    """How many are there."""
    of: int
    """How many belong to it."""
    complete: bool
    nbytes: int
    age_s: float
    """Seconds since the newest part came."""


class CheckpointRow(Record):
    """One checkpoint."""

    token: str
    step: int
    generation: int
    stored: StoredCheckpoint | None
    here: dict[str, tuple[int, ...]]
    """Ranks whose copies this node has, by tier; -1 for the part that is equal on all ranks."""
    notes: tuple[str, ...]
    release: str = ""
    """The release of the job's code that wrote it, "" if it is not known, or the code was in none."""


class CheckpointListing(Record):
    """What ``srobust checkpoint ls`` shows."""

    job_id: int
    node: str
    storage: str
    memory: str
    local: str
    rows: tuple[CheckpointRow, ...]
    """Newest first."""
    restored: str
    """Token of what would be restored if this node alone answered, "" for none: others may have more."""
    how: str
    """The source that it would be restored from."""
    latest: str
    """What the pointer on storage names."""
    training: str = ""
    """The training that the checkpoints on storage belong to, "" for a job without a training."""
    complete: int = 0
    """How many are complete on storage."""
    nbytes: int = 0
    """Bytes of all files of checkpoints on storage, incomplete ones too."""
    free: int | None = None
    """Bytes that storage has free, None if it does not say."""
    moved_aside: tuple[str, ...] = ()
    """Folders of other trainings of this name, which have checkpoints of their own."""
    ranks: int = 0
    """How many parts belong to a checkpoint of the job."""
    together: tuple[LiveTier, ...] = ()
    """What all nodes of the job have together, as its controller saw it last; () if that is not known."""
    together_age_s: float | None = None
    """Since then."""


def open_job(name: str, job_dir: str | None) -> JobHere:
    """Return the job by id or folder, or the newest of a training that has begun.

    Raises ``NoSuchJob``, ``JournalDamaged``.
    """
    found = named(name, job_dir)
    if isinstance(found, TrainingDirectory):
        slurm = make_slurm()
        _, _, begun = newest_of(found, slurm)
        directory = begun.directory if begun is not None else newest_job(found, slurm)
    else:
        directory = found
    try:
        spec = msgspec.json.decode(directory.spec.read_bytes(), type=JobSpec)
    except FileNotFoundError:
        raise NoSuchJob(
            f"{directory.spec} is not there, so job {name} has not begun to run",
            fix="try again when 'srobust status' shows nodes",
        ) from None
    return JobHere(directory, load_events(directory), spec)


def list_main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Print the table, or all of it as JSON. Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NoAccess`."""
    job = open_job(name, job_dir)
    with friendly():
        listing = list_checkpoints(job, time.time())
    show(listing, render, json=json)
    return 0


def list_checkpoints(job: JobHere, now: float) -> CheckpointListing:
    """Return everything about the job's checkpoints that can be seen from here. ``now``: wall clock."""
    copies = job.copies()
    here: dict[CheckpointId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for copy in copies:
        here[copy.checkpoint][copy.tier.value].append(copy.rank)
    present = track(list(job.store.present()), "listing", "checkpoints")
    stored = {ref: _stored(job.store, ref, now) for ref in present}
    # What the journal says of each checkpoint, in its order
    notes: dict[CheckpointId, list[str]] = defaultdict(list)
    for event in job.events:
        if isinstance(event, ev.GenerationEnded | ev.GenerationSealed) and event.sealed_step >= 0:
            sealed = CheckpointId(step=event.sealed_step, generation=event.generation)
            if "sealed" not in notes[sealed]:
                notes[sealed].append("sealed")
        elif isinstance(event, ev.GenerationLaunched) and event.restore is not None:
            tiers = restore.format_tiers(event.tiers)
            where = f" from {tiers}" if event.tiers else ""
            notes[event.restore].append(f"restored for generation {event.generation}{where}")
        elif isinstance(event, ev.CheckpointBanned):
            notes[event.checkpoint].append(f"passed over: {event.reason}")
    plan = would_restore(job, copies, [ref for ref, one in stored.items() if one.complete])
    latest = job.store.latest()
    state = job.state
    place = (
        place_of(job.directory, state.training, state.run_id)
        if state.training
        else TrainingPosition(training="")
    )
    releases = releases_of(job, {*stored, *here, *notes})
    together, together_age_s = seen_together(job, now)
    rows = [
        CheckpointRow(
            token=str(ref),
            step=ref.step,
            generation=ref.generation,
            stored=stored.get(ref),
            here={tier: tuple(sorted(set(ranks))) for tier, ranks in here.get(ref, {}).items()},
            notes=tuple(notes.get(ref, ())),
            release=releases.get(ref.generation, ""),
        )
        for ref in sorted({*stored, *here, *notes}, reverse=True)
    ]
    return CheckpointListing(
        job_id=job.state.job_id,
        node=job.node,
        storage=str(job.store.path),
        memory=str(job.memory.path),
        local=str(job.local.path) if job.local else "",
        rows=tuple(rows),
        restored=str(plan.ref) if plan else "",
        how=restore.format_source(plan.ref.step, plan.tiers) if plan else "",
        latest=str(latest) if latest else "",
        training=place.training,
        complete=sum(one.complete for one in stored.values()),
        nbytes=disk_use(job.store.path),
        free=free_on(job.store.path),
        moved_aside=place.moved_aside,
        ranks=state.world.placement.world_size,
        together=together,
        together_age_s=together_age_s,
    )


def seen_together(job: JobHere, now: float) -> tuple[tuple[LiveTier, ...], float | None]:
    """Return what all nodes have by the running controller, and how long ago; ``((), None)`` without one."""
    try:
        seen = read(job.directory.live_status)
    except (OSError, NotALiveStatus):
        return (), None
    if seen.run_id != job.state.run_id or seen.final:
        return (), None
    usable = tuple(
        tier
        for tier in seen.tiers
        if CheckpointId(step=tier.step, generation=tier.generation) not in job.state.world.banned
    )
    return usable, round(max(0.0, now - seen.t), 1)


def releases_of(job: JobHere, refs: Iterable[CheckpointId]) -> dict[int, str]:
    """Return for each generation that wrote one of ``refs`` the release that it ran, as far as it is known.

    The journal knows those of the job. Of others a part on storage says it, one for each generation.
    """
    found = {e.generation: e.release for e in job.events if isinstance(e, ev.GenerationLaunched)}
    for ref in refs:
        if ref.generation in found:
            continue
        for path in job.store.parts(ref)[:1]:
            try:
                found[ref.generation] = read_sidecar(path).header.release
            except (CheckpointError, OSError):
                continue  # another one may say it
    return found


def would_restore(
    job: JobHere, copies: tuple[Copy, ...], complete: Iterable[CheckpointId]
) -> restore.RestorePlan | None:
    """Return what the controller would choose if no node but this one answered and the workers ended now."""
    state = job.state
    sealed = dict(state.world.sealed)
    if state.world.running:
        sealed[state.world.generation] = _FOR_EVER
    # A port, so that the ranks of other nodes could fetch from here.
    holding = restore.Holding(node=job.node, copies=copies, address="here", port=1)
    return restore.choose(
        sealed,
        [holding],
        dict.fromkeys(complete, Tier.STORAGE),
        state.world.placement,
        shared=state.world.shared,
        banned=state.world.banned,
    )


def render(listing: CheckpointListing) -> RenderableType:
    """Return the table, and below it what would be restored."""
    newest = newest_whole(listing.together)
    aside = ""
    if listing.moved_aside:
        names = ", ".join(name.removeprefix(PREFIX) for name in listing.moved_aside)
        aside = f" Moved aside by --fresh, with checkpoints of their own: {names}."
    if not listing.rows:
        where = " or on the local disk" if listing.local else ""
        text = f"no checkpoint in {listing.storage}, in the memory{where} of node {listing.node}"
        elsewhere = "" if newest is None else _together(listing)
        return Group(*(Text(one_line(line)) for line in (f"{text}{aside}", elsewhere) if line))
    chosen = str(newest) if newest is not None else listing.restored
    table = plain_table("step", "gen", "storage", "here", "journal", right=("step", "gen"))
    for column in table.columns[:3]:
        column.no_wrap = True
    for row in listing.rows:
        marks = ["would be restored"] if row.token == chosen else []
        marks += ["latest"] if row.token == listing.latest else []
        marks += [f"release {row.release}"] if row.release else []
        stored = "-"
        if (one := row.stored) is not None:
            of = count(one.of, "part")
            stored = f"complete, {of}" if one.complete else f"{one.parts} of {of}"
            stored += f"\n{one.nbytes / 1e6:.1f} MB, {_age(one.age_s)} old"
        tiers = (tier.value for tier in Tier if tier.value in row.here)  # the nearest first
        table.add_row(
            str(row.step),
            str(row.generation),
            stored,
            "\n".join(f"{tier}: {ranks_text(row.here[tier])}" for tier in tiers) or "-",
            one_line("; ".join([*marks, *row.notes])),
            style="bold" if row.token == chosen else "",
        )
    many = count(listing.complete, "complete checkpoint")
    whose = f" of training {listing.training}" if listing.training else ""
    room = f"; {size_text(listing.free)} free there" if listing.free is not None else ""
    use = f"On storage: {many}{whose}, {size_text(listing.nbytes)}{room}.{aside}"
    return Group(
        table, *(Text(one_line(line)) for line in (use, _alone(listing), _together(listing)) if line)
    )


def _alone(listing: CheckpointListing) -> str:
    """Return what this node could restore without the others, and what it lacks."""
    if listing.how:
        return f"Node {listing.node} alone, with storage, could restore {listing.how}."
    for row in listing.rows:
        if ranks := {rank for held in row.here.values() for rank in held if rank != SHARED}:
            of = count(listing.ranks, "part")
            return (
                f"Node {listing.node} alone cannot restore: it has {len(ranks)} of {of} of step {row.step}."
            )
    return f"Node {listing.node} has no copy, and storage no complete checkpoint."


def _together(listing: CheckpointListing) -> str:
    """Return what all nodes could restore, as the controller saw it."""
    if (newest := newest_whole(listing.together)) is None:
        if listing.how:
            return ""
        return "What the other nodes have is not known here: no controller of this job has written it down."
    held = ", ".join(f"step {tier.step} in {_PLACES[tier.tier]}" for tier in listing.together)
    seen = duration(listing.together_age_s or 0.0)
    return (
        f"All nodes together can restore step {newest.step}: they have {held} (the controller, {seen} ago)."
    )


_PLACES = {
    Tier.MEMORY: "memory",
    Tier.PEER: "the memory of other nodes",
    Tier.LOCAL: "local disks",
    Tier.STORAGE: "storage",
}


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ``ranks 0,2 and shared``."""
    own = [rank for rank in ranks if rank != SHARED]
    parts = [named_ranks(own)] if own else []
    parts += ["shared"] if SHARED in ranks else []
    return " and ".join(parts)


class Verified(Record):
    """What ``srobust checkpoint verify`` found."""

    files: int
    """Files that are whole."""
    nbytes: int
    """Bytes of these."""
    damaged: tuple[tuple[str, str], ...]
    """Path, and what is wrong with it."""


def verify_main(name: str, *, json: bool, job_dir: str | None) -> int:
    """Read all copies in reach and compare their sums; 1 if one is damaged.

    Raises ``NoSuchJob``, ``JournalDamaged``, :class:`NoAccess`.
    """
    job = open_job(name, job_dir)
    with friendly():
        found = verify(job, quiet=json)
    show(found, render_verified, json=json)
    return 1 if found.damaged else 0


def render_verified(found: Verified) -> str:
    """Return a line for each damaged file, then the sum."""
    sizes = f"{count(found.files, 'file')} with {found.nbytes / 1e6:.1f} MB"
    end = f"{sizes} {'is' if found.files == 1 else 'are'} whole, {len(found.damaged)} damaged"
    return "\n".join([*(f"damaged: {one_line(text)}" for _, text in found.damaged), end])


def verify(job: JobHere, *, quiet: bool) -> Verified:
    """Read all copies in reach. Raises ``OSError``."""
    files = list(files_of(job))
    whole = nbytes = 0
    damaged: list[tuple[str, str]] = []
    with Bar("verifying", sum(size for _, size in files), BYTES, quiet=quiet) as bar:
        for path, size in files:
            try:
                verify_file(path)
                whole, nbytes = whole + 1, nbytes + size
            except MissingCheckpoint as missing:
                # An image is being refilled, or the file was removed; but a sidecar that has lost its data:
                if path.suffix == ".part" and path.exists():
                    damaged.append((str(path), str(missing)))
            except CheckpointError as error:
                damaged.append((str(path), str(error)))
            bar.advance(size)
    return Verified(files=whole, nbytes=nbytes, damaged=tuple(damaged))


def files_of(job: JobHere) -> Iterator[tuple[Path, int]]:
    """Yield every file in reach that holds a part, with the bytes to read. Sidecars stand for their data."""
    for ref in job.store.present():
        yield from _parts(job.store, ref)
    if job.memory.path.is_dir():
        for path in sorted(job.memory.path.iterdir()):
            if kind_of(path.name):
                yield path, size_of(path)
    if job.local is not None:
        for path in sorted(job.local.path.rglob("*.img")):
            yield path, size_of(path)


def _parts(store: CheckpointStore, ref: CheckpointId) -> Iterator[tuple[Path, int]]:
    """Yield the sidecars of a checkpoint on storage, each with its bytes and those of its data."""
    for path in store.parts(ref):
        rank = int(path.name.split("-")[1])
        yield path, size_of(path) + size_of(store.data_path(ref, rank))


def verify_file(path: Path) -> None:
    """Read a file and compare its sums.

    Raises :class:`CheckpointError`: :class:`MissingCheckpoint` for what is gone or being refilled.
    """
    if path.suffix == ".part":
        verify_part(path)
        return
    image = open_image(path)
    try:
        image.verify()
    finally:
        image.close()


def size_of(path: Path) -> int:
    """Return the bytes of a file, 0 for one that has just gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _stored(store: CheckpointStore, ref: CheckpointId, now: float) -> StoredCheckpoint:
    parts = store.parts(ref)
    of = max((int(path.stem.split("-")[3]) for path in parts), default=0)
    try:
        of, complete = store.world_size(ref), True
    except MissingCheckpoint:
        complete = False
    try:
        newest = max((path.stat().st_mtime for path in parts), default=now)
        nbytes = sum(size for _, size in _parts(store, ref))  # as 'verify' counts them
    except FileNotFoundError:  # pruned meanwhile
        return StoredCheckpoint(parts=0, of=of, complete=False, nbytes=0, age_s=0.0)
    return StoredCheckpoint(
        parts=len(parts), of=of, complete=complete, nbytes=nbytes, age_s=round(max(0.0, now - newest), 1)
    )


def _age(seconds: float) -> str:
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
