"""Ranks that do this or that, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.stacks import Collective, Frame, ProcessKind, ProcessStacks, RankStacks, ThreadStack

TORCH = "/opt/venv/lib/python3.11/site-packages/torch"
C10D = f"{TORCH}/distributed/distributed_c10d.py"
LOADER = f"{TORCH}/utils/data/dataloader.py"
TRAIN = (Frame(function="train", file="/home/alice/train.py", line=90), Frame(function="<module>"))

ALL_REDUCE = (Frame(function="all_reduce", file=C10D, line=3252), *TRAIN)
ALL_GATHER = (Frame(function="all_gather_into_tensor", file=C10D, line=4001), *TRAIN)
ISEND = (Frame(function="isend", file=C10D, line=2101), *TRAIN)
IRECV = (Frame(function="irecv", file=C10D, line=2151), *TRAIN)
BARRIER = (Frame(function="barrier", file=C10D, line=4901), *TRAIN)
BACKWARD = (Frame(function="_engine_run_backward", file=f"{TORCH}/autograd/graph.py", line=979), *TRAIN)
COMPUTE = (Frame(function="forward", file="/home/alice/model.py", line=12), *TRAIN)
DATA = (
    Frame(function="_PollLikeSelector.select", file="/usr/lib/python3.11/selectors.py", line=415),
    Frame(function="Queue.get", file="/usr/lib/python3.11/multiprocessing/queues.py", line=113),
    Frame(function="_MultiProcessingDataLoaderIter._try_get_data", file=LOADER, line=1291),
    *TRAIN,
)
IDLE_LOADER = (
    Frame(function="Queue.get", file="/usr/lib/python3.11/multiprocessing/queues.py", line=113),
    Frame(function="_worker_loop", file=f"{TORCH}/utils/data/_utils/worker.py", line=334),
)
BUSY_LOADER = (Frame(function="__getitem__", file="/home/alice/data.py", line=35), *IDLE_LOADER[1:])

Frames = tuple[Frame, ...]

PAPER = ParallelLayout.fit(32, 2, {"tp": 2, "pp": 4}, "tp-pp-dp")
"""The paper's worked example: 16 machines of 2 GPUs, TP 2, PP 4, DP 4."""


def process(
    frames: Frames, kind: ProcessKind = ProcessKind.WORKER, *, state: str = "S", pid: int = 100
) -> ProcessStacks:
    threads = (ThreadStack(frames=frames, name="MainThread", is_main=True),) if frames else ()
    return ProcessStacks(pid=pid, kind=kind, state=state, threads=threads)


def rank(
    number: int,
    frames: Frames,
    *,
    state: str = "S",
    helpers: Sequence[ProcessStacks] = (),
    collectives: Sequence[Collective] = (),
) -> RankStacks:
    return RankStacks(
        rank=number,
        node=f"n{number}",
        processes=(process(frames, state=state), *helpers),
        collectives=tuple(collectives),
        source="py-spy",
    )


def world(
    layout: ParallelLayout, special: Mapping[int, Frames | RankStacks], usual: Frames = ALL_REDUCE
) -> list[RankStacks]:
    """All ranks of ``layout`` do what is ``usual``, but for the ``special`` ones."""
    found = []
    for number in range(layout.world_size):
        doing = special.get(number, usual)
        found.append(doing if isinstance(doing, RankStacks) else rank(number, doing))
    return found
