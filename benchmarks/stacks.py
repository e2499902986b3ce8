"""What the analysis of stacks costs: 9,600 ranks on 1,200 nodes, as they come over the wire.

Every rank has a worker with helper threads, data loaders and a checkpoint writer: 3 to 5 processes, 30 to 60
calls in main threads. All records are decoded anew, so that no two ranks share an object.
"""

from __future__ import annotations

import gc
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from benchmarks import common
from benchmarks.samples import Summary
from slurm_robust.analysis.stacks import localise, vote
from slurm_robust.evidence import stacks as report_stacks
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import (
    Collective,
    Frame,
    Localisation,
    ProcessKind,
    ProcessStacks,
    RankStacks,
    ThreadStack,
)

REPS = 10
LAYOUT = ParallelLayout.fit(9600, 8, {"tp": 8, "pp": 8}, "tp-pp-dp")
SICK = range(77 * 64, 78 * 64)
"""One pipeline."""

ENV = "/opt/venv/lib/python3.11/site-packages"
C10D = "torch/distributed/distributed_c10d.py"
Frames = tuple[Frame, ...]
Times = list[tuple[float, float]]
Calls = Sequence[tuple[str, str, int]]
THREAD = (
    ("Thread.run", "/usr/lib/python3.11/threading.py", 982),
    ("Thread._bootstrap", "threading.py", 1002),
)
IDLE = (("Condition.wait", "/usr/lib/python3.11/threading.py", 327), *THREAD)
LOADER = (
    ("Queue.get", "/usr/lib/python3.11/multiprocessing/queues.py", 113),
    ("_worker_loop", f"{ENV}/torch/utils/data/_utils/worker.py", 334),
    ("BaseProcess._bootstrap", "/usr/lib/python3.11/multiprocessing/process.py", 314),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/stacks.json."""
    options = common.parser(__doc__, REPS).parse_args(argv)
    machine = common.machine()
    times: dict[str, Times] = {}
    verdicts = {}
    for name, make in SCENES.items():
        stacks = decoded(make)
        analyse = partial(localise, stacks, LAYOUT)
        times[name], found = measured(analyse, options.reps)
        verdicts[name] = {"group": found.group, "exact": found.exact, "ranks": len(found.ranks)}
        if name == "pipeline":
            times["group"], _ = measured(partial(report_stacks.group, stacks, found), options.reps)
            times["vote of 5"], _ = measured(partial(vote, [found] * 5, LAYOUT), options.reps)
            frames = sum(len(t.frames) for s in stacks for p in s.processes for t in p.threads)
            size = {"ranks": len(stacks), "frames": frames}
        del stacks, analyse
        gc.collect()
    walls = {name: Summary.of([wall for wall, _ in found]) for name, found in times.items()}
    cpus = {name: Summary.of([cpu for _, cpu in found]) for name, found in times.items()}
    results = {
        name: {"median_s": wall.median, "min_s": wall.low, "max_s": wall.high, "cpu_s": cpus[name].median}
        for name, wall in walls.items()
    }
    facts = {"reps": options.reps, "machine": machine, **size, "results": results, "verdicts": verdicts}
    common.write("stacks", facts | {"wall_and_cpu_s": times})
    table = common.table(
        f"{size['ranks']} ranks, {size['frames']} calls", "", "seconds", "CPU seconds", "verdict"
    )
    for name, wall in walls.items():
        table.add_row(name, wall.text(3), cpus[name].text(3), str(verdicts.get(name, "")))
    common.console().print(table)
    return 0


def measured(work: Callable[[], object], reps: int) -> tuple[Times, Localisation]:
    """Wall and CPU time of each repetition, and the last result."""
    found, times = None, []
    for _ in range(reps):
        begun = time.perf_counter(), time.process_time()
        found = work()
        times.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    return times, found  # type: ignore[return-value]


def decoded(make: Callable[[int], RankStacks]) -> list[RankStacks]:
    """All ranks, node by node through the wire's encoding."""
    decoder = msgspec.msgpack.Decoder(tuple[RankStacks, ...])
    found: list[RankStacks] = []
    for first in range(0, LAYOUT.world_size, LAYOUT.nproc_per_node):
        node = tuple(make(rank) for rank in range(first, first + LAYOUT.nproc_per_node))
        found += decoder.decode(msgspec.msgpack.encode(node))
    return found


# -- what ranks do ---------------------------------------------------------------------------------


def calls(inner: Calls, rank: int, seed: int = 0) -> Frames:
    """``inner`` and the 30 to 60 calls around it: the same depth for the same place of the program."""
    depth = random.Random(f"{inner[0][0]}{seed}").randint(30, 60) - len(inner)
    around = [
        (f"Module{i}.forward", f"{ENV}/megatron/core/transformer/module{i}.py", 100 + i) for i in range(depth)
    ]
    user = ("train", f"/scratch/job7/n{rank // 8}/pretrain_gpt.py", 210 + seed)
    return tuple(Frame(function=f, file=p, line=n) for f, p, n in (*inner, *around, user))


def process(kind: ProcessKind, pid: int, main: Frames, idle: int) -> ProcessStacks:
    waits = tuple(Frame(function=f, file=p, line=n) for f, p, n in IDLE)
    threads = [ThreadStack(frames=waits, name=f"Thread-{i}") for i in range(idle)]
    main_thread = ThreadStack(frames=main, name="MainThread", is_main=True)
    return ProcessStacks(pid=pid, kind=kind, state="S", threads=(*threads, main_thread))


def rank_stacks(rank: int, main: Frames, collectives: tuple[Collective, ...] = ()) -> RankStacks:
    loader = calls(LOADER, rank)
    processes = [process(ProcessKind.WORKER, 1000 + rank, main, idle=4)]
    processes += [process(ProcessKind.LOADER, 20000 + i, loader, idle=2) for i in range(2 + rank % 2)]
    if rank % 8 == 0:
        processes.append(process(ProcessKind.WRITER, 30000, calls(LOADER, rank), idle=1))
    node = f"n{rank // 8:04d}"
    return RankStacks(
        rank=rank, node=node, processes=tuple(processes), collectives=collectives, source="py-spy"
    )


def waits_in(operation: str) -> Calls:
    return ((operation, f"{ENV}/{C10D}", 3252), ("wrapper", f"{ENV}/torch/distributed/c10d_logger.py", 83))


def pipeline(rank: int) -> RankStacks:
    """The paper's example at its largest size: one pipeline hangs, all others wait for gradients."""
    if rank not in SICK:
        return rank_stacks(rank, calls(waits_in("all_reduce"), rank))
    stage = LAYOUT.coordinates(rank)["pp"]
    operation = {7: "all_gather_into_tensor", 6: "isend"}.get(stage, "irecv")
    return rank_stacks(rank, calls(waits_in(operation), rank))


def one_rank(rank: int) -> RankStacks:
    """One rank computes, all others wait."""
    inner = (("forward", "/scratch/model.py", 12),) if rank == SICK[5] else waits_in("all_reduce")
    return rank_stacks(rank, calls(inner, rank))


def behind(rank: int) -> RankStacks:
    """All wait, and the flight recorder tells for whom: four process groups a rank."""
    lag = rank == SICK[5]
    state = "completed" if lag else "started"
    records = [Collective(group="0:default_pg", sequence=900 - lag, operation="nccl:all_reduce", state=state)]
    for name, group in zip(("tp", "pp", "dp"), groups_of(rank), strict=True):
        records.append(
            Collective(
                group=f"{name}{group[0]}",
                sequence=7000,
                operation="nccl:all_gather",
                state="completed",
                ranks=group,
            )
        )
    return rank_stacks(rank, calls(waits_in("all_reduce"), rank), tuple(records))


def groups_of(rank: int) -> list[tuple[int, ...]]:
    tp, pp, dp = (LAYOUT.coordinates(rank)[name] for name in ("tp", "pp", "dp"))
    return [
        tuple(range(rank - tp, rank - tp + 8)),
        tuple(range(rank - 8 * pp, rank - 8 * pp + 64, 8)),
        tuple(range(rank - 64 * dp, LAYOUT.world_size, 64)),
    ]


def all_differ(rank: int) -> RankStacks:
    """The worst case: no two ranks are in the same place, so nothing is read once for several."""
    return rank_stacks(rank, calls((("forward", "/scratch/model.py", rank),), rank, seed=rank))


SCENES: dict[str, Callable[[int], RankStacks]] = {
    "pipeline": pipeline,
    "one rank": one_rank,
    "flight recorder": behind,
    "all differ": all_differ,
}

if __name__ == "__main__":
    sys.exit(main())
