"""The threads of copies: what they report for the journal, and what becomes of one that raises."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

_NOTE_EVERY_S = 600.0
_AGAIN_S = 0.5
"""Between the error of a thread and its next start."""


class Notes:
    """Collects lines from several threads until the agent's loop takes them.

    ``topic`` is one of a few names, so that not even a hostile peer makes this grow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._said: dict[str, float] = {}

    def say(self, topic: str, text: str, again_s: float = float("inf")) -> bool:
        """Add a line and return True, unless one of this topic came less than ``again_s`` seconds ago."""
        now = time.monotonic()
        with self._lock:
            if topic in self._said and now - self._said[topic] < again_s:
                return False
            self._said[topic] = now
            self._lines.append(text)
            return True

    def take(self) -> list[str]:
        """The lines since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines


class CopyThread:
    """Runs ``work`` in a thread. Whatever it raises is noted: "the thread that ``task``".

    With ``stopped``, ``work`` that raised runs again after a pause, until the event is set. A thread that the
    node refuses to start is noted too.
    """

    def __init__(
        self,
        name: str,
        task: str,
        work: Callable[[], None],
        notes: Notes,
        stopped: threading.Event | None = None,
    ) -> None:
        """Start at once. Never raises; see :attr:`started`."""
        self._name = name
        self._task = task
        self._work = work
        self._notes = notes
        self._stopped = stopped
        # A daemon: one that hangs in the kernel does not keep the agent from its end.
        self._thread = threading.Thread(target=self._run, name=f"srobust-{name}", daemon=True)
        self.started = True
        try:
            self._thread.start()
        except RuntimeError as error:  # this node has too many threads now
            self.started = False
            self._note(f"the thread that {task} cannot be started: {error}")

    def join(self, timeout_s: float | None = None) -> None:
        """Wait for the thread's end."""
        if self.started:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            try:
                self._work()
                return
            except BaseException as error:  # noqa: BLE001 - reported, and where it can be, the work goes on
                self._report(error)
            if self._stopped is None or self._stopped.wait(_AGAIN_S):
                return

    def _report(self, error: BaseException) -> None:
        answer = "its work is given up" if self._stopped is None else "it starts again"
        what = f"{type(error).__name__}: {error}"
        if self._note(f"an unexpected error in the thread that {self._task}: {what}; {answer}"):
            traceback.print_exception(error)

    def _note(self, text: str) -> bool:
        return self._notes.say(f"thread {self._name}", text, _NOTE_EVERY_S)
