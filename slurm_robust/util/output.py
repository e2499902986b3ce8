"""What the controller says in the job's own output, each line with the time and our name."""

from __future__ import annotations

import os
import threading
import time
from collections import deque

from slurm_robust.util.text import folded, message
from slurm_robust.util.threads import start_thread

PATIENCE_S = 0.2
_MAX_LINES = 10_000


def say(text: str) -> None:
    """Print ``text``; lines after the first stay lines, indented. Waits 0.2 s at most for who takes it.

    The job's output may lie on storage that hangs or is full, which must not end the job's supervision: what
    it would have said stands in the journal.
    """
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    lines = f"srobust: {stamp} {message(text)}".split("\n")
    try:
        columns = os.get_terminal_size(1).columns  # within salloc, the terminal of a person
    except OSError:
        columns = 0
    if columns:
        lines = [part for line in lines for part in folded(line, columns)]
    _output.print("\n".join(lines) + "\n")


def settle(timeout_s: float) -> None:
    """Wait until all that was said is out, at most ``timeout_s``: the process is about to end."""
    _output.settle(timeout_s)


class _Output:
    """The standard output, written in order by a thread of its own, which may hang."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque(maxlen=_MAX_LINES)
        self._pid = 0  # of the process that has the thread

    def print(self, text: str) -> None:
        """Write ``text`` in one piece."""
        with self._changed:
            is_behind = bool(self._waiting)
            self._waiting.append(text.encode(errors="replace"))
            if self._pid != os.getpid():
                self._pid = os.getpid()
                start_thread("output", self._serve)
            self._changed.notify_all()
        if not is_behind:
            self.settle(PATIENCE_S)

    def settle(self, timeout_s: float) -> None:
        """Wait until all is written, at most ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting[0]
            try:
                # Not by sys.stdout: its lock would be held while this hangs, and Python would not end.
                os.write(1, text)
            except OSError:
                pass
            with self._changed:
                if self._waiting and self._waiting[0] is text:  # else there were too many lines
                    self._waiting.popleft()
                self._changed.notify_all()


_output = _Output()
