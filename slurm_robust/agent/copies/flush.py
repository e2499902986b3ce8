"""Puts one snapshot of all ranks of this node on its disk and on storage, when the controller asks for it.

The storage writer is a process of its own, since it needs torch, which an agent does not load, and may hang
with the storage, which an agent must not. One JSON object a line: orders to its stdin, answers from its
stdout.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from slurm_robust.agent.copies.notes import Notes
from slurm_robust.checkpoint.errors import CheckpointError
from slurm_robust.checkpoint.flush_order import FlushAnswer, FlushOrder
from slurm_robust.checkpoint.image import Image, open_image
from slurm_robust.checkpoint.memory import FoundImage
from slurm_robust.checkpoint.tiers import KeptTier, Places
from slurm_robust.model.copies import SHARED, CheckpointId
from slurm_robust.model.record import UNREADABLE
from slurm_robust.util.child import LineProcess
from slurm_robust.wire.messages import Launch

WRITER = (sys.executable, "-m", "slurm_robust.checkpoint.flush")
# Storage that takes longer than this for one node's part hangs.
WRITE_S = 1800.0
_NOTE_EVERY_S = 600.0
_SLURMS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class _Process(Protocol):
    """A writer that takes a line and answers with a line, as :class:`LineProcess`."""

    @property
    def alive(self) -> bool: ...

    def send(self, line: str) -> None: ...

    def receive(self, timeout_s: float) -> str: ...

    def kill(self) -> None: ...

    def close(self) -> None: ...


class ForkedWriter:
    """A writer that a zygote has forked. Only :meth:`kill` may be called from another thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._buffer = b""
        self.pid = 0  # known with the first answer

    @property
    def alive(self) -> bool:
        """Whether it holds its end of the channel."""
        self._channel.setblocking(False)
        try:
            return bool(self._channel.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    def send(self, line: str) -> None:
        """Write one line. Raises ``OSError`` when it is gone."""
        self._channel.setblocking(True)
        self._channel.sendall(line.encode() + b"\n")

    def receive(self, timeout_s: float) -> str:
        """Return its next answer. Raises ``TimeoutError``, or ``EOFError`` when it has ended."""
        deadline = time.monotonic() + timeout_s
        if not self.pid:
            self.pid = int(self._line(deadline))
        return self._line(deadline)

    def _line(self, deadline: float) -> str:
        while b"\n" not in self._buffer:
            self._channel.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                chunk = self._channel.recv(65536)
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def kill(self) -> None:
        """End it, whatever it does."""
        with suppress(OSError):
            self._channel.shutdown(socket.SHUT_RDWR)
        if self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it."""
        self.kill()
        self._channel.close()


Fork = Callable[[], socket.socket | None]


class StorageWriter:
    """The process, started when it is first needed and again after it has died. One thread at a time.

    It is forked from the zygote, which has imported torch. If that cannot be done, a new Python interpreter
    is started, which takes seconds to import it.
    """

    def __init__(self, command: tuple[str, ...] = WRITER) -> None:
        self._command = command
        self._process: _Process | None = None
        self.fork: Fork = lambda: None

    def write(self, order: FlushOrder, timeout_s: float = WRITE_S) -> str:
        """Have it done; the reason if it could not be, "" if it is. Blocks."""
        try:
            try:
                answer = self._answer(self._running(), order, timeout_s)
            except (EOFError, BrokenPipeError):
                if not isinstance(self._process, ForkedWriter):
                    raise
                self._close()
                answer = self._answer(self._running(forked=False), order, timeout_s)
        except TimeoutError:
            return self._failed("no answer; the storage hangs")
        except EOFError:
            return self._failed("it died; see the agent's output")
        except (OSError, ValueError, *UNREADABLE) as error:
            return self._failed(str(error))
        return "" if answer.ok else answer.error or "no reason was given"

    def _answer(self, process: _Process, order: FlushOrder, timeout_s: float) -> FlushAnswer:
        process.send(msgspec.json.encode(order).decode())
        return msgspec.json.decode(process.receive(timeout_s), type=FlushAnswer)

    def warm_up(self) -> None:
        """Have it import what it needs while the step that it is for is still to come."""
        try:
            self._running()
        except OSError:
            pass  # tried again, and noted, when there is something to write

    def kill(self) -> None:
        """End the process, whatever it does; what it has not published does not count. In any thread."""
        if self._process is not None:
            self._process.kill()

    def _running(self, *, forked: bool = True) -> _Process:
        if self._process is None or not self._process.alive:
            self._close()
            channel = self.fork() if forked else None
            self._process = ForkedWriter(channel) if channel is not None else self._own()
        return self._process

    def _own(self) -> LineProcess:
        # Slurm signals all processes of a step, when what is here is needed most.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SLURMS)
        try:
            return LineProcess(self._command, keep_errors=False)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _failed(self, reason: str) -> str:
        self._close()
        return f"the storage writer: {reason}"

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


@dataclass(frozen=True)
class FlushRequest:
    """The checkpoint, and the ranks whose parts of it go to storage."""

    checkpoint: CheckpointId
    ranks: tuple[int, ...]
    world_size: int
    layout: str
    anew: Mapping[int, int] = field(default_factory=dict)
    """The ranks among ``ranks`` whose parts are lost, and the rank from whose part each is made."""

    def images(self, held: Sequence[Image]) -> dict[int, str]:
        """Return the file from which each held part is written."""
        paths = {image.header.rank: str(image.path) for image in held}
        found = {rank: paths[self.anew.get(rank, rank)] for rank in self.ranks}
        return found | {SHARED: paths[SHARED]} if SHARED in paths else found


@dataclass
class Written:
    """What became of the newest orders of one kind: of those to flush, or of those to save."""

    done: FlushRequest | None = None
    """What is on storage."""
    over: CheckpointId | None = None
    """What no node needs to keep any more."""
    failed: tuple[FlushRequest, str] | None = None
    """What could not be put there, and why."""


class _Job(NamedTuple):
    """One request: the images that are locked for it, and what is reported once they are written."""

    wanted: FlushRequest
    held: list[Image]
    outcome: Written


class Flusher:
    """One step at a time: held from when its images are whole until they are on storage, or given up.

    A checkpoint of an earlier generation may be saved while the running one flushes its own: one of them
    waits for the other.
    """

    def __init__(
        self,
        *,
        job_dir: str,
        run_id: str,
        places: Places,
        kept: Sequence[KeptTier],
        keep: int,
        notes: Notes,
        on_done: Callable[[], None],
        on_local: Callable[[], None],
        writer: StorageWriter | None = None,
    ) -> None:
        """In a thread are called: ``on_done`` when a step is done or given up, ``on_local`` after a copy."""
        self._job_dir = job_dir
        self._run_id = run_id
        self._places = dict(places)
        self._kept = kept
        self._keep = keep
        self._notes = notes
        self._on_done = on_done
        self._on_local = on_local
        self._writer = writer or StorageWriter()
        self._lock = threading.Lock()
        self._wanted: FlushRequest | None = None
        self._asked: CheckpointId | None = None
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.flushes, self.saves = Written(), Written()

    @property
    def flushed(self) -> CheckpointId | None:
        """The checkpoint that was flushed."""
        return self.flushes.done.checkpoint if self.flushes.done is not None else None

    def ask(self, launch: Launch, step: int) -> None:
        """Take the controller's order for ``step``; repeated orders for the same change nothing."""
        checkpoint = CheckpointId(generation=launch.generation, step=step)
        with self._lock:
            if self._asked == checkpoint:
                return
            self._asked = checkpoint
            wanted = FlushRequest(checkpoint, launch.ranks, launch.world_size, launch.layout)
            is_started = self._start()
            self._wanted = wanted if is_started else None
        if not is_started:
            self._end(wanted, self.flushes)

    def save(self, wanted: FlushRequest, held: list[Image]) -> None:
        """Put these images, which are there already and held, on disk and storage."""
        if self._start():
            self._jobs.put(_Job(wanted, held, self.saves))
            return
        for image in held:
            image.close()
        self.saves.failed = wanted, "there are too many threads on this node"
        self._end(wanted, self.saves)

    def _start(self) -> bool:
        if self._thread is None:
            task = "puts snapshots on disk and storage"
            self._thread = self._notes.start_thread("flush", task, self._run, self._closed)
        return self._thread is not None

    def forget(self) -> None:
        """End the generation: what has not come will not come."""
        with self._lock:
            self._wanted = None

    def on_images(self, images: list[FoundImage]) -> None:
        """Take in the whole images of the running generation that are there now."""
        if images:
            self._start()  # which takes seconds, and an order to save leaves half a minute
        with self._lock:
            wanted = self._wanted
            if wanted is None or not any(i.header.step >= wanted.checkpoint.step for i in images):
                return
            chosen = choose(images, wanted.ranks, wanted.checkpoint.step)
            if chosen is None:
                return  # some rank is still at it
            self._wanted = None
        held = _hold(chosen, wanted) if chosen else []
        if not held:
            self._notes.say(
                "flush",
                f"the snapshot of step {wanted.checkpoint.step} for storage was not taken",
                _NOTE_EVERY_S,
            )
            self._end(wanted, self.flushes)
            return
        self._jobs.put(_Job(wanted, held, self.flushes))

    def fork_by(self, fork: Fork) -> None:
        """Use ``fork``, which gives a channel to a new writer, if it can."""
        self._writer.fork = fork

    def close(self) -> None:
        """End the storage writer. What it was at does not count."""
        self.forget()
        self._closed.set()
        self._jobs.put(None)
        self._writer.kill()

    def _run(self) -> None:
        self._writer.warm_up()
        while (job := self._jobs.get()) is not None:
            wanted, held, outcome = job
            task = "copies snapshots to this node's disk"
            copier = self._notes.start_thread("local", task, partial(self._copy, held))
            try:
                order = FlushOrder(
                    images=wanted.images(held),
                    checkpoint=wanted.checkpoint,
                    world_size=wanted.world_size,
                    places=self._places,
                    job_dir=self._job_dir,
                    run_id=self._run_id,
                    layout=wanted.layout,
                    anew=dict(wanted.anew),
                )
                error = self._writer.write(order)
                if error:
                    outcome.failed = wanted, error
                    self._notes.say(
                        "flush",
                        f"step {wanted.checkpoint.step} could not be put on storage: {error}",
                        _NOTE_EVERY_S,
                    )
                else:
                    outcome.done = wanted
            finally:
                self._end(wanted, outcome)
                if copier is not None:
                    copier.join()
                for image in held:
                    image.close()

    def _copy(self, held: list[Image]) -> None:
        for tier in self._kept:
            try:
                for image in held:
                    tier.publish(image, self._keep)
            except OSError as error:
                self._notes.say("local", f"no copy in {tier.path}: {error}", _NOTE_EVERY_S)
        if self._kept:
            self._on_local()

    def _end(self, wanted: FlushRequest, outcome: Written) -> None:
        outcome.over = wanted.checkpoint
        self._on_done()


def choose(images: list[FoundImage], ranks: tuple[int, ...], step: int) -> list[FoundImage] | None:
    """Return the images of ``step`` of all ``ranks`` and of the shared part, if training has one. Pure.

    None while some are still to come; an empty list when one will never come, since its rank has a later
    one. A rank commits its snapshots in the order of their steps, and the shared part with or before its own.
    """
    chosen = []
    shared = [i for i in images if i.header.rank == SHARED]
    for rank in (*ranks, SHARED) if shared else ranks:
        of_rank = [i for i in images if i.header.rank == rank]
        found = [i for i in of_rank if i.header.step == step]
        if found:
            chosen.append(found[0])
        elif any(i.header.step > step for i in of_rank):
            return []
        else:
            return None
    return chosen


def _hold(chosen: list[FoundImage], wanted: FlushRequest) -> list[Image]:
    """Return the images, locked; none if one was refilled meanwhile."""
    held: list[Image] = []
    try:
        for found in chosen:
            held.append(open_image(found.path))
            if held[-1].header.checkpoint != wanted.checkpoint:
                raise CheckpointError("refilled")
    except (CheckpointError, OSError):
        for image in held:
            image.close()
        return []
    return held
