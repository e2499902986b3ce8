"""The parts, most important first, each with a time limit; ``python -m benchmarks.gpu.part`` runs one."""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """A function of ``benchmarks.gpu.<module>`` of this name that takes a ``benchmarks.gpu.bench.Bench``."""

    name: str
    module: str
    limit_s: float
    question: str
    needs_cuda: bool = False


PARTS = (
    Part(
        "recorder", "hang", 60, "what the flight recorder says of a rank that hangs, with timing and without"
    ),
    Part(
        "stacks", "hang", 40, "what py-spy and the signal show of a rank that waits for its GPU, and how soon"
    ),
)

WHOLE_S = 470.0
"""All limits together: a run takes less than eight minutes, whatever hangs."""


def main() -> None:
    """Run one part; what it raises is a result like any other."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.part", description=__doc__)
    parser.add_argument("name", choices=[part.name for part in PARTS])
    parser.add_argument("--place", type=Path, required=True, help="an empty folder in shared memory")
    parser.add_argument("--results", type=Path, required=True, help="the file of results")
    parser.add_argument("--cpu", action="store_true", help="without a GPU, in small")
    options = parser.parse_args()
    from benchmarks.gpu.bench import Bench, LeftOut

    part = next(part for part in PARTS if part.name == options.name)
    bench = Bench(part.name, options.place, options.results, options.cpu)
    begun = time.monotonic()
    try:
        if part.needs_cuda and options.cpu:
            raise LeftOut("needs CUDA")
        getattr(importlib.import_module(f"benchmarks.gpu.{part.module}"), part.name)(bench)
    except LeftOut as reason:
        bench.tell("left out", reason=str(reason))
    except Exception as error:  # noqa: BLE001
        where = traceback.format_exc().strip().splitlines()[-6:]
        bench.tell("failed", error=f"{type(error).__name__}: {error}"[:600], traceback=where)
    else:
        bench.tell("done", seconds=time.monotonic() - begun)


if __name__ == "__main__":
    main()
