"""Waits until dead workers hold no GPU memory any more: ``python -m slurm_robust.agent.gpumemory``.

When a worker is gone, its driver may still be tearing down what it had: memory stayed taken for more than
30 s with no surviving process (reported in sgl-project/sglang#31871). A process of its own, because a driver
that does so may let a question hang, and because the zygote must never have asked it anything.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence

from slurm_robust.agent.gpuwait import FREE, NO_GPUS
from slurm_robust.config.errors import ConfigError
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.nodes.gpus.facts import GpuProcess, Use
from slurm_robust.nodes.gpus.nvidia import read_use
from slurm_robust.nodes.gpus.nvml import DriverError, Nvml
from slurm_robust.nodes.host import Host
from slurm_robust.util.process import die_with_parent

STILL_S = 30.0
"""Memory that nobody holds and that has not become less for so long will not be given back."""

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
        """What they still hold, "" when nothing is left or none is given back; ``now``: monotonic seconds."""
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
    except (OSError, ImportError, DriverError):
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
