"""Waits until dead workers hold no GPU memory any more: ``python -m slurm_robust.agent.gpumemory``.

When a worker is gone, its driver may still be tearing down what it had: memory stayed taken for more than
30 s with no surviving process (reported in sgl-project/sglang#31871). A process of its own, because a driver
that does so may let a question hang, and because the zygote must never have asked it anything.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from slurm_robust.config.errors import ConfigError
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.gpus.facts import GpuProcess, Use
from slurm_robust.nodes.gpus.nvidia import read_use
from slurm_robust.nodes.gpus.nvml import LIBRARY, Nvml, NvmlError
from slurm_robust.util.process import die_with_parent

FREE, NO_GPUS = "free", "no GPUs"
"""The last line of the child."""


class GpuWait:
    """The agent's side: asks a child process, one for each wait. No call blocks."""

    def __init__(self) -> None:
        self.possible = _has_library()  # there may be GPUs to wait for
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        self._over: list[subprocess.Popen[bytes]] = []

    def fileno(self) -> int:
        """Return a descriptor that is readable when :meth:`read` has something; -1 while it is not asked."""
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
        """Return what is still held, :data:`FREE` when nothing is; None without news."""
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
    """Return whether the driver's library is here. Loading it asks the driver nothing."""
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        return False
    return True


STILL_S = 30.0
"""Memory that no process holds and that has not become less for so long will not be given back."""

_POLL_S = 0.1


class Leftovers:
    """What is left on the GPUs of workers that were the process groups ``workers``.

    Memory above ``limit_mb`` (MiB) that no process holds is theirs, as long as something moves.
    """

    def __init__(self, workers: Collection[int], limit_mb: int, group: Callable[[int], int]) -> None:
        self._workers = frozenset(workers)
        self._limit_mb = limit_mb
        self._group = group
        self._seen: tuple[tuple[int, int], ...] = ()
        self._moved = 0.0

    def held(self, gpus: Sequence[Use], now: float) -> str:
        """Return what they still hold, "" if nothing is left or given back; ``now``: monotonic seconds."""
        held = {gpu.label: gpu for gpu in gpus if self._mine(gpu) or self._is_nobodys(gpu)}
        seen = tuple((gpu.memory_mb or 0, len(self._mine(gpu))) for gpu in held.values())
        if seen != self._seen:
            self._seen, self._moved = seen, now
        if not any(self._mine(gpu) for gpu in held.values()) and now - self._moved > STILL_S:
            return ""
        return ", ".join(f"{label} {gpu.memory_mb or 0} MiB" for label, gpu in held.items())

    def _mine(self, gpu: Use) -> list[GpuProcess]:
        return [one for one in gpu.processes if one.ending or self._group(one.pid) in self._workers]

    def _is_nobodys(self, gpu: Use) -> bool:
        return not gpu.processes and (gpu.memory_mb or 0) > self._limit_mb


def main() -> int:
    """Print what is held whenever that changes, and when nothing is."""
    parser = argparse.ArgumentParser(prog="python -m slurm_robust.agent.gpumemory", description=__doc__)
    parser.add_argument("--parent", type=int, required=True, help="the agent's process id")
    die_with_parent(parser.parse_args().parent)
    try:
        Nvml()  # stays open, so that a query takes no lock of the driver for long
    except (OSError, ImportError, NvmlError):
        _report(NO_GPUS)
        return 0
    limit_mb = _config().gpu.max_leftover_memory_mb
    workers = [int(pid) for pid in sys.stdin.readline().split()]
    left, reported = Leftovers(workers, limit_mb, _group), ""
    while held := left.held(read_use(Host()), time.monotonic()):
        if held != reported:
            _report(held)
        reported = held
        time.sleep(_POLL_S)
    _report(FREE)
    return 0


def _report(held: str) -> None:
    # In one write, whatever Python's buffers are like: a line comes whole, or not at all.
    print(f"{held}\n", end="", flush=True)


def _config() -> NodeConfig:
    try:
        return load(FILE)
    except ConfigError:
        return NodeConfig()  # the inspection says so


def _group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
