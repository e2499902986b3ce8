"""All that an agent does about copies of checkpoints; every call returns immediately."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import structs

from slurm_robust.agent.copies.fetch import Fetches
from slurm_robust.agent.copies.flush import Flusher, FlushRequest, Fork
from slurm_robust.agent.copies.leftovers import remove_leftovers
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.own_writes import OwnWrites
from slurm_robust.agent.copies.sender import PeerSender, RateLimit, SenderLaunch
from slurm_robust.agent.copies.server import CopyServer, PeerBuffers
from slurm_robust.agent.copies.streams import streams_for
from slurm_robust.agent.copies.watch import SnapshotWatch
from slurm_robust.checkpoint.budget import MemoryPlan, limits
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.image import Image
from slurm_robust.checkpoint.local import seal_key
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.tiers import NodeTiers, kept_tiers
from slurm_robust.model.copies import SHARED, CheckpointId, Copy
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.policy.peers import PEER_SHARE
from slurm_robust.util.files import write_atomically
from slurm_robust.wire.copychannel import derive_key
from slurm_robust.wire.keys import ClientKeys
from slurm_robust.wire.messages import Launch, Phase, Progress, Save
from slurm_robust.wire.network import bind_free, interface_of, speed_of


class CopyNews(Record):
    """The part of a heartbeat that is about copies; see :class:`~slurm_robust.wire.messages.Heartbeat`."""

    port: int = 0
    copies: tuple[Copy, ...] = ()
    lag_s: float = 0.0
    flushed: int = -1
    saved: CheckpointId | None = None
    unsaved: str = ""
    unflushed: str = ""
    saved_ranks: tuple[int, ...] = ()
    save_begun: float = 0.0
    unkept: str = ""
    unkept_peers: str = ""


NO_COPIES = CopyNews()

_UNMADE = "/dev/null/copies"

# Made while there is one thread; see Record.
_plans = msgspec.json.Decoder(MemoryPlan)


class _Here(NamedTuple):
    """What serves the copies of this node."""

    parts: NodeTiers
    buffers: PeerBuffers
    flusher: Flusher


class CopyService:
    """One node's copies. All calls from one thread; none waits for the network or a disk."""

    def __init__(
        self,
        spec: JobSpec,
        job: JobDirectory,
        keys: ClientKeys,
        ports: Iterable[int] = (0,),
        base: Path = SHARED_MEMORY,
    ) -> None:
        """Begin to serve what this job left here before. Never raises: what fails is noted and off."""
        self._spec = spec
        self._key = derive_key(keys.client.secret)
        self._seal_key = seal_key(keys.client.secret)
        self._notes = Notes()
        self._wake: Callable[[], None] = lambda: None
        self._running: _Running | None = None
        self._fetches: Fetches | None = None
        self._pace = RateLimit(spec.copies.peer_bytes_s)
        self._speed = 0.0  # of the interface, in bytes per second; 0: not known
        self._on_disk: tuple[Copy, ...] = ()
        self._here: _Here | None = None  # None: nothing is kept in this node's memory
        self._server: CopyServer | None = None
        self._saving: Save | None = None
        self._request: FlushRequest | None = None  # made of it
        self._refusal = ""  # why its copies cannot be read
        self._to_save: list[Image] = []  # held for it; they are not being written yet
        self._own_writes = OwnWrites()
        self._unmade = ""  # why there is no folder for snapshots
        self._base = base
        self.port = 0
        if spec.copies.memory:
            self._begin(job, tuple(ports), base)

    def _begin(self, job: JobDirectory, ports: tuple[int, ...], base: Path) -> None:
        spec = self._spec
        try:
            memory = MemoryFolder.create(spec.run_id, base)
        except OSError as error:
            self._unmade = str(error)
            self._notes.say("memory", f"no snapshots in this node's memory: {error}")
            return
        try:
            # The job's restarts at this begin, for the epilog, which knows those at its end.
            restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
            write_atomically(memory.path / "run", restarts.encode(), durable=False, mode=0o600)
            if spec.copies.places:
                write_atomically(memory.seal_key, self._seal_key, durable=False, mode=0o600)
        except OSError as error:
            self._notes.say("memory", f"the folder of snapshots is incomplete: {error}")
        places = spec.tier_places(job)
        parts = NodeTiers(memory, kept_tiers(places, spec.run_id, self._seal_key))
        remove_leftovers(parts.paths, self._notes)
        buffers = PeerBuffers(memory)
        flusher = Flusher(
            job_dir=str(job.path),
            run_id=spec.run_id,
            places={tier: place for tier, place in places.items() if tier.is_shared},
            kept=parts.kept,
            keep=spec.copies.keep,
            notes=self._notes,
            on_done=lambda: self._wake(),
            on_local=self._check_disk,
        )
        self._here = _Here(parts, buffers, flusher)
        self._check_disk_soon()
        if not ports:
            self._notes.say(
                "port", "no copies to or from other nodes: rendezvous.port_range needs three ports for them"
            )
            return
        try:
            listener = bind_free(ports)
        except OSError as error:
            self._notes.say("port", f"no copies to or from other nodes: {error}")
            return
        self.port = int(listener.getsockname()[1])
        self._server = CopyServer(
            listener,
            self._key,
            run_id=spec.run_id,
            parts=parts,
            buffers=buffers,
            notes=self._notes,
        )

    # -- questions ---------------------------------------------------------------------------------

    @property
    def memory(self) -> str:
        """The folder in this node's memory in which workers find and put copies, "" if nothing is to be kept
        there.

        If it could not be made, it is one that nobody can make: then workers have no room in memory.
        """
        if self._here is not None:
            return str(self._here.parts.memory.path)
        return _UNMADE if self._spec.copies.memory else ""

    def inventory(self) -> tuple[Copy, ...]:
        """Return the whole copies here, now in memory, and on the disk as of the last check."""
        if self._here is None:
            return ()
        return (*self._here.parts.memory.inventory(), *self._on_disk)

    def news(self, progress: Iterable[Progress] = (), keepless: frozenset[int] = frozenset()) -> CopyNews:
        """Return what a heartbeat reports of copies now.

        ``progress``: of the ranks here; ``keepless``: those of them that have no room in memory.
        """
        self._own_writes.see(progress)
        if self._here is None:
            return CopyNews(flushed=self._flushed(), unkept=self._unmade)
        # Read what workers found out about the node's memory: how many copies of other nodes it can take
        plans = read_plans(self._here.parts.memory.path)
        if plans:
            self._here.buffers.number = min(plan.peer_buffers for plan in plans)
            for reason in {plan.reason for plan in plans if plan.reason}:
                self._notes.say(f"plan {self._here.buffers.number}", f"memory for snapshots: {reason}")
        short = next((plan.short for plan in plans if plan.short), "")
        running = self._running
        has_peers = running is not None and running.launch.slots > 1 and self._spec.copies.peers
        lags = [sender.lag_s for sender in running.senders.values()] if running else []
        saved = self._saved()
        return CopyNews(
            port=self.port,
            copies=self.inventory(),
            lag_s=max(lags, default=0.0),
            flushed=self._flushed(),
            saved=saved.checkpoint if saved is not None else None,
            unsaved=self._unsaved(),
            unflushed=self._unflushed(self._here.flusher),
            saved_ranks=saved.ranks if saved is not None else (),
            save_begun=self._saving.begun if self._saving is not None else 0.0,
            unkept=(short or self._room()) if keepless else "",
            unkept_peers=short if has_peers and plans and not (self._here.buffers.number or keepless) else "",
        )

    def _room(self) -> str:
        """Say how much room there is in memory: a worker had none to say it."""
        try:
            return limits(self._base)[0].describe()
        except OSError as error:
            return str(error)

    def _flushed(self) -> int:
        """Return the newest step of the generation that this node has put on storage for Flush."""
        flushed = self._of_generation(self._here.flusher.flushed) if self._here is not None else -1
        return self._own_writes.flushed(flushed)

    @property
    def answer(self) -> tuple[FlushRequest | None, str]:
        """What came of the newest :meth:`save`: what is on storage, or why it is not."""
        return self._saved(), self._unsaved()

    def _saved(self) -> FlushRequest | None:
        """Return what the newest :meth:`save` was for, once it is on storage."""
        if self._here is None or self._here.flusher.saves.done is not self._request:
            return None
        return self._request

    def _unsaved(self) -> str:
        """Return why the newest :meth:`save` failed, its checkpoint first; "" while it may succeed."""
        if self._saving is None or self._here is None:
            return ""
        checkpoint = self._saving.checkpoint
        if self._refusal:
            return f"{checkpoint}: {self._refusal}"
        failed = self._here.flusher.saves.failed
        return f"{checkpoint}: {failed[1]}" if failed is not None and failed[0] is self._request else ""

    def _unflushed(self, flusher: Flusher) -> str:
        """Return why a checkpoint of this generation did not get onto storage, beginning with its step."""
        if flusher.flushes.failed is None:
            return ""
        wanted, why = flusher.flushes.failed
        step = self._of_generation(wanted.checkpoint)
        return f"step {step}: {why}" if step >= 0 else ""

    @property
    def flush_over(self) -> int:
        """Newest step of the generation that workers need not keep for a flush any more."""
        over = self._of_generation(self._here.flusher.flushes.over) if self._here is not None else -1
        return self._own_writes.flushed(over)

    def _of_generation(self, found: CheckpointId | None) -> int:
        running = self._running
        return found.step if running and found and found.generation == running.launch.generation else -1

    def notes(self) -> list[str]:
        """Return the lines for the journal since the last call."""
        return self._notes.take()

    # -- orders ------------------------------------------------------------------------------------

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, in some thread, when an answer to a question has changed."""
        self._wake = wake

    def fork_by(self, fork: Fork) -> None:
        """Use ``fork``, which gives a channel to a new storage writer, if it can. Some thread calls it."""
        if self._here is not None:
            self._here.flusher.fork_by(fork)

    def pace_by(self, address: str) -> None:
        """Pace copies by the interface with ``address`` ("": not known yet), which others need, too."""
        if address:
            self._speed = speed_of(interface_of(address))
            self._pace.bytes_s = self._spec.copies.peer_bytes_s or PEER_SHARE * self._speed

    def launched(self, launch: Launch) -> None:
        """Prepare for the workers of ``launch``, which are about to start."""
        self._own_writes = OwnWrites(launch.ranks)
        if self._here is None:
            return
        memory = self._here.parts.memory
        self._end_generation(self._here.flusher)
        if self._fetches is not None:
            self._fetches.stop()
        for plan in memory.path.glob("plan-*.json"):
            plan.unlink(missing_ok=True)  # of an earlier launch, maybe of ranks that are elsewhere now
        self._check_disk_soon()
        asked = self._spec.copies.peer_streams
        fetched = sum(bool(source.address) for source in launch.sources)
        streams = streams_for(self._speed, fetched, asked)
        self._fetches = Fetches(launch, memory, self._key, self._notes, streams)
        peers = launch.peers if self._spec.copies.peers else ()
        streams = streams_for(self._pace.bytes_s, len(peers), asked)
        generation = SenderLaunch(self._spec.run_id, launch.generation, launch.restore, streams)
        senders = {p.rank: PeerSender(p, generation, self._key, self._pace, self._notes) for p in peers}
        watch = SnapshotWatch(memory, launch, senders, self._here.flusher.on_images, self._notes)
        self._running = _Running(launch, senders, watch)
        if self._server is not None:
            self._server.expect(peer.address for peer in launch.peers)
            self._server.expect(source.address for source in launch.sources)
            self._server.launch = launch.generation

    def follow(self, phase: Phase, generation: int) -> None:
        """Follow what the workers are doing; called whenever it may have changed.

        When they are being stopped, copies that are under way come to their end and no others begin: the
        controller chooses what to restore from the copies that are reported now.
        """
        active = phase in (Phase.STARTING, Phase.RUNNING)
        running = self._running
        if self._here is None or running is None:
            return
        if (active and generation == running.launch.generation) or running.over:
            return
        running.over = True
        if self._server is not None:
            self._server.launch = 0
        running.finish()
        self._here.flusher.forget()
        self._check_disk_soon()

    def set_stride(self, stride: int) -> None:
        """Set which steps go to peers from now on."""
        if self._running is not None:
            self._running.watch.stride = stride

    def ask_flush(self, step: int, keepless: Iterable[int] = ()) -> None:
        """Put the snapshot of ``step`` on disk and storage when it is there.

        ``keepless``: ranks here that have no room in memory, so that they write theirs themselves.
        """
        self._own_writes.ask(step, keepless)
        if self._here is None or self._running is None or self._running.over or self._own_writes.are_all:
            return
        launch = self._running.launch
        ranks = tuple(rank for rank in launch.ranks if rank not in self._own_writes.keepless)
        self._here.flusher.ask(structs.replace(launch, ranks=ranks), step)

    def save(self, order: Save, *, later: bool = False) -> None:
        """Put copies that are here on storage; a repeated order changes nothing.

        ``later``: they are held, and written by :meth:`write_saves`.
        """
        if self._here is None or order == self._saving:
            return
        parts = self._here.parts
        self._let_go()
        self._saving, self._request, self._refusal = order, None, ""
        checkpoint = order.checkpoint
        shared = parts.memory.find(SHARED, checkpoint) is not None
        held: list[Image] = []
        try:
            here = dict.fromkeys(order.anew.get(rank, rank) for rank in order.ranks)
            for rank in (*here, *((SHARED,) if shared else ())):
                held.append(parts.open(rank, checkpoint))
        except (CheckpointError, OSError) as error:
            self._refusal = str(error)
            self._notes.say("save", f"{checkpoint} cannot be put on storage: {error}")
            for image in held:
                image.close()
            return
        self._request = FlushRequest(checkpoint, order.ranks, order.world_size, order.layout, order.anew)
        self._to_save = held
        if not later:
            self.write_saves()

    def write_saves(self) -> None:
        """Write what :meth:`save` holds."""
        if self._here is not None and self._request is not None and self._to_save:
            held, self._to_save = self._to_save, []
            self._here.flusher.save(self._request, held)

    def _let_go(self) -> None:
        for image in self._to_save:
            image.close()
        self._to_save = []

    def close(self, *, remove: bool) -> None:
        """End. ``remove``: the copies here have no use any more: the job is over or storage has them."""
        if self._here is None:
            return
        self._let_go()
        self._end_generation(self._here.flusher)
        if self._fetches is not None:
            self._fetches.stop()
        if self._server is not None:
            self._server.close()
        self._here.flusher.close()
        if remove:
            for path in self._here.parts.paths:
                shutil.rmtree(path, ignore_errors=True)

    # -- helpers -----------------------------------------------------------------------------------

    def _end_generation(self, flusher: Flusher) -> None:
        running, self._running = self._running, None
        if running is not None:
            flusher.forget()
            running.stop()

    def _check_disk_soon(self) -> None:
        if self._here is not None and self._here.parts.kept:
            self._notes.start_thread("disk", "reads which copies the disk holds", self._check_disk)

    def _check_disk(self) -> None:
        assert self._here is not None
        found: list[Copy] = []
        for tier in self._here.parts.kept:
            try:
                found += tier.inventory()
            except OSError as error:
                self._notes.say("disk", f"{tier.path} holds no copies: {error}")
        self._on_disk = tuple(found)
        self._wake()


def read_plans(folder: Path) -> list[MemoryPlan]:
    """Return the plans that this node's workers have left in the folder of copies."""
    plans = []
    for path in folder.glob("plan-*.json"):
        try:
            plans.append(_plans.decode(path.read_bytes()))
        except (OSError, *UNREADABLE):
            continue  # replaced or removed meanwhile
    return plans


class _Running:
    """The threads of one generation."""

    def __init__(self, launch: Launch, senders: dict[int, PeerSender], watch: SnapshotWatch) -> None:
        self.launch = launch
        self.senders = senders
        self.watch = watch
        self.over = False

    def finish(self) -> None:
        """Begin nothing more. Returns immediately."""
        self.watch.stop()
        for sender in self.senders.values():
            sender.finish()

    def stop(self) -> None:
        """Break everything off. Returns immediately."""
        self.watch.stop()
        for sender in self.senders.values():
            sender.stop()
