"""Asks a child process whether the GPUs of this node are free again. No call waits for anything."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterable

from slurm_robust.nodes.gpus.nvml import LIBRARY

FREE, NO_GPUS = "free", "no GPUs"
"""The last words of the child."""


class GpuWait:
    """One child for each wait. ``possible``: there may be GPUs to wait for."""

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
                # A signal to the agent's group is no order to it.
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
        said = FREE.encode()
        if self._process is not None and self._process.stdout is not None:
            try:
                said = os.read(self._process.stdout.fileno(), 65536) or said
            except BlockingIOError:
                return None
        word = said.decode(errors="replace").splitlines()[-1]
        if word == NO_GPUS:
            self.possible, word = False, FREE
        if word == FREE:
            self.end()
        return word

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
