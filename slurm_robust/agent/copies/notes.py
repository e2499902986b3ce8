"""Rate-limited notes from the copy threads for the journal."""

from __future__ import annotations

import threading
import time


class Notes:
    """Collects lines from several threads until the agent's loop takes them.

    ``topic`` is one of a few words, so that not even a hostile peer makes this grow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._said: dict[str, float] = {}

    def say(self, topic: str, text: str, again_s: float = float("inf")) -> None:
        """A line, unless one of this topic was said less than ``again_s`` seconds ago."""
        now = time.monotonic()
        with self._lock:
            if now - self._said.get(topic, float("-inf")) >= again_s or topic not in self._said:
                self._said[topic] = now
                self._lines.append(text)

    def take(self) -> list[str]:
        """The lines since the last call."""
        with self._lock:
            lines, self._lines = self._lines, []
        return lines
