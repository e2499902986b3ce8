"""Work on shared storage, which may hang for minutes: done in a thread that nobody waits for."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.wire.epochs import EpochRecord, newest_epoch

T = TypeVar("T")

_TAIL_BYTES = 16 * 1024
_LINE_CHARS = 500


class EpochLooked(Record):
    """Result of a look at the job's epochs; ``failed`` when the job directory could not be read."""

    newest: EpochRecord | None
    failed: bool = False


class SlowFiles(Generic[T]):
    """Runs jobs one after the other in a thread; results are collected in the loop.

    ``fileno`` is readable when :meth:`results` has something. A job that raises is dropped: there is
    always a later chance (another look at the epochs) or a life without (a tail).
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], T | None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[T] = queue.SimpleQueue()
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A daemon: a thread that hangs in the kernel must not keep the agent from its end.
        self._thread = threading.Thread(target=self._run, name="srobust-files", daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Descriptor for a poller."""
        return self._read

    def submit(self, job: Callable[[], T | None]) -> None:
        """Have ``job`` done; its result, unless that is None, comes from :meth:`results`."""
        self._jobs.put(job)

    def results(self) -> list[T]:
        """What was finished since the last call."""
        try:
            os.read(self._read, 4096)
        except BlockingIOError:
            pass
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def close(self, timeout_s: float = 0.5) -> None:
        """Let the thread end, unless it hangs."""
        self._jobs.put(None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            os.close(self._read)
            os.close(self._write)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = job()
            except Exception:  # noqa: BLE001 - without this thread the agent would find no other controller
                continue
            if result is None:
                continue
            self._results.put(result)
            try:
                os.write(self._write, b"x")
            except BlockingIOError:
                pass  # full of wake-ups already


def make_log_folders(job: JobDirectory, generation: int, ranks: tuple[int, ...]) -> None:
    """Make the folders in which these workers are about to write. Raises ``OSError``."""
    for folder in {job.worker_log(generation, rank, "out").parent for rank in ranks}:
        folder.mkdir(parents=True, exist_ok=True)


def look_up(epochs: Path) -> EpochLooked:
    """Who controls the job, by the folder of its epochs."""
    try:
        return EpochLooked(newest=newest_epoch(epochs))
    except Exception:  # noqa: BLE001 - who looks must be told, or would not look again
        return EpochLooked(newest=None, failed=True)


def read_tail(paths: tuple[Path, ...], lines: int = 20) -> tuple[str, ...]:
    """The last ``lines`` lines of the first file that has any, from at most 16 KiB. Raises ``OSError``."""
    for path in paths:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except FileNotFoundError:
            continue
        found = [line.rstrip()[:_LINE_CHARS] for line in text.splitlines()]
        if any(found):
            return tuple(found[-lines:])
    return ()
