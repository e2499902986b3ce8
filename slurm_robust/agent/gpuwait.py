"""Waiting until the GPUs of this node are free of ended workers. No call blocks."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable

from slurm_robust.nodes.gpus.nvml import LIBRARY

FREE, NO_GPUS = "free", "no GPUs"
"""The last line of the child."""


class GpuWait:
    """Asks a child process, one for each wait. ``possible``: there may be GPUs to wait for."""

    def __init__(self) -> None:
        self.possible = _has_library()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        self._over: list[subprocess.Popen[bytes]] = []

    def fileno(self) -> int:
        """Readable when :meth:`read` has something; -1 while nothing is waited for."""
        process = self._process
        return process.stdout.fileno() if self._is_asked and process and process.stdout else -1

    def prepare(self) -> None:
        """Start the child, which has read its modules by the time the workers are gone."""
        if not self.possible or self._process is not None:
            return
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "slurm_robust.agent.gpumemory", "--parent", str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # A signal to the agent's group is not for it.
                start_new_session=True,
            )
        except OSError:
            return  # what cannot be asked is not waited for
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def ask(self, workers: Iterable[int]) -> None:
        """Have it wait until nothing of ``workers`` (process groups) is left."""
        self.prepare()
        self._is_asked = True
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(" ".join(map(str, workers)).encode() + b"\n")
                self._process.stdin.close()
            except OSError:
                pass  # it has ended already, and has said why

    def read(self) -> str | None:
        """What is still held, :data:`FREE` when nothing is; None without news."""
        if not self._is_asked:
            return None
        line = FREE.encode()
        if self._process is not None and self._process.stdout is not None:
            try:
                line = os.read(self._process.stdout.fileno(), 65536) or line
            except BlockingIOError:
                return None
        held = line.decode(errors="replace").splitlines()[-1]
        if held == NO_GPUS:
            self.possible, held = False, FREE
        if held == FREE:
            self.end()
        return held

    def end(self) -> None:
        """Wait for nothing any more."""
        self._is_asked = False
        self._over = [process for process in self._over if process.poll() is None]
        if self._process is None:
            return
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.kill()
        # One that hangs in the driver dies later.
        self._over.append(self._process)
        self._process = None


def _has_library() -> bool:
    """Whether the driver's library is here. Loading it asks the driver nothing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


# Figures of others: 0.4 to 0.8 s for device memory, more than 30 s in bad cases (sgl-project/sglang#31871).
GPUS_S = 60.0


class Freeing:
    """The time from the end of workers until nothing of theirs is left on the GPUs, 60 s at most.

    Decides only; times are monotonic seconds.
    """

    def __init__(self) -> None:
        self._since: float | None = None
        self._held = ""

    @property
    def deadline(self) -> float | None:
        """When waiting is over in any case; None while nothing is waited for."""
        return None if self._since is None else self._since + GPUS_S

    def begin(self, now: float) -> None:
        """The workers have ended."""
        self._since, self._held = now, "the driver does not answer"

    def hold(self, held: str) -> None:
        """``held`` is what they hold, for people."""
        self._held = held

    def end(self, now: float) -> float:
        """Nothing is waited for any more; how long it took."""
        since, self._since = self._since, None
        return 0.0 if since is None else now - since

    def complaint(self) -> str:
        """What to say when waiting ends at its bound."""
        return f"GPUs are not free {GPUS_S:.0f} s after their workers ended: {self._held}"
