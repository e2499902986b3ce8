"""What a part measures with: a place in shared memory, a device, and results, each written as it comes."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from slurm_robust.checkpoint.budget import limits

GB = 10**9
# Cycles a second of the GPUs that were measured (H200: 1.98e9); a slower one is busy for longer.
_HZ = 1_900_000_000


class LeftOut(Exception):
    """This machine cannot run the part: the message says what it needs."""


@dataclass(frozen=True)
class Bench:
    """One part's run. ``cpu`` tries the part itself, in small, on a machine without a GPU."""

    part: str
    place: Path
    """An empty folder in shared memory."""
    results: Path
    cpu: bool
    _begun: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> str:
        return "cpu" if self.cpu else "cuda"

    def size(self, gb: float, on_cpu: float = 0.1) -> float:
        """Gigabytes to measure with: ``gb``, or ``on_cpu`` of them."""
        return on_cpu if self.cpu else gb

    def tell(self, what: str, **facts: object) -> None:
        """Print one result as a line of JSON, and append it to the file; floats to four places."""
        result = {"part": self.part, "what": what, "at_s": time.monotonic() - self._begun, **facts}
        line = json.dumps(_rounded(result), default=str)
        with self.results.open("a") as file:
            file.write(line + "\n")
        print(line, flush=True)

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if not self.cpu:
            torch.cuda.synchronize()

    def work(self, seconds: float) -> None:
        """Give the current stream work for so long, for which the host does not wait; on a CPU, sleep."""
        if self.cpu:
            time.sleep(seconds)
        else:
            torch.cuda._sleep(int(seconds * _HZ))  # type: ignore[no-untyped-call]

    def needs_memory(self, gb: float) -> None:
        """Raise :class:`LeftOut` unless shared memory has ``gb`` free, and some to spare."""
        free = free_gb(self.place)
        if free < gb + self.size(6, 0.2):
            raise LeftOut(f"needs {gb:.0f} GB in {self.place.parent} and 6 to spare: {free:.0f} are free")


def free_gb(folder: Path) -> float:
    """Room for files in shared memory, in gigabytes, by the tightest limit."""
    return min(room.free for room in limits(folder)) / GB


def _rounded(value: object) -> object:
    match value:
        case float():
            return round(value, 4)
        case dict():
            return {key: _rounded(one) for key, one in value.items()}
        case list() | tuple():
            return [_rounded(one) for one in value]
        case _:
            return value
