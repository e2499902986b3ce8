"""Work that may block (Slurm, shared storage), away from the loop that must answer every heartbeat."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from slurm_robust.util.wakeup import Inbox

Work: TypeAlias = Callable[[], Callable[[], None]]
Failed: TypeAlias = Callable[[BaseException, str], None]


class Background:
    """Runs functions in threads and hands what they return to the loop, in the loop's own thread.

    Threads are daemons: one that hangs in a dead file system does not keep the controller from ending, nor
    does it hold up other work, since there are as many as are busy. Those that are done wait for more.
    """

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Work, Failed]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._results: Inbox[Callable[[], None]] = Inbox()

    def fileno(self) -> int:
        """Readable when something is to be taken by :meth:`drain`."""
        return self._results.fileno()

    def run(self, work: Work, failed: Failed) -> None:
        """Do ``work`` in a thread; the function it returns is called by :meth:`drain`.

        What it raises instead is handed to ``failed`` by :meth:`drain`, with its traceback, so the caller
        gets an answer.
        """
        self._work.put((work, failed))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="srobust-background", daemon=True).start()

    def _serve(self) -> None:
        while True:
            work, failed = self._work.get()
            try:
                then = work()
            except BaseException as error:  # noqa: BLE001 - it is reported, and the thread goes on
                # Here, since the lines of the source are read for it, from storage that may hang.
                then = partial(failed, error, "".join(traceback.format_exception(error)))
            self._idle.release()
            self.post(then)

    def post(self, then: Callable[[], None]) -> None:
        """Have ``then`` called by :meth:`drain`. From any thread."""
        self._results.put(then)

    def drain(self) -> None:
        """Call what has been posted. From the loop's thread only."""
        for then in self._results.take():
            then()
