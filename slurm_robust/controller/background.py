"""Work in threads beside the loop, of which the core hears in the loop's own thread."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from slurm_robust.engine import effects as fx
from slurm_robust.engine.core import Core
from slurm_robust.util.output import say
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


class Errands:
    """What the loop has done in the background, and the ways in which the core hears what came of it."""

    def __init__(
        self,
        background: Background,
        core: Core,
        now: Callable[[], fx.Now],
        do: Callable[[list[fx.Effect]], None],
    ) -> None:
        """``do`` carries out what the core answers."""
        self.background, self.core = background, core
        self.now, self.do = now, do

    def run(self, what: str, work: Work, otherwise: Callable[[str], None]) -> None:
        """Do ``work`` in a thread; if it raises anything, write that down and call ``otherwise`` with it."""

        def failed(error: BaseException, trace: str) -> None:
            text = f"{what}: {type(error).__name__}: {error}"
            say(f"internal error in a background task: {text}\n{trace}")
            self.do(self.core.on_stage_done(what, False, text, self.now()))
            otherwise(text)

        self.background.run(work, failed)

    def note(self, text: str) -> None:
        """Write a fact down."""
        self.core.note(text, "", self.now())

    def report_stage(self, what: str, ok: bool, detail: str) -> None:
        """A stage of what is done is over. From any thread."""
        self.background.post(lambda: self.do(self.core.on_stage_done(what, ok, detail, self.now())))
