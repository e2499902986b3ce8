"""All that an agent does about copies of checkpoints, behind calls that return at once."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slurm_robust.agent.copies.fetch import Fetches
from slurm_robust.agent.copies.flush import Flusher, Wanted
from slurm_robust.agent.copies.leftovers import remove_leftovers
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.parts import NodeParts
from slurm_robust.agent.copies.peerbuffers import PeerBuffers
from slurm_robust.agent.copies.sender import Generation, Pace, PeerSender
from slurm_robust.agent.copies.server import CopyServer
from slurm_robust.agent.copies.watch import SnapshotWatch
from slurm_robust.agent.networks import interface_of, speed_of
from slurm_robust.agent.ports import bind_free
from slurm_robust.checkpoint.budget import MemoryPlan
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.image import Image
from slurm_robust.checkpoint.local import LocalCopies, local_path, seal_key
from slurm_robust.checkpoint.memory import SHARED_MEMORY, MemoryFolder
from slurm_robust.checkpoint.store import CheckpointRef
from slurm_robust.model.copies import SHARED, Copy
from slurm_robust.model.job import JobDirectory, JobSpec
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.wire.copychannel import derive_key
from slurm_robust.wire.keys import ClientKeys
from slurm_robust.wire.messages import Launch, Phase, Save

PEER_SHARE = 0.25
"""Of what an interface can carry. Heartbeats, Slurm and often the shared storage share it with the copies."""


@dataclass(frozen=True)
class CopyPlaces:
    """The folders that workers are told of, "" for none."""

    memory: str = ""
    local: str = ""


NOWHERE = CopyPlaces()


class CopyNews(Record):
    """The part of a heartbeat that is about copies; see :class:`~slurm_robust.wire.messages.Heartbeat`."""

    port: int = 0
    copies: tuple[Copy, ...] = ()
    lag_s: float = 0.0
    flushed: int = -1
    saved: str = ""


NO_COPIES = CopyNews()

# Made while there is one thread; see Record.
_plans = msgspec.json.Decoder(MemoryPlan)


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
        self._pace = Pace(spec.copies.peer_bytes_s)
        self._on_disk: tuple[Copy, ...] = ()
        self._parts: NodeParts | None = None
        self._server: CopyServer | None = None
        self._saving: Save | None = None
        self.port = 0
        if spec.copies.memory:
            self._begin(job, tuple(ports), base)

    def _begin(self, job: JobDirectory, ports: tuple[int, ...], base: Path) -> None:
        spec = self._spec
        try:
            memory = MemoryFolder.create(spec.run_id, base)
            _write_run(memory.path)
            if spec.copies.local_directory:
                _replace(memory.seal_key, self._seal_key)
        except OSError as error:
            self._notes.say("memory", f"no snapshots in this node's memory: {error}")
            return
        directory = spec.copies.local_directory
        local = (
            LocalCopies(local_path(directory, spec.run_id), spec.run_id, self._seal_key)
            if directory
            else None
        )
        own = (memory.path, *((local.path,) if local else ()))
        remove_leftovers(own, lambda text: self._notes.say("leftovers", text, again_s=0.0))
        self._parts = NodeParts(memory, local)
        self._buffers = PeerBuffers(memory)
        self._flusher = Flusher(
            run_id=spec.run_id,
            directory=spec.checkpoint_dir or str(job.checkpoints),
            local=local,
            keep=spec.copies.keep,
            notes=self._notes,
            on_done=lambda: self._wake(),
            on_local=self._look_at_disk,
        )
        self._look_at_disk_soon()
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
            parts=self._parts,
            buffers=self._buffers,
            notes=self._notes,
        )

    # -- questions ---------------------------------------------------------------------------------

    @property
    def places(self) -> CopyPlaces:
        """Where workers find and put copies."""
        if self._parts is None:
            return NOWHERE
        local = self._parts.local
        return CopyPlaces(memory=str(self._parts.memory.path), local=str(local.path) if local else "")

    def inventory(self) -> tuple[Copy, ...]:
        """The whole copies here, now in memory, and on the disk as it was last looked at."""
        if self._parts is None:
            return ()
        return (*self._parts.memory.inventory(), *self._on_disk)

    def news(self) -> CopyNews:
        """What a heartbeat tells of copies now."""
        self._read_plans()
        running = self._running
        lags = [sender.lag_s for sender in running.senders.values()] if running else []
        return CopyNews(
            port=self.port,
            copies=self.inventory(),
            lag_s=max(lags, default=0.0),
            flushed=self._of_generation(self._flusher.flushed) if running else -1,
            saved=self._saved(),
        )

    def _saved(self) -> str:
        """The checkpoint of the newest :meth:`save`, once it is on storage."""
        if self._saving is None or self._parts is None:
            return ""
        ref = CheckpointRef.from_token(self._saving.token)
        return self._saving.token if self._flusher.flushed == (ref.generation, ref.step) else ""

    @property
    def flush_over(self) -> int:
        """Newest step of the generation that workers need not keep for a flush any more."""
        return self._of_generation(self._flusher.over) if self._running else -1

    def _of_generation(self, step: tuple[int, int]) -> int:
        return step[1] if self._running and step[0] == self._running.launch.generation else -1

    def notes(self) -> list[str]:
        """What there is to tell since the last call."""
        return self._notes.take()

    # -- orders ------------------------------------------------------------------------------------

    def wake_by(self, wake: Callable[[], None]) -> None:
        """``wake`` is called in some thread when an answer to a question has changed."""
        self._wake = wake

    def pace_by(self, address: str) -> None:
        """Copies leave by the interface with ``address`` ("": not known yet), and others need it, too."""
        if not self._spec.copies.peer_bytes_s and address:
            self._pace.bytes_s = PEER_SHARE * speed_of(interface_of(address))

    def launched(self, launch: Launch) -> None:
        """The workers of ``launch`` are about to start."""
        if self._parts is None:
            return
        self._end_generation()
        if self._fetches is not None:
            self._fetches.stop()
        for plan in self._parts.memory.path.glob("plan-*.json"):
            plan.unlink(missing_ok=True)  # of an earlier launch, maybe of ranks that are elsewhere now
        self._look_at_disk_soon()
        self._fetches = Fetches(launch, self._parts.memory, self._key)
        peers = launch.peers if self._spec.copies.peers else ()
        generation = Generation(self._spec.run_id, launch.generation, launch.restore)
        senders = {p.rank: PeerSender(p, generation, self._key, self._pace, self._notes) for p in peers}
        watch = SnapshotWatch(self._parts.memory, launch, senders, self._flusher.look)
        self._running = _Running(launch, senders, watch)
        if self._server is not None:
            self._server.expect(peer.address for peer in launch.peers)
            self._server.expect(source.address for source in launch.sources)
            self._server.launch = launch.generation

    def follow(self, phase: Phase, generation: int) -> None:
        """What the workers are doing now; told whenever it may have changed.

        When they are being stopped, copies that are under way come to their end and no others begin: the
        controller chooses what to restore from what it was told of now.
        """
        active = phase in (Phase.STARTING, Phase.RUNNING)
        running = self._running
        if running is None or (active and generation == running.launch.generation) or running.over:
            return
        running.over = True
        if self._server is not None:
            self._server.launch = 0
        running.finish()
        self._flusher.forget()
        self._look_at_disk_soon()

    def set_stride(self, stride: int) -> None:
        """Which steps go to peers from now on."""
        if self._running is not None:
            self._running.watch.stride = stride

    def ask_flush(self, step: int) -> None:
        """Put the snapshot of ``step`` on disk and storage when it is there."""
        if self._running is not None and not self._running.over:
            self._flusher.ask(self._running.launch, step)

    def save(self, order: Save) -> None:
        """Put copies that are here on storage; a repeated order changes nothing."""
        if self._parts is None or order == self._saving:
            return
        self._saving = order
        ref = CheckpointRef.from_token(order.token)
        shared = self._parts.memory.find(SHARED, ref) is not None
        held: list[Image] = []
        try:
            for rank in (*order.ranks, *((SHARED,) if shared else ())):
                held.append(self._parts.open(rank, ref))
        except (CheckpointError, OSError) as error:
            self._notes.say("save", f"{order.token} cannot be put on storage: {error}")
            for image in held:
                image.close()
            return
        wanted = Wanted(ref.generation, ref.step, order.ranks, order.world_size, order.layout)
        self._flusher.save(wanted, held)

    def close(self, *, remove: bool) -> None:
        """End. ``remove``: nobody needs the copies here any more, the job is over or storage has them."""
        if self._parts is None:
            return
        self._end_generation()
        if self._fetches is not None:
            self._fetches.stop()
        if self._server is not None:
            self._server.close()
        self._flusher.close()
        if remove:
            shutil.rmtree(self._parts.memory.path, ignore_errors=True)
            if self._parts.local is not None:
                shutil.rmtree(self._parts.local.path, ignore_errors=True)

    def _read_plans(self) -> None:
        """What workers found out about the node's memory: how many copies of other nodes it can take."""
        if self._parts is None:
            return
        plans = read_plans(self._parts.memory.path)
        if plans:
            self._buffers.number = min(plan.peer_buffers for plan in plans)
            for reason in {plan.reason for plan in plans if plan.reason}:
                self._notes.say(f"plan {self._buffers.number}", f"memory for snapshots: {reason}")

    # -- helpers -----------------------------------------------------------------------------------

    def _end_generation(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            self._flusher.forget()
            running.stop()

    def _look_at_disk_soon(self) -> None:
        if self._parts is not None and self._parts.local is not None:
            threading.Thread(target=self._look_at_disk, name="srobust-disk", daemon=True).start()

    def _look_at_disk(self) -> None:
        assert self._parts is not None
        assert self._parts.local is not None
        try:
            self._on_disk = self._parts.local.inventory()
        except OSError as error:
            self._on_disk = ()
            self._notes.say("disk", f"this node's disk holds no copies: {error}")
        self._wake()


def _write_run(folder: Path) -> None:
    """Tell the epilog, which knows the job's restarts at its end, how many there were at our begin."""
    _replace(folder / "run", os.environ.get("SLURM_RESTART_COUNT", "0").encode())


def _replace(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(beside, path)


def read_plans(folder: Path) -> list[MemoryPlan]:
    """The plans that this node's workers have left in the folder of copies."""
    plans = []
    for path in folder.glob("plan-*.json"):
        try:
            plans.append(_plans.decode(path.read_bytes()))
        except (OSError, *UNREADABLE):
            continue  # replaced or removed while we looked
    return plans


class _Running:
    """The threads of one generation."""

    def __init__(self, launch: Launch, senders: dict[int, PeerSender], watch: SnapshotWatch) -> None:
        self.launch = launch
        self.senders = senders
        self.watch = watch
        self.over = False

    def finish(self) -> None:
        """Begin nothing more. Returns at once."""
        self.watch.stop()
        for sender in self.senders.values():
            sender.finish()

    def stop(self) -> None:
        """Break everything off. Returns at once."""
        self.watch.stop()
        for sender in self.senders.values():
            sender.stop()
