"""Seconds from an edit of the code to its first step: srobust update --now, beside the alternatives.

Also what a copy of the code costs: taking it, unpacking it, and the start of a job that runs from it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks import common, timeline
from benchmarks.samples import Summary, interleaved
from benchmarks.scratch import cleanly, scratch
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind
from slurm_robust.model.journal import read
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.releases.unpack import unpack
from slurm_robust.sandbox import Sandbox

RANKS = 4
WARM_STEPS = 12
"""Steps that a job completes before anything is asked of it."""
STEPS = 100_000
LIMIT_S = 240.0
FILES = 2000
LINES = 120
"""Of each file: some 5 kB, as Python files have."""

UPDATE, RESTART = "srobust update --now", "restart in place"
REQUEUE, RESUBMIT = "scontrol requeue, tuned", "scancel + sbatch"
WITH, WITHOUT = "start with a release", "start without"
WITHOUT_RELEASES = "--set code.releases=false "


@dataclass(frozen=True)
class Change:
    """From the command on. ``stopped``: the time without a step; ``lost``: steps that were done twice."""

    asked: float
    stopped: float
    lost: int
    phases: dict[str, float] = field(default_factory=dict)


# -- pure --------------------------------------------------------------------------------------------------


def change(marks: Sequence[timeline.Mark], asked: float, ranks: int) -> Change | None:
    """From ``asked`` until all ranks of new processes have done a step; None before."""
    steps = [mark for mark in marks if mark.name == "step"]
    old = {mark.pid for mark in marks if mark.t <= asked}
    first = _first_whole([mark for mark in steps if mark.pid not in old], ranks)
    if first is None:
        return None
    end, step = first
    before = _whole([mark for mark in steps if mark.pid in old], ranks)
    newest = max(before)
    return Change(end - asked, end - before[newest], newest + 1 - step)


def _whole(steps: Sequence[timeline.Mark], ranks: int) -> dict[int, float]:
    """When the last rank had done each step that all have done."""
    times: dict[int, dict[int, float]] = {}
    for mark in steps:
        times.setdefault(mark.step, {}).setdefault(mark.rank, mark.t)
    return {step: max(by_rank.values()) for step, by_rank in times.items() if len(by_rank) == ranks}


def _first_whole(steps: Sequence[timeline.Mark], ranks: int) -> tuple[float, int] | None:
    return min(((t, step) for step, t in _whole(steps, ranks).items()), default=None)


def phases(journal: Sequence[ev.AnyEvent], asked: float) -> dict[str, float]:
    """Where the time of an update goes, by the journal; each ends with the event of its name."""
    ends = {
        "take and ask": ev.UpdateRequested,
        "try": ev.UpdateTried,
        "hold a step": ev.StopStarted,
        "stop": ev.GenerationEnded,
        "launch": ev.GenerationLaunched,
        "first step": ev.FirstStep,
    }
    found, before = {}, asked
    for name, kind in ends.items():
        at = next((event.t for event in journal if isinstance(event, kind) and event.t >= before), None)
        if at is not None:
            found[name], before = at - before, at
    return found


# -- a job and what changes it -----------------------------------------------------------------------------


class Job:
    """A training that runs from ``code/`` of its folder."""

    def __init__(self, sandbox: Sandbox, folder: common.Folder, options: str = "", files: int = 0) -> None:
        self.sandbox, self.folder = sandbox, folder
        code = folder[0] / "code"
        code.mkdir(exist_ok=True)
        shutil.copyfile(common.ROOT / "benchmarks" / common.TRAINING, code / common.TRAINING)
        write_files(code, files)
        settings = {
            "BENCH_DIR": folder[1],
            "BENCH_SAVE": "srobust",
            "BENCH_STEPS": STEPS,
            "OMP_NUM_THREADS": 1,
        }
        run = f"srobust run {options}--nproc-per-node {RANKS} code/{common.TRAINING}"
        began = f"date +%s.%N > {folder[1]}/began"
        self._script = f"{common.exports(settings | common.EVERY_STEP)}\n{began}\nexec {run}"
        self.ids: list[int] = []
        self.submit()

    def submit(self) -> None:
        words = ["--nodes=1", "--exclusive", "--requeue"]
        self.ids.append(common.submit(self.sandbox, self.folder, words, self._script))

    @property
    def marks(self) -> list[timeline.Mark]:
        return timeline.read(self.folder[0] / "events.jsonl")

    @property
    def journal(self) -> list[ev.AnyEvent]:
        return read(self.sandbox.home(common.USER) / "srobust-jobs" / str(self.ids[-1]) / "journal.jsonl")

    def edit(self) -> None:
        with (self.folder[0] / "code" / common.TRAINING).open("a") as script:
            script.write("# an edit\n")

    def ask(self, *words: str) -> None:
        self.sandbox.exec(words, user=common.USER, timeout_s=LIMIT_S, check=True)

    def warm_up(self, steps: int = WARM_STEPS) -> None:
        """Wait until the running ranks have completed this many steps."""

        def warm() -> bool:
            newest = {mark.pid for mark in [m for m in self.marks if m.name == "python"][-RANKS:]}
            return len(_whole([m for m in self._steps() if m.pid in newest], RANKS)) >= steps

        self._wait(warm, "no training")

    def changed(self, do: Callable[[], None]) -> Change:
        """What ``do`` comes to, which brings new processes."""
        asked = time.time()
        do()
        self._wait(lambda: change(self.marks, asked, RANKS) is not None, "no new step")
        found = change(self.marks, asked, RANKS)
        assert found is not None
        return found

    def started_s(self) -> float:
        """Seconds from the batch script to the first step."""
        self._wait(lambda: bool(_whole(self._steps(), RANKS)), "no first step")
        first = min(_whole(self._steps(), RANKS).values())
        return first - float((self.folder[0] / "began").read_text())

    def end(self) -> None:
        common.finish(self.sandbox, *self.ids, patience_s=0.0)

    def _steps(self) -> list[timeline.Mark]:
        return [mark for mark in self.marks if mark.name == "step"]

    def _wait(self, condition: Callable[[], bool], failure: str) -> None:
        try:
            common.wait_for(condition, LIMIT_S, failure, every_s=0.05)
        except common.BenchmarkFailed as error:
            raise common.BenchmarkFailed(f"{error}{common.tail(self.folder[0] / 'log')}") from None


def write_files(folder: Path, files: int) -> None:
    """Write a package of this many modules, a hundred to a folder."""
    for number in range(files):
        path = folder / f"package{number // 100}" / f"module{number}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(
            "".join(f"VALUE_{line} = {number * line}  # a line of code\n" for line in range(LINES))
        )


def measure_ours(job: Job) -> dict[str, Change]:
    """A restart in place and an update, of one job."""
    job.warm_up()
    kill = ["srobust", "drill", str(job.ids[-1]), "kill-rank", "--rank", "2", "--no-wait"]
    restart = job.changed(lambda: job.ask(*kill))
    job.warm_up()
    job.edit()
    asked = time.time()
    update = job.changed(lambda: job.ask("srobust", "update", str(job.ids[-1]), "--now"))
    applied = phases([event for event in job.journal if event.t >= asked], asked)
    return {RESTART: restart, UPDATE: Change(update.asked, update.stopped, update.lost, applied)}


def measure_requeue(job: Job) -> dict[str, Change]:
    """Slurm starts the job again; it resumes by itself."""
    job.warm_up()
    job.edit()
    return {REQUEUE: job.changed(lambda: job.ask("scontrol", "requeue", str(job.ids[-1])))}


def measure_resubmission(job: Job) -> dict[str, Change]:
    """The next job of the same training resumes by itself."""
    job.warm_up()
    job.edit()

    def again() -> None:
        job.ask("scancel", str(job.ids[-1]))
        job.submit()

    return {RESUBMIT: job.changed(again)}


@dataclass(frozen=True)
class Contender:
    """``options`` of its job, and what is measured of it."""

    name: str
    options: str
    measure: Callable[[Job], dict[str, Change]]


CONTENDERS = (
    Contender("ours", "", measure_ours),
    Contender("requeue", WITHOUT_RELEASES, measure_requeue),
    Contender("resubmission", f"{WITHOUT_RELEASES}--training NAME ", measure_resubmission),
)


# -- the copy of the code ----------------------------------------------------------------------------------


def measure_copies(reps: int) -> dict[str, list[float]]:
    """Seconds to take a release of ``FILES`` files, and to unpack it into shared memory."""
    found: dict[str, list[float]] = {"take": [], "unpack": []}
    with tempfile.TemporaryDirectory(prefix="srobust-benchmark-", dir="/var/tmp") as name:
        code = Path(name, "code")
        code.mkdir()
        write_files(code, FILES)
        command = ("code/package0/module0.py",)
        wish = Taking(kind=CommandKind.SCRIPT, command=command, cwd=name, roots=(str(code),))
        for rep in range(reps):
            store = ReleaseStore(Path(name, f"releases-{rep}"))
            store.folder.mkdir(mode=0o700)
            began = time.monotonic()
            release = take(store, wish)
            found["take"].append(time.monotonic() - began)
            with scratch("release") as place:
                began = time.monotonic()
                unpack(store.archive(release.name), release, place / release.name)
                found["unpack"].append(time.monotonic() - began)
    return found


# -- the run -----------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all in turn; 0 when each change came to a new step, and no update lost one."""
    options = _parse(argv)
    console, machine = common.console(), common.machine()
    changes: dict[str, list[Change]] = {}
    starts: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    failed = 0
    copies = measure_copies(options.reps)
    try:
        with common.boot("update", nodes=1, cred_expire_s=5) as sandbox:
            for number, (rep, contender) in enumerate(interleaved(CONTENDERS, options.reps)):
                folder = common.folder_for(sandbox, f"{contender.name}-{rep}")
                job = Job(sandbox, folder, contender.options.replace("NAME", f"bench-{number}"))
                try:
                    for name, found in contender.measure(job).items():
                        changes.setdefault(name, []).append(found)
                        console.print(f"{rep + 1} {name}: {found.stopped:.2f} s without a step")
                except common.BenchmarkFailed as error:
                    failed += 1
                    console.print(f"[red]{rep + 1} {contender.name} failed:[/] {error}")
                finally:
                    job.end()
            for rep, name in interleaved((WITH, WITHOUT), options.reps):
                folder = common.folder_for(sandbox, f"start-{rep}-{name.rpartition(' ')[2]}")
                job = Job(sandbox, folder, "" if name == WITH else WITHOUT_RELEASES, files=FILES)
                try:
                    starts[name].append(job.started_s())
                finally:
                    job.end()
    finally:
        path = common.write("hot_update", {"machine": machine, **_facts(changes, starts, copies)})
        _show(console, changes, {**starts, **copies})
        console.print(f"every sample is in {path}")
    lost = sum(found.lost for found in changes.get(UPDATE, []))
    return 1 if failed or lost else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    return common.parser(__doc__, reps=5).parse_args(argv)


def _facts(
    changes: Mapping[str, Sequence[Change]],
    starts: Mapping[str, Sequence[float]],
    copies: Mapping[str, Sequence[float]],
) -> dict[str, object]:
    times = {**starts, **copies}
    return {
        "files": FILES,
        "samples": {name: [asdict(change) for change in found] for name, found in changes.items()}
        | dict(times),
        "summary": {
            **{name: _summary(found) for name, found in changes.items()},
            **{name: asdict(Summary.of(found)) for name, found in times.items() if found},
        },
    }


def _summary(found: Sequence[Change]) -> dict[str, object]:
    names = found[0].phases
    return {
        "asked": asdict(Summary.of([change.asked for change in found])),
        "stopped": asdict(Summary.of([change.stopped for change in found])),
        "lost": asdict(Summary.of([change.lost for change in found])),
        "phases": {name: statistics.median([c.phases.get(name, 0.0) for c in found]) for name in names},
    }


def _show(
    console: Console, changes: Mapping[str, Sequence[Change]], times: Mapping[str, Sequence[float]]
) -> None:
    title = "Seconds until all 4 ranks have done the first step of changed code: median (range)"
    table = common.table(title, "", "runs", "since the command", "without a step", "/ ours", "steps lost")
    ours = statistics.median([c.stopped for c in changes[UPDATE]]) if changes.get(UPDATE) else None
    for name, found in changes.items():
        stopped = Summary.of([change.stopped for change in found])
        ratio = f"{stopped.median / ours:.2f}" if ours else "-"
        asked = Summary.of([change.asked for change in found]).text()
        lost = Summary.of([change.lost for change in found]).text(0)
        table.add_row(name, str(len(found)), asked, stopped.text(), ratio, lost)
    console.print(table)
    for name, seconds in times.items():
        if seconds:
            console.print(f"{name}, {FILES:,} files: {Summary.of(seconds).text(3)} s")
    if changes.get(UPDATE):
        names = changes[UPDATE][0].phases
        parts = [
            f"{n} {statistics.median([c.phases.get(n, 0.0) for c in changes[UPDATE]]):.2f}" for n in names
        ]
        console.print("the update, phase by phase: " + ", ".join(parts))


if __name__ == "__main__":
    sys.exit(cleanly(main))
