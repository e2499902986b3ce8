"""Signals as readable bytes, so that they come into the loop like everything else."""

from __future__ import annotations

import os
import signal


class Signals:
    """Those of Slurm and of the owner, from ``with`` on. Main thread only.

    The keeper blocks them in a controller that begins, so that none ends it before they are watched.
    """

    WATCHED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, lambda *_: None) for number in self.WATCHED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.WATCHED)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._read

    def taken(self) -> list[int]:
        """Numbers of the signals that came since the last call."""
        try:
            return [n for n in os.read(self._read, 256) if n in self.WATCHED]
        except BlockingIOError:
            return []
