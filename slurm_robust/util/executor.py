"""Work that may hang (shared storage, drivers), done in threads that nobody waits for."""

from __future__ import annotations

import os
import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slurm_robust.util.wakeup import Inbox

T = TypeVar("T")
R = TypeVar("R")

_AT_MOST = 16
_PER_CPU = 2


class SerialExecutor(Generic[T]):
    """Runs functions one after the other in a thread; a loop collects what they return.

    A function that raises is dropped: use it for what has a later chance, or is not needed. What is not an
    ``OSError`` is printed.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], T | None] | None] = queue.SimpleQueue()
        self._results: Inbox[T] = Inbox()
        # A daemon: a thread that hangs in the kernel must not keep the process from its end.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def fileno(self) -> int:
        """Readable when :meth:`results` has something."""
        return self._results.fileno()

    def submit(self, work: Callable[[], T | None]) -> None:
        """Run ``work``; unless it returns None, :meth:`results` has its result."""
        self._work.put(work)

    def results(self) -> list[T]:
        """What was finished since the last call."""
        return self._results.take()

    def close(self, timeout_s: float = 0.5) -> None:
        """Let the thread end, unless it hangs."""
        self._work.put(None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._results.close()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                result = work()
            except OSError:
                continue
            except BaseException as error:  # noqa: BLE001 - what comes after it must still be done
                traceback.print_exception(error)
                continue
            if result is not None:
                self._results.put(result)


def together(
    job: Callable[[T], R], things: Sequence[T], *, deadline: float, otherwise: Callable[[T], R]
) -> tuple[R, ...]:
    """What ``job`` gives for each of ``things``, a few per CPU at a time, the first ones first.

    From ``deadline`` (monotonic seconds) on, what ``otherwise`` gives for those that have no result.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(things)):
        waiting.put(index)
    results: dict[int, R] = {}

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            results[index] = job(things[index])

    threads: list[threading.Thread] = []
    for _ in things[: min(_AT_MOST, _PER_CPU * len(os.sched_getaffinity(0)))]:
        # A daemon: starting a program from storage that does not answer hangs in the kernel.
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break  # no more are allowed; those that there are do all the work
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found = dict(results)
    return tuple(found[i] if i in found else otherwise(thing) for i, thing in enumerate(things))
