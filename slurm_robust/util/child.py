"""A child process that answers lines with lines, in a session that signals to ours do not reach."""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from slurm_robust.util.program import kill_group


class LineProcess:
    """A child that answers each line on its stdin with one line on its stdout.

    Used for what must not run in this process. Only :meth:`kill` may be called from another thread.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, keep_errors: bool = True
    ) -> None:
        """Start the child. ``keep_errors``: for the text of the ``EOFError``; else the child writes to this
        process's stderr.

        Raises ``OSError``.
        """
        self._errors = tempfile.TemporaryFile() if keep_errors else None  # noqa: SIM115  # lives as long as it
        self._buffer = b""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=None if env is None else dict(env),
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.poll() is None

    def send(self, line: str) -> None:
        """Write one line. Raises ``BrokenPipeError`` when the child is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, timeout_s: float) -> str:
        """Return the next line. Raises ``TimeoutError``; at the child's end ``EOFError`` with the errors."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        fd = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise TimeoutError(f"no answer within {timeout_s:g} s")
            chunk = os.read(fd, 65536)
            if not chunk:
                raise EOFError(self.errors())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def errors(self) -> str:
        """Return the end of what the child wrote to stderr, 2000 bytes at most; "" if that is not kept."""
        if self._errors is None:
            return ""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        return self._errors.read().decode(errors="replace").strip()

    def kill(self) -> None:
        """Kill the child, whatever it does. Works from any thread; returns immediately."""
        self._process.kill()

    def close(self) -> None:
        """Kill the child and what it started; returns when it is reaped."""
        kill_group(self._process)
        if self._errors is not None:
            self._errors.close()
