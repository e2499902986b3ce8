"""What protection costs while nothing fails: step time with agent and step reports against without.

Two trainings run on the same cores in turns of 2 s, the other one stopped (SIGSTOP) with all that belongs
to it. So both meet the same machine, whose speed drifts by far more than what is measured.
"""

from __future__ import annotations

import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch
from rich.table import Table

from benchmarks import common, timeline
from benchmarks.samples import Interval, Summary, median_ratio, windowed
from slurm_robust.sandbox import Sandbox
from slurm_robust.wire.record import StepRecord
from slurm_robust.worker.stepcount import count_optimizer_steps

RANKS = 2
WITH, WITHOUT = "n1", "n2"  # a node for each, only to tell their processes apart
# Shorter than the 3 s after which an agent looks for another controller.
TURN_S = 2.0
# The first steps build buckets and fill caches.
WARM_S = 5.0
# After a turn of the other one.
COLD_STEPS = 1
LIMIT_S = 120.0
STEPS = 10**9
OWN_MODULES = ("slurm_robust.agent", "slurm_robust.controller", "srobust")
CALLS, ROUNDS = 20_000, 7


@dataclass(frozen=True)
class Turns:
    """One repetition: mean step time of each pair of turns, seconds, (with, without).

    ``cpu_share``: what agent and controller used of one core while it was their turn.
    """

    pairs: list[tuple[float, float]]
    cpu_share: float


@dataclass(frozen=True)
class CallTimes:
    """Microseconds of one call."""

    report_us: float
    hook_us: float


class Training:
    """One of the two jobs: may be stopped and continued with everything of the user on its node."""

    def __init__(self, sandbox: Sandbox, node: str, kind: str, name: str) -> None:
        self._sandbox = sandbox
        self._node = node
        self.folder = common.folder_for(sandbox, f"{kind}-{name}")
        self.job = common.submit(sandbox, self.folder, _options(node, kind), _script(self.folder, kind))
        self.turns: list[tuple[float, float]] = []

    def is_ready(self) -> bool:
        """Whether all ranks begin to train."""
        return sum(m.name == "ready" for m in timeline.read(self.folder[0] / "events.jsonl")) >= RANKS

    def signal(self, number: signal.Signals) -> None:
        """To every process of the user on the node; Slurm's own go on."""
        for process in self.processes():
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile

    def take_turn(self) -> None:
        """Run alone for a while."""
        self.signal(signal.SIGCONT)
        began = time.monotonic()
        time.sleep(TURN_S)
        self.turns.append((began, time.monotonic()))
        self.signal(signal.SIGSTOP)

    def step_times(self) -> list[list[float]]:
        """For each turn the durations of the steps that lay in it."""
        data = (self.folder[0] / "ends-0").read_bytes()
        ends = [end for (end,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]
        return windowed(ends, self.turns, COLD_STEPS)

    def processes(self) -> list[psutil.Process]:
        """The user's processes on the node."""
        uid = self._sandbox.config.uid(common.USER)
        found = []
        for pid in self._sandbox.host_pids(self._node):
            try:
                process = psutil.Process(pid)
                if process.uids().real == uid:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the trainings in turns, and the calls alone; always 0."""
    parser = common.parser(__doc__, reps=3)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of turns of a repetition (default: 30)")
    options = parser.parse_args(argv)
    console, machine = common.console(), common.machine()
    calls = measure_calls()
    samples = []
    with common.boot("overhead", nodes=2) as sandbox:
        for rep in range(options.reps):
            samples.append(measure(sandbox, str(rep), options.pairs))
            ratio = median_ratio(samples[-1].pairs)
            console.print(f"{rep + 1} {len(samples[-1].pairs)} pairs of turns: {_text('ratio', ratio)}")
    table = Table(title=f"Overhead: {options.reps} pairs of jobs in turns", title_justify="left")
    table.add_column("quantity")
    table.add_column("value")
    facts: dict[str, object] = {"machine": machine, "samples": [asdict(s) for s in samples]}
    for name, row in _summary(samples, calls).items():
        facts[name] = row if isinstance(row, float) else asdict(row)
        table.add_row(name.replace("_", " "), _text(name, row))
    path = common.write("overhead", facts)
    console.print(table, f"every sample is in {path}")
    return 0


def measure(sandbox: Sandbox, name: str, pairs: int) -> Turns:
    """Both jobs, from their start to their end."""
    trainings = [Training(sandbox, WITH, "report", name), Training(sandbox, WITHOUT, "none", name)]
    protected, plain = trainings
    try:
        for training in trainings:
            common.wait_for(training.is_ready, LIMIT_S, f"the job in {training.folder[0]} does not train")
        time.sleep(WARM_S)
        own = [p for p in protected.processes() if _is_own(p)]
        for training in trainings:
            training.signal(signal.SIGSTOP)
        used = _cpu_seconds(own)
        for number in range(pairs):
            # A B B A: what changes steadily meets both alike.
            for training in trainings if number % 2 == 0 else reversed(trainings):
                training.take_turn()
        used = _cpu_seconds(own) - used
        both = zip(protected.step_times(), plain.step_times(), strict=True)
        return Turns(
            pairs=[(statistics.fmean(a), statistics.fmean(b)) for a, b in both if a and b],
            cpu_share=used / (pairs * TURN_S),
        )
    finally:
        for training in trainings:
            training.signal(signal.SIGCONT)
        common.finish(sandbox, *(t.job for t in trainings), patience_s=0.0)


def measure_calls() -> CallTimes:
    """The calls in a loop of their own, best of some rounds: what they cost without cache misses."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "record"
        record = StepRecord.create(path, generation=1, rank=0)
        report_us = _microseconds(lambda: record.report(1, 2.5, 1.5))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # no gradient: nothing to do
        without_us = _microseconds(optimizer.step)
        count_optimizer_steps(str(path))
        hook_us = _microseconds(optimizer.step) - without_us
        record.close()
    return CallTimes(report_us=report_us, hook_us=hook_us)


def _microseconds(call: Callable[[], object]) -> float:
    def once() -> float:
        began = time.perf_counter()
        for _ in range(CALLS):
            call()
        return (time.perf_counter() - began) / CALLS * 1e6

    return min(once() for _ in range(ROUNDS))


def _options(node: str, kind: str) -> list[str]:
    tasks = 1 if kind == "report" else RANKS
    return [f"--nodelist={node}", "--nodes=1", f"--ntasks-per-node={tasks}", "--exclusive"]


def _script(folder: tuple[Path, str], kind: str) -> str:
    settings = {"BENCH_DIR": folder[1], "BENCH_SAVE": kind, "BENCH_STEPS": STEPS, "OMP_NUM_THREADS": 1}
    # Short steps: what is done in each of them weighs most, and a turn has many.
    settings |= {"BENCH_LAYERS": 1}
    if kind == "report":
        command = f"srobust run --job-dir {folder[1]}/jobs --nproc-per-node {RANKS} ../{common.TRAINING}"
    else:
        settings |= {"MASTER_ADDR": WITHOUT, "MASTER_PORT": 17171}
        command = f"srun --cpu-bind=none {sys.executable} ../{common.TRAINING}"
    return f"{common.exports(settings)}\nexec {command}"


def _is_own(process: psutil.Process) -> bool:
    words = process.cmdline()
    return any(word == name or word.endswith(f"/{name}") for word in words for name in OWN_MODULES)


def _cpu_seconds(processes: Sequence[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (p.cpu_times() for p in processes))


def _summary(samples: Sequence[Turns], calls: CallTimes) -> dict[str, Summary | Interval | float]:
    pairs = [pair for sample in samples for pair in sample.pairs]
    return {
        "ratio_of_step_times": median_ratio(pairs),
        "step_ms_without": Summary.of([without * 1e3 for _, without in pairs]),
        "cpu_share_of_a_core": Summary.of([sample.cpu_share for sample in samples]),
        "report_us": calls.report_us,
        "hook_us": calls.hook_us,
    }


def _text(name: str, row: Summary | Interval | float) -> str:
    if isinstance(row, Interval):
        return f"{row.estimate - 1:+.2%} (95 % interval {row.low - 1:+.2%} to {row.high - 1:+.2%})"
    if isinstance(row, Summary):
        return row.text(4 if "share" in name else 1)
    return f"{row:.2f}"


if __name__ == "__main__":
    sys.exit(main())
