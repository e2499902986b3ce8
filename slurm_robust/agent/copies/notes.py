"""What the threads of copies report for the journal."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from slurm_robust.util.threads import start_thread

_NOTE_EVERY_S = 600.0
_AGAIN_S = 0.5
"""Seconds between the error of a thread and its next start."""


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
        """Return the lines since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines

    def start_thread(
        self, name: str, task: str, work: Callable[[], None], stopped: threading.Event | None = None
    ) -> threading.Thread | None:
        """Run ``work`` in a thread. Whatever it raises is noted: "the thread that ``task``".

        If ``stopped`` is given, ``work`` that raised runs again after a pause, until the event is set.
        Returns None, and notes it, if the node refuses a thread.
        """
        topic = f"thread {name}"

        def run() -> None:
            while True:
                try:
                    work()
                    return
                except BaseException as error:  # noqa: BLE001 - reported; what can be done again goes on
                    answer = "its work is given up" if stopped is None else "it starts again"
                    what = f"{type(error).__name__}: {error}"
                    text = f"an unexpected error in the thread that {task}: {what}; {answer}"
                    if self.say(topic, text, _NOTE_EVERY_S):
                        traceback.print_exception(error)
                if stopped is None or stopped.wait(_AGAIN_S):
                    return

        try:
            return start_thread(name, run)
        except RuntimeError as error:  # this node has too many threads now
            self.say(topic, f"the thread that {task} cannot be started: {error}", _NOTE_EVERY_S)
            return None
