"""By how much a checkpoint in each step makes a step longer, for everything that can take one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.checkpoint_contenders import ASYNC_BEST, CONTENDERS, MEMCPY, OURS
from benchmarks.checkpoint_figures import Aim, Blocking, summaries
from benchmarks.checkpoint_report import Part, table
from benchmarks.checkpoint_runs import Result, folders, run
from benchmarks.samples import Summary, interleaved

# Forward and backward against the bare copy.
RATIO = 3.0
OVERLAP_AIM, AT_ONCE_AIM = 0.2, 1.15
STEPS = 4
GPU_STEP_S = 0.2


@dataclass(frozen=True)
class Case:
    """A contender in a setting: the checkpoint just after the update, or just before it (``at_once``)."""

    contender: str
    at_once: bool = False

    @property
    def name(self) -> str:
        return f"{self.contender}; update at once" if self.at_once else self.contender


def measure(sizes: Sequence[int], reps: int, only: str, console: Console) -> Part:
    """All contenders with all sizes (MB)."""
    part = Part()
    for mb in sizes:
        _measure_size(part, mb, reps, only, console)
    return part


def _measure_size(part: Part, mb: int, reps: int, only: str, console: Console) -> None:
    with folders() as place:
        base = run("calibrate", mb=mb, shm=str(place.shm), ratio=RATIO)
    console.print(
        f"{mb} MB: bare copy {base['memcpy'] * 1e3:.1f} ms, "
        f"forward and backward {base['compute'] * 1e3:.1f} ms"
    )
    runs: dict[Case, list[Result]] = {}
    refused: dict[str, str] = {}
    for rep, case in interleaved(_cases(only), reps):
        if case.contender in refused:
            continue
        result = _run(case, mb, base)
        if "refused" in result:
            refused[case.contender] = result["refused"]
            part.notes.append(f"{case.contender} with {mb} MB is left out: {result['refused']}")
            continue
        runs.setdefault(case, []).append(result)
        every = Blocking.of(result["with"], result["without"]).every
        console.print(f"{rep + 1} {mb} MB, {case.name}: {every * 1e3:.1f} ms")
    found = {case: _summaries(results) for case, results in runs.items()}
    part.facts[f"{mb} MB"] = {
        **base,
        "refused": refused,
        "samples": {case.name: results for case, results in runs.items()},
        "summary": {case.name: {n: asdict(s) for n, s in rows.items()} for case, rows in found.items()},
    }
    part.tables.append(_table(mb, base, found, reps))
    part.aims += _aims(mb, found)


def _cases(only: str) -> list[Case]:
    cases = [Case(name) for name in CONTENDERS]
    cases += [Case(name, at_once=True) for name in (MEMCPY, OURS, ASYNC_BEST)]
    return [c for c in cases if only in c.name or c.contender in (MEMCPY, OURS)]


def _run(case: Case, mb: int, base: Result) -> Result:
    with folders() as place:
        return run(
            "blocking",
            contender=case.contender,
            mb=mb,
            batch=base["batch"],
            at_once=case.at_once,
            turns=min(8, max(2, 2000 // mb)),
            steps=STEPS,
            disk=str(place.disk),
            shm=str(place.shm),
        )


def _summaries(results: Sequence[Result]) -> dict[str, Summary]:
    return summaries([Blocking.of(result["with"], result["without"]) for result in results])


def _table(mb: int, base: Result, found: Mapping[Case, Mapping[str, Summary]], reps: int) -> Table:
    columns = ("", "every step", "/ memcpy", "one alone", "call and wait", "step without")
    rows = []
    for case, row in found.items():
        limit = found[Case(MEMCPY, case.at_once)]["called"].median
        ratio = row["every"].median / limit
        cells = [_ms(row["every"]), f"{ratio:.2f}", *(_ms(row[n]) for n in ("alone", "called", "plain"))]
        rows.append((case.name, *cells))
    size = f"{base['bytes'] / 1e6:.0f} MB"
    title = f"ms by which a checkpoint of {size} makes a step longer: median (range), n={reps}"
    return table(title, columns, rows)


def _aims(mb: int, found: Mapping[Case, Mapping[str, Summary]]) -> list[Aim]:
    aims = []
    for at_once, limit in ((False, OVERLAP_AIM), (True, AT_ONCE_AIM)):
        ours, bare = found.get(Case(OURS, at_once)), found.get(Case(MEMCPY, at_once))
        if ours and bare:
            where = "update right after step()" if at_once else "copy behind forward and backward"
            copy = bare["called"].median
            aims += [
                Aim(f"{mb} MB, {where}, {what}", ours[name].median / copy, limit, "x memcpy")
                for name, what in (("every", "step longer by"), ("called", "step() and wait"))
            ]
    return aims


def _ms(summary: Summary) -> str:
    scaled = Summary(summary.n, *(1e3 * v for v in (summary.median, summary.low, summary.high)))
    return scaled.text(1)


def on_gpu(mb: int, reps: int, console: Console) -> Part:
    """Ours on a GPU: share of a step of 200 ms or more, and the copy beside a plain pinned one."""
    if not torch.cuda.is_available():
        return Part(notes=["gpu: left out, torch sees no CUDA device here"])
    part = Part()
    results = []
    for rep in range(reps):
        with folders() as place:
            results.append(run("gpu", mb=mb, step_s=GPU_STEP_S, disk=str(place.disk), shm=str(place.shm)))
        console.print(f"{rep + 1} GPU: {results[-1]['rate'] / 1e9:.1f} GB/s")
    found = _summaries(results)
    share = Summary.of([_share(result) for result in results])
    copies = {name: Summary.of([r[name] / 1e9 for r in results]) for name in ("rate", "pinned_rate")}
    part.facts = {
        "samples": results,
        "summary": {n: asdict(s) for n, s in {**found, **copies, "share": share}.items()},
    }
    rows = [
        ("step without, ms", _ms(found["plain"])),
        ("longer by, ms", _ms(found["every"])),
        ("share of the step", share.text(4)),
        ("snapshot until whole, GB/s", copies["rate"].text(1)),
        ("plain copy into pinned memory, GB/s", copies["pinned_rate"].text(1)),
    ]
    part.tables.append(table(f"GPU, {mb} MB: median (range), n={reps}", ("", ""), rows))
    return part


def _share(result: Result) -> float:
    found = Blocking.of(result["with"], result["without"])
    return found.every / found.plain
