"""Time in tests: a clock that moves only when a test moves it, and many programs that run by such a clock."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from typing import TypeAlias

Program: TypeAlias = Callable[[], None]

_STACK_BYTES = 512 * 1024


class FakeClock:
    """Satisfies the clocks of this package: ``monotonic``, ``time`` and ``sleep``.

    ``sleep`` returns immediately and moves the clock. ``on_advance`` functions run after every move, so that
    a simulated world can follow.
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start
        self.on_advance: list[Callable[[float], None]] = []

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.now

    def time(self) -> float:
        """Return the same number, as wall clock."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance by ``seconds``."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self.now += seconds
        for function in tuple(self.on_advance):  # which may take themselves off the list
            function(self.now)


class VirtualTime:
    """Runs many programs together by ``clock``, which nothing else may move: only sleeping takes time.

    Programs are plain functions, for example whole hooks, that wait by :meth:`VirtualTime.sleep`. They run in
    threads, exactly one at a time, in the order of time, so that a run comes out the same each time.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._order = itertools.count()
        self._due: list[tuple[float, int, _Worker | Program]] = []
        self._idle: list[_Worker] = []
        self._control = threading.Semaphore(0)
        self._running: _Worker | None = None
        self._errors: list[BaseException] = []

    def at(self, when: float, program: Program) -> None:
        """Start ``program`` at the time ``when`` of the clock."""
        heapq.heappush(self._due, (when, next(self._order), program))

    def sleep(self, seconds: float) -> None:
        """Sleep; called by a program, while the others go on."""
        worker = self._running
        assert worker is not None, "only a program may sleep here"
        heapq.heappush(self._due, (self.clock.now + seconds, next(self._order), worker))
        self._control.release()
        worker.may_go.acquire()

    def run(self) -> None:
        """Run until all programs have ended. Raises the first error of any of them, when it happens."""
        before = threading.stack_size(_STACK_BYTES)
        try:
            while self._due:
                when, _, due = heapq.heappop(self._due)
                self.clock.advance(max(0.0, when - self.clock.now))
                worker = due if isinstance(due, _Worker) else self._worker(due)
                self._running = worker
                worker.may_go.release()
                self._control.acquire()
                if self._errors:
                    raise self._errors[0]
        finally:
            threading.stack_size(before)
            for worker in self._idle:
                worker.program = None
                worker.may_go.release()

    def _worker(self, program: Program) -> _Worker:
        worker = self._idle.pop() if self._idle else _Worker(self)
        worker.program = program
        return worker

    def _ended(self, worker: _Worker, error: BaseException | None) -> None:
        if error is not None:
            self._errors.append(error)
        self._idle.append(worker)
        self._control.release()


class _Worker(threading.Thread):
    """A thread that runs one program after the other."""

    def __init__(self, time: VirtualTime) -> None:
        super().__init__(daemon=True)
        self._time = time
        self.program: Program | None = None
        self.may_go = threading.Semaphore(0)
        self.start()

    def run(self) -> None:
        while True:
            self.may_go.acquire()
            if self.program is None:
                return
            error = None
            try:
                self.program()
            except BaseException as raised:  # noqa: BLE001 - raised again in the thread that runs the programs
                error = raised
            self._time._ended(self, error)
