"""Signals as readable bytes, so that they come into the loop like everything else."""

from __future__ import annotations

import signal

from slurm_robust.util.wakeup import WakeUp


class Signals:
    """Those of Slurm and of the owner, from ``with`` on. Main thread only.

    The supervisor blocks them in a controller that begins, so that none ends it before they are watched.
    """

    WATCHED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> Signals:
        self._wakeup = WakeUp()
        self._old_fd = self._wakeup.on_signals()
        self._old = {number: signal.signal(number, lambda *_: None) for number in self.WATCHED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.WATCHED)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._wakeup.close()

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._wakeup.fileno()

    def taken(self) -> list[int]:
        """Numbers of the signals that came since the last call."""
        return [number for number in self._wakeup.clear() if number in self.WATCHED]
