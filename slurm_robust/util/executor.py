"""Work that may hang (shared storage, drivers), done in a thread that nobody waits for."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from typing import Generic, TypeVar

from slurm_robust.util.wakeup import Inbox

T = TypeVar("T")


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
