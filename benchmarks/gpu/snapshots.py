"""Snapshots beside a training: steps shorter than the copy, and graphs that are captured meanwhile."""

from __future__ import annotations

import mmap
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from benchmarks.gpu.bench import GB, Bench
from benchmarks.gpu.memory import mmap_address
from slurm_robust.checkpoint.buffers import TensorPlace
from slurm_robust.checkpoint.gpus import CUDA
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Training
from slurm_robust.config.job import CheckpointConfig
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.policy.checkpoints import next_local_stride

_RUN = "bench-gpu"
_READY_S = 60.0
_STRIDE_AT_MOST = 128  # so that what is measured takes seconds
_MODES = ("global", "thread_local")


class Trained:
    """A training whose state has a size, and its snapshots."""

    def __init__(self, bench: Bench, gb: float) -> None:
        tensors = (torch.zeros(int(gb * GB / 40), device=bench.device) for _ in range(10))
        self.weights = torch.nn.ParameterList(tensors)
        self.optimizer = torch.optim.SGD(self.weights.parameters(), lr=0.0)
        for weight in self.weights:
            weight.grad = torch.zeros_like(weight)
        header = PartHeader(run_id=_RUN, layout="", generation=1, step=0, rank=0, world_size=1)
        where = TensorPlace(header=header, first_on_node=True, ranks_on_node=1, nodes=1)
        folder = MemoryFolder.create(_RUN, Path(tempfile.mkdtemp(dir=bench.place)))
        self.snapshotter = Snapshotter(folder, where)
        self.state = Training(entries={"weights": self.weights, "optimizer": self.optimizer})
        self.gb = gb
        self._bench = bench
        self._taken = 0

    def take(self) -> None:
        self._taken += 1
        self.snapshotter.take(self._taken, self.state)

    def get_ready(self) -> float:
        """Take snapshots until several in turn needed no new memory; returns the seconds that took."""
        begun, in_turn = time.monotonic(), 0
        while in_turn < 4:
            skipped = self.snapshotter.skipped
            self.take()
            self.snapshotter.settle()
            in_turn = 0 if self.snapshotter.reserving or self.snapshotter.skipped > skipped else in_turn + 1
            while self.snapshotter.reserving:
                time.sleep(0.01)
            if time.monotonic() - begun > _READY_S:
                raise TimeoutError(f"no memory for snapshots within {_READY_S:.0f} s")
        return time.monotonic() - begun

    def seconds_a_step(self, compute_s: float, steps: int, *, every: int) -> tuple[float, float]:
        """Seconds of a step in the mean, and for which a snapshot held one up at most; 0: without any."""
        self.snapshotter.settle()  # no step waits for what was before
        blocked = []
        begun = time.perf_counter()
        for step in range(steps):
            self._bench.work(compute_s)
            self.optimizer.step()
            if every and step % every == 0:
                self.take()
                blocked.append(self.snapshotter.blocked_s)
            self._bench.wait()
        return (time.perf_counter() - begun) / steps, max(blocked, default=0.0)


@contextmanager
def training(bench: Bench, gb: float) -> Iterator[Trained]:
    """A training with a state of ``gb`` gigabytes, whose buffers are ready."""
    bench.needs_memory(4 * gb)
    made = Trained(bench, gb)
    try:
        bench.tell("buffers ready", gb=gb, seconds=made.get_ready())
        yield made
    finally:
        made.snapshotter.close()


def keep_up(bench: Bench) -> None:
    """Steps of several lengths with a snapshot in each; then, if they are too short, with a local stride."""
    for gb, steps, lengths in ((0.5, 20, (0.02, 0.1)), (8.0, 6, (0.02, 0.3, 1.0))):
        with training(bench, bench.size(gb)) as trained:
            for compute_s in lengths[:1] if bench.cpu else lengths:
                _compare(bench, trained, compute_s, steps, every=1)
                stride = _local_stride(trained.snapshotter)
                if 1 < stride <= _STRIDE_AT_MOST:
                    _compare(bench, trained, compute_s, 2 * stride, every=stride)


def _compare(bench: Bench, trained: Trained, compute_s: float, steps: int, *, every: int) -> None:
    alone, _ = trained.seconds_a_step(compute_s, steps, every=0)
    before = trained.snapshotter.skipped
    beside, blocked = trained.seconds_a_step(compute_s, steps, every=every)
    bench.tell(
        "steps",
        gb=trained.gb,
        compute_s=compute_s,
        steps=steps,
        stride=every,
        alone_s=alone,
        with_snapshots_s=beside,
        ratio=beside / alone,
        blocked_worst_s=blocked,
        skipped=trained.snapshotter.skipped - before,
    )


def _local_stride(snapshotter: Snapshotter) -> int:
    """What a controller would say after snapshots of each step; 1 if these have not been timed."""
    typical = snapshotter.timings.typical
    if typical is None:
        return 1
    times = SnapshotTimes(
        stride=1, apart_s=typical.step_s, whole_s=typical.whole_s, blocked_s=typical.blocked_s
    )
    return next_local_stride(times, CheckpointConfig().max_blocked_share)


def capture(bench: Bench) -> None:
    """Is a graph whole that a training captures while threads do what ours do?"""
    device = torch.device("cuda", 0)
    x = torch.ones(1000, device=device)
    (x + 1).sum()
    bench.wait()
    memory = mmap.mmap(-1, GB // 4)
    event = CUDA.training(device).record()
    place = mmap_address(memory), len(memory)

    def register() -> None:
        if error := CUDA.register(*place, device):
            raise RuntimeError(f"cudaError {error}")
        CUDA.unregister(place[0])

    works: dict[str, Callable[[], object]] = {"register": register, "wait": event.wait, "query": event.query}
    for mode in _MODES:
        for name, work in works.items():
            _capture(bench, name, mode, work)
    relaxed = {**works, "new event": torch.cuda.Event, "new stream": torch.cuda.Stream, "copy": _copy_beside}
    for name, work in relaxed.items():
        _capture(bench, f"{name}, relaxed", "global", partial(_relaxed, work))
    _capture_beside_snapshots(bench)


def _capture_beside_snapshots(bench: Bench) -> None:
    """The whole: while its memory is being registered, and while its copies and sums are under way."""
    for mode in _MODES:
        registered = Trained(bench, 4.0)  # so large that take() does not wait until it is registered
        try:
            registered.take()
            _capture(bench, "a snapshot's memory is registered", mode, lambda: time.sleep(0.3))
        finally:
            registered.snapshotter.close()
        with training(bench, 1.0) as trained:
            before = trained.snapshotter.skipped
            for _ in range(3):
                trained.take()
                _capture(bench, "a snapshot is copied and summed", mode, lambda: time.sleep(0.2))
            trained.snapshotter.settle()
            bench.tell("snapshots beside captures", mode=mode, skipped=trained.snapshotter.skipped - before)


def _capture(bench: Bench, name: str, mode: str, work: Callable[[], object]) -> None:
    """Capture a graph in ``mode`` while another thread does ``work``, and replay it."""
    x = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    inside, done = threading.Event(), threading.Event()
    errors: list[str] = []

    def beside() -> None:
        inside.wait(20)
        try:
            work()
        except Exception as error:  # noqa: BLE001 - it is a result
            errors.append(_short(error))
        done.set()

    threading.Thread(target=beside, daemon=True).start()
    bench.wait()
    try:
        with torch.cuda.graph(graph, capture_error_mode=mode):
            y = x + 1
            inside.set()
            done.wait(20)
            y.add_(1)
        graph.replay()
        bench.wait()
        result = "whole" if float(y[0]) == 3.0 else f"wrong: {float(y[0])}"
    except Exception as error:  # noqa: BLE001 - it is a result
        result = _short(error)
    inside.set()
    bench.tell("capture", beside=name, mode=mode, graph=result, thread=errors[0] if errors else "")


def _relaxed(work: Callable[[], object]) -> None:
    CUDA.relax()
    work()


def _copy_beside() -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        out = torch.ones(1000, device="cuda")
        torch.empty(1000, pin_memory=True).copy_(out, non_blocking=True)
    stream.synchronize()


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:160]
