"""The parts, most important first, each with a time limit; ``python -m benchmarks.gpu.part`` runs one."""

from __future__ import annotations

import argparse
import importlib
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.util.process import die_with_parent


@dataclass(frozen=True)
class Part:
    """A function of ``benchmarks.gpu.<module>`` of this name that takes a ``benchmarks.gpu.bench.Bench``."""

    name: str
    module: str
    limit_s: float
    question: str
    needs_cuda: bool = False


PARTS = (
    Part("recorder", "hang", 36, "the flight recorder of a rank that hangs, with timing and without"),
    Part("stacks", "hang", 20, "py-spy and the signal on a rank that waits for its GPU"),
    Part(
        "registering", "memory", 42, "registering: pages there or not, sizes of pieces, kernels beside", True
    ),
    Part("rates", "memory", 30, "copies from and to the GPU, registered and not; reserving, giving back"),
    Part("sums", "memory", 18, "sums by threads, alone and beside copies"),
    Part("keep_up", "snapshots", 90, "a snapshot in each of steps that are shorter than copy and sums"),
    Part("capture", "snapshots", 40, "whether our threads break a graph that the training captures", True),
    Part("kill", "killed", 80, "SIGKILL with memory registered: gone, free, and what the next worker meets"),
    Part("forks", "forks", 60, "which imports make a zygote's fork unfit for the GPU, and what a fork costs"),
    Part("nvml", "driver", 14, "what NVML answers, and what the GPU checks make of it", True),
    Part("xids", "driver", 38, "which XIDs the driver reports of a program's own faults", True),
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
    parser.add_argument("--parent", type=int, help="the process with which this one ends, too")
    options = parser.parse_args()
    if options.parent:
        die_with_parent(options.parent)
    from benchmarks.gpu.bench import Bench, LeftOut

    part = next(part for part in PARTS if part.name == options.name)
    bench = Bench(part.name, options.place, options.results, options.cpu)
    begun = time.monotonic()
    try:
        getattr(importlib.import_module(f"benchmarks.gpu.{part.module}"), part.name)(bench)
    except LeftOut as reason:
        bench.tell("left out", reason=str(reason))
    except Exception as error:  # noqa: BLE001 - it is the result
        where = traceback.format_exc().strip().splitlines()[-6:]
        bench.tell("failed", error=f"{type(error).__name__}: {error}"[:600], traceback=where)
    else:
        bench.tell("done", seconds=time.monotonic() - begun)


if __name__ == "__main__":
    main()
