"""What it costs to watch a training while nothing fails: step times with all that watches, and without.

Agents, their inspection and the controller are stopped (SIGSTOP) and continued in turns of 2 s, while the
training goes on. So both halves of a pair are the same processes on the same machine, whose speed drifts by
far more than what is measured. What a turn has missed it makes up for in the next one, so the figure is
rather too high. What runs inside of the training's own processes is timed alone.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import torch

from benchmarks import common, timeline
from benchmarks.samples import Interval, Summary, median_ratio, windowed
from benchmarks.scratch import cleanly, scratch
from slurm_robust.sandbox import Sandbox
from slurm_robust.worker.bootstrap import follow
from slurm_robust.worker.step_record import StepRecord

RANKS = 2
NODE = "n1"
# Shorter than the 3 s after which an agent looks for another controller.
TURN_S = 2.0
# The first steps build buckets and fill caches, and the inspection begins with a look at everything.
WARM_S = 20.0
# The one in which the turn began.
COLD_STEPS = 1
LIMIT_S = 120.0
STEPS = 10**9
CALLS, ROUNDS = 20_000, 7


@dataclass(frozen=True)
class Turns:
    """One repetition: mean step time of each pair of turns, seconds, (with, without).

    ``cpu_shares``: what of one core each program used while it was its turn.
    """

    pairs: list[tuple[float, float]]
    cpu_shares: dict[str, float]


@dataclass(frozen=True)
class CallTimes:
    """Microseconds of one call."""

    report_us: float
    hook_us: float


class Watchers:
    """All processes of the user on the node that neither train nor wait for those that do."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._programs = dict(_watching(sandbox))
        self.turns: dict[bool, list[tuple[float, float]]] = {True: [], False: []}

    def take_turn(self, *, running: bool) -> None:
        """Let them run, or stop them, for the time of a turn; they run afterwards."""
        self.signal(signal.SIGCONT if running else signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(TURN_S)
        self.turns[running].append((began, time.monotonic()))
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """To each of them."""
        for process in self._programs:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue  # it ended meanwhile

    def cpu_seconds(self) -> dict[str, float]:
        """What each program has used so far."""
        used: dict[str, float] = defaultdict(float)
        for process, program in self._programs.items():
            times = process.cpu_times()
            used[program] += times.user + times.system
        return used


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a training in turns, and the calls alone; always 0."""
    parser = common.parser(__doc__, reps=2)
    parser.add_argument("--pairs", type=int, default=75, help="pairs of turns of a repetition (default: 75)")
    parser.add_argument("--every", type=int, default=STEPS, help="steps between snapshots (default: never)")
    options = parser.parse_args(argv)
    console, machine = common.console(), common.machine()
    calls = measure_calls()
    samples = []
    with common.boot("overhead", nodes=1) as sandbox:
        for rep in range(options.reps):
            samples.append(measure(sandbox, str(rep), options))
            ratio = median_ratio(samples[-1].pairs)
            console.print(f"{rep + 1} {len(samples[-1].pairs)} pairs of turns: {_text('ratio', ratio)}")
    table = common.table(f"Overhead: {options.reps} trainings, watched in turns", "quantity", "value")
    facts: dict[str, object] = {"machine": machine, "samples": [asdict(s) for s in samples]}
    for name, row in _summary(samples, calls).items():
        facts[name] = row if isinstance(row, float) else asdict(row)
        table.add_row(name.replace("_", " "), _text(name, row))
    path = common.write("overhead", facts)
    console.print(table, f"every sample is in {path}")
    return 0


def measure(sandbox: Sandbox, name: str, options: argparse.Namespace) -> Turns:
    """One training, from its start to its end."""
    folder = common.folder_for(sandbox, f"watched-{name}")
    job = common.submit(
        sandbox, folder, [f"--nodelist={NODE}", "--exclusive"], _script(folder, options.every)
    )
    try:
        common.wait_for(lambda: _is_ready(folder[0]), LIMIT_S, f"the job in {folder[0]} does not train")
        time.sleep(WARM_S)
        watchers = Watchers(sandbox)
        try:
            before = watchers.cpu_seconds()
            for number in range(options.pairs):
                # A B B A: what changes steadily meets both alike.
                for running in (True, False) if number % 2 == 0 else (False, True):
                    watchers.take_turn(running=running)
            used = watchers.cpu_seconds()
        finally:
            watchers.signal(signal.SIGCONT)
        both = (_step_times(folder[0], watchers.turns[running]) for running in (True, False))
        return Turns(
            pairs=[(statistics.fmean(a), statistics.fmean(b)) for a, b in zip(*both, strict=True) if a and b],
            cpu_shares={name: (used[name] - before[name]) / (options.pairs * TURN_S) for name in used},
        )
    finally:
        common.finish(sandbox, job, patience_s=0.0)


def measure_calls() -> CallTimes:
    """The calls in a loop of their own, best of some rounds: what they cost without cache misses."""
    with scratch("overhead") as folder:
        path = folder / "record"
        record = StepRecord.create(path, generation=1, rank=0)
        report_us = _microseconds(lambda: record.report(1, 2.5, 1.5))
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # no gradient: nothing to do
        without_us = _microseconds(optimizer.step)
        follow(str(path))
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


def _is_ready(folder: Path) -> bool:
    """Whether all ranks begin to train."""
    return sum(mark.name == "ready" for mark in timeline.read(folder / "events.jsonl")) >= RANKS


def _step_times(folder: Path, turns: Sequence[tuple[float, float]]) -> list[list[float]]:
    """For each turn the durations of the steps that lay in it."""
    data = (folder / "ends-0").read_bytes()
    ends = [end for (end,) in struct.iter_unpack("<d", data[: len(data) // 8 * 8])]
    return windowed(ends, turns, COLD_STEPS)


def _script(folder: tuple[Path, str], every: int) -> str:
    settings = {
        "BENCH_DIR": folder[1],
        "BENCH_SAVE": "report",
        "BENCH_STEPS": STEPS,
        "BENCH_EVERY": every,
        **common.EVERY_STEP,
        # Short steps: what is done in each of them weighs most, and a turn has many.
        "BENCH_LAYERS": 1,
        "OMP_NUM_THREADS": 1,
    }
    command = f"srobust run --job-dir {folder[1]}/jobs --nproc-per-node {RANKS} ../{common.TRAINING}"
    return f"{common.exports(settings)}\nexec {command}"


def _watching(sandbox: Sandbox) -> Iterator[tuple[psutil.Process, str]]:
    """Those processes, each with the name of its program."""
    uid = sandbox.config.uid(common.USER)
    for pid in sandbox.host_pids(NODE):
        try:
            process = psutil.Process(pid)
            program = _program(process.cmdline()) if process.uids().real == uid else ""
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
        if program:
            yield process, program


def _program(words: Sequence[str]) -> str:
    """``nodes.live`` and the like; "" for the ranks, which are forked from a worker's process."""
    for word in words[1:3]:
        if Path(word).name == "srobust":
            return "controller"
    modules = (word.removeprefix("slurm_robust.") for word in words if word.startswith("slurm_robust."))
    module = next(modules, "")
    return "" if module.startswith("worker.") else module


def _summary(samples: Sequence[Turns], calls: CallTimes) -> dict[str, Summary | Interval | float]:
    pairs = [pair for sample in samples for pair in sample.pairs]
    return {
        "ratio_of_step_times": median_ratio(pairs),
        "step_ms_without": Summary.of([without * 1e3 for _, without in pairs]),
        "cpu_share_of_a_core": Summary.of([sum(sample.cpu_shares.values()) for sample in samples]),
        **{
            f"cpu_share_of_{program}": Summary.of([sample.cpu_shares.get(program, 0.0) for sample in samples])
            for program in samples[0].cpu_shares
        },
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
    sys.exit(cleanly(main))
