"""Threads for work that may hang (shared storage, drivers, name servers). All are daemons.

A daemon thread that hangs in the kernel does not keep its process from ending.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slurm_robust.util.wakeup import Inbox

T = TypeVar("T")
R = TypeVar("R")

_MAX_THREADS = 16
_PER_CPU = 2


def start_thread(
    name: str, work: Callable[[], object], failed: Callable[[BaseException], None] | None = None
) -> threading.Thread:
    """Run ``work`` in a thread named ``srobust-NAME``. Raises ``RuntimeError`` if the node refuses a thread.

    ``failed``, called in that thread, gets what ``work`` raises; without it, the traceback is printed.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:
            if failed is None:
                raise
            failed(error)

    thread = threading.Thread(target=run, name=f"srobust-{name}", daemon=True)
    thread.start()
    return thread


class BackgroundCall(Generic[T]):
    """One call of a function in a thread of its own, whose result the caller waits for with a time limit."""

    def __init__(self, name: str, work: Callable[[], T]) -> None:
        """Begin. Raises ``RuntimeError`` if the node refuses a thread."""
        self._value: T
        self._error: BaseException | None = None
        self._done = threading.Event()
        start_thread(name, lambda: self._run(work))

    @property
    def done(self) -> bool:
        """Whether the function has returned or raised."""
        return self._done.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the function has returned or raised; False if that takes longer."""
        return self._done.wait(timeout_s)

    def result(self, timeout_s: float) -> T:
        """Wait for the result. Raises ``TimeoutError``, and what the function raised."""
        if not self.wait(timeout_s):
            raise TimeoutError(f"no result within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._value = work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            self._error = error
        self._done.set()


def print_unless_os_error(error: BaseException) -> None:
    """Print the traceback of a defect. What storage or the network refused has a later chance."""
    if not isinstance(error, OSError):
        sys.excepthook(type(error), error, error.__traceback__)


class Executor(Generic[T]):
    """Runs functions in threads; a loop that polls :meth:`fileno` collects what they return.

    One thread runs them one after the other. With ``grows`` there are as many threads as are busy, so that a
    function that hangs holds up no other; idle threads wait for more.
    """

    def __init__(self, name: str, *, grows: bool = False) -> None:
        self._name, self._grows = name, grows
        self._work: queue.SimpleQueue[
            tuple[Callable[[], T | None], Callable[[BaseException], T | None]] | None
        ] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._results: Inbox[T] = Inbox()
        self._thread = None if grows else start_thread(name, self._run)

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`results` has something."""
        return self._results.fileno()

    def submit(
        self,
        work: Callable[[], T | None],
        failed: Callable[[BaseException], T | None] = print_unless_os_error,
    ) -> None:
        """Run ``work``; :meth:`results` has its result unless that is None.

        If ``work`` raises, the result is what ``failed`` returns, which is called in the same thread.
        """
        self._work.put((work, failed))
        if self._grows and not self._idle.acquire(blocking=False):
            start_thread(self._name, self._run)

    def post(self, result: T) -> None:
        """Have ``result`` among the :meth:`results`. Works from any thread."""
        self._results.put(result)

    def results(self) -> list[T]:
        """Take what was finished since the last call."""
        return self._results.take()

    def close(self, timeout_s: float = 0.5) -> None:
        """Let the one thread end, unless it hangs."""
        assert self._thread is not None, "an executor that grows lives as long as its process"
        self._work.put(None)
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._results.close()

    def _run(self) -> None:
        while (given := self._work.get()) is not None:
            work, failed = given
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - reported, and what comes after it is still done
                result = failed(error)
            if self._grows:
                self._idle.release()
            if result is not None:
                self._results.put(result)


def map_until(
    deadline: float, job: Callable[[T], R], things: Sequence[T], *, otherwise: Callable[[T], R]
) -> tuple[R, ...]:
    """Return ``job``'s result for each of ``things``; a few per CPU run at a time, the first ones first.

    After ``deadline`` (monotonic seconds), those without a result get that of ``otherwise``.
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
    for _ in things[: min(_MAX_THREADS, _PER_CPU * len(os.sched_getaffinity(0)))]:
        try:
            threads.append(start_thread("map", work))
        except RuntimeError:
            break  # no more are allowed; those that there are do all the work
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found = dict(results)
    return tuple(found[i] if i in found else otherwise(thing) for i, thing in enumerate(things))
