"""Programs that see stand-in GPUs through the real ``pynvml``."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import TypeVar

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.nodes.gpus.facts import GpuFacts, GpuUse
from slurm_robust.sandbox import gpus as stand_in
from slurm_robust.sandbox.gpus import StandInGpus

BUILD = Path(__file__).resolve().parents[3] / "build" / "stand-ins"
R = TypeVar("R", bound=Record)

READER = """
import sys
import msgspec
from slurm_robust.config.node import NodeConfig
from slurm_robust.nodes.gpus.gather import gather_gpus, gather_use
from slurm_robust.kernel.host import Host
for line in sys.stdin:
    gather = {"gpus": gather_gpus, "use": gather_use}[line.strip()]
    print(msgspec.json.encode(gather(Host(), NodeConfig())).decode(), flush=True)
"""


@cache
def library() -> Path:
    return stand_in.library(BUILD)


def environment(gpus: StandInGpus) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(library().parent), stand_in.STATE_VARIABLE: str(gpus.path)}


def start(code: str, gpus: StandInGpus) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment(gpus),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


class Reader:
    """A process that gathers on demand, so that one start of Python serves many tests."""

    def __init__(self, folder: Path, count: int = 8) -> None:
        self.gpus = StandInGpus(folder / "state", "n1", count)
        self.gpus.reset()
        self._process = start(READER, self.gpus)

    def read(self) -> GpuFacts:
        return self._ask("gpus", GpuFacts)

    def use(self) -> GpuUse:
        return self._ask("use", GpuUse)

    def _ask(self, what: str, kind: type[R]) -> R:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        return msgspec.json.decode(self._process.stdout.readline(), type=kind)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
