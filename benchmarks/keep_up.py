"""What a step costs whose snapshot takes longer: bare, with each step kept, and with a local stride."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from benchmarks import common
from benchmarks.samples import Summary, interleaved
from benchmarks.scratch import cleanly, scratch
from slurm_robust.checkpoint.buffers import TensorPlace
from slurm_robust.checkpoint.header import PartHeader
from slurm_robust.checkpoint.memory import MemoryFolder
from slurm_robust.checkpoint.snapshot import Snapshotter
from slurm_robust.checkpoint.state import Training
from slurm_robust.model.progress import SnapshotTimes
from slurm_robust.policy.checkpoints import next_local_stride

RUN = "1-keepup"
STEPS_S = (0.02, 0.1, 0.3, 1.0)
LEAST_STEPS, LEAST_S = 6, 3.0
SETTLE_S = 60.0
STAYS, STAYS_S = 4, 3.0
"""Snapshots and seconds without a rise after which a stride counts as settled."""
SHARE = 0.01
AIM = 1.05
"""Of the shortest step with the stride, against the bare one."""
BARE, EVERY, STRIDE = "bare", "every step", "stride"


@dataclass(frozen=True)
class Sample:
    """Steps of one kind, one after the other."""

    compute_s: float
    kind: str
    step_s: float
    stride: int = 1
    settle_s: float = 0.0  # until the stride was as it stayed
    skipped: int = 0


class Loop:
    """A training of one process with ``mb`` MB of state, whose forward and backward pass take a set time."""

    def __init__(self, folder: Path, mb: int, device: str, *, busy: bool) -> None:
        count = mb * 250_000
        self._weights = nn.ParameterList(
            nn.Parameter(torch.zeros(count // 8, device=device)) for _ in range(8)
        )
        self._optimizer = torch.optim.SGD(self._weights.parameters(), lr=0.0, momentum=0.0)
        self._training = Training(entries={"model": self._weights, "optimizer": self._optimizer})
        self._device, self._busy = device, busy
        self._factor = torch.randn(512, 512, device=device)
        place = TensorPlace(
            header=PartHeader(run_id=RUN, layout="", generation=1, step=0, rank=0, world_size=1),
            first_on_node=True,
            ranks_on_node=1,
            nodes=1,
        )
        self.snapshotter = Snapshotter(MemoryFolder.create(RUN, folder), place)
        self._step = 0

    def warm_up(self) -> None:
        """Take snapshots until the memory of all is there."""
        for _ in range(8):
            self.step(0.0, 1)
            self.snapshotter.settle()
            while self.snapshotter.reserving:
                time.sleep(0.05)

    def step(self, compute_s: float, stride: int) -> None:
        """Make one step, and take the snapshot if one is due; none with stride 0."""
        until = time.perf_counter() + compute_s
        if self._busy:
            while time.perf_counter() < until:
                torch.mm(self._factor, self._factor)
                self._wait()
        else:
            time.sleep(compute_s)
        for weight in self._weights:
            weight.grad = None
        self._optimizer.step()
        self._wait()
        self._step += 1
        if stride and self._step % stride == 0:
            self.snapshotter.take(self._step, self._training)

    def _wait(self) -> None:
        if self._device != "cpu":
            torch.cuda.synchronize()

    def mean_s(self, compute_s: float, stride: int) -> float:
        """Seconds a step, over whole strides."""
        least = max(LEAST_STEPS, math.ceil(LEAST_S / max(compute_s, 0.001)))
        steps = max(1, stride) * math.ceil(least / max(1, stride))
        self.snapshotter.settle()
        begun = time.perf_counter()
        for _ in range(steps):
            self.step(compute_s, stride)
        return (time.perf_counter() - begun) / steps

    def settle(self, compute_s: float) -> tuple[int, float]:
        """Raise the stride as the controller does; return it, and after how many seconds it stayed."""
        stride, begun = 1, time.perf_counter()
        changed = begun
        self.snapshotter.timings.forget()
        while time.perf_counter() - begun < SETTLE_S:
            self.step(compute_s, stride)
            typical = self.snapshotter.timings.typical
            if typical is None or self._step % stride:
                continue
            apart_s = typical.step_s * stride
            times = SnapshotTimes(
                stride=stride, apart_s=apart_s, whole_s=typical.whole_s, blocked_s=typical.blocked_s
            )
            following, since_s = next_local_stride(times, SHARE), time.perf_counter() - changed
            if following > stride:
                stride, changed = following, time.perf_counter()
                self.snapshotter.timings.forget()
            elif since_s > max(STAYS_S, STAYS * apart_s):
                break
        return stride, changed - begun


def main(argv: Sequence[str] | None = None) -> int:
    """Measure ``--reps`` times; 0 when the shortest steps are no slower than they may be."""
    parser = common.parser(__doc__, reps=3)
    parser.add_argument("--mb", type=int, default=500, help="megabytes of state (default: 500)")
    parser.add_argument(
        "--steps-s", type=float, nargs="+", default=STEPS_S, help="seconds of compute in a step"
    )
    parser.add_argument(
        "--busy", action="store_true", help="compute instead of sleeping, in all threads of torch"
    )
    parser.add_argument("--cuda", action="store_true", help="keep the state on a GPU")
    options = parser.parse_args(argv)
    console, machine = common.console(), common.machine()
    samples: list[Sample] = []
    with scratch("keep-up") as folder:
        loop = Loop(folder, options.mb, "cuda" if options.cuda else "cpu", busy=options.busy)
        loop.warm_up()
        for compute_s in options.steps_s:
            for rep, kind in interleaved((BARE, EVERY, STRIDE), options.reps):
                samples.append(measure(loop, compute_s, kind))
                common.say(f"{rep + 1}: {asdict(samples[-1])}")
        loop.snapshotter.close()
    table = common.table(
        f"Seconds a step with {options.mb} MB: median (range) of {options.reps}",
        "compute s",
        BARE,
        EVERY,
        STRIDE,
        "strides",
        "settled after s",
        "every step ÷ bare",
        "stride ÷ bare",
    )
    ratios = {}
    for compute_s in options.steps_s:
        of = {
            k: [s for s in samples if (s.compute_s, s.kind) == (compute_s, k)] for k in (BARE, EVERY, STRIDE)
        }
        times = {kind: Summary.of([s.step_s for s in found]) for kind, found in of.items()}
        ratios[compute_s] = {k: times[k].median / times[BARE].median for k in (EVERY, STRIDE)}
        table.add_row(
            f"{compute_s:g}",
            *(times[kind].text(3) for kind in (BARE, EVERY, STRIDE)),
            ", ".join(str(s.stride) for s in of[STRIDE]),
            Summary.of([s.settle_s for s in of[STRIDE]]).text(1),
            f"{ratios[compute_s][EVERY]:.2f}",
            f"{ratios[compute_s][STRIDE]:.3f}",
        )
    console.print(table)
    facts = {
        "machine": machine,
        "mb": options.mb,
        "busy": options.busy,
        "cuda": options.cuda,
        "samples": [asdict(s) for s in samples],
        "ratios": ratios,
    }
    console.print(f"written: {common.write('keep_up', facts)}")
    return 0 if ratios[min(options.steps_s)][STRIDE] <= AIM else 1


def measure(loop: Loop, compute_s: float, kind: str) -> Sample:
    """Make steps of one kind."""
    before = loop.snapshotter.skipped
    make: Callable[[int], float] = lambda stride: loop.mean_s(compute_s, stride)  # noqa: E731
    if kind == BARE:
        return Sample(compute_s, kind, make(0))
    if kind == EVERY:
        return Sample(compute_s, kind, make(1), skipped=loop.snapshotter.skipped - before)
    stride, settle_s = loop.settle(compute_s)
    step_s = make(stride)
    return Sample(compute_s, kind, step_s, stride, settle_s, loop.snapshotter.skipped - before)


if __name__ == "__main__":
    sys.exit(cleanly(main))
