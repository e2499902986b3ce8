"""Seconds from launch to first step where a start costs 20 s: in place, on a rehearsed and a cold standby."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import common
from benchmarks.samples import Summary
from slurm_robust.model import events as ev
from slurm_robust.model.journal import fold, read
from slurm_robust.model.standby import StandbyStage
from slurm_robust.sandbox import Sandbox

SCRIPT = "slow_start.py"
NODES, SPARES = 2, 1
LIMIT_S = 600.0
DOCUMENTS = 18_000
"""Of the index: some 10 s of a core."""


@dataclass(frozen=True)
class Sample:
    """Seconds of one job."""

    cold_start: float  # from the first launch to the first step
    in_place: float  # the same after a rank was killed
    in_place_all: float  # from the kill to the new step
    replaced: float  # the first two after the power of a node was cut
    replaced_all: float
    rehearsal: float  # 0 without


def main(argv: Sequence[str] | None = None) -> int:
    """Measure ``--reps`` jobs with rehearsals and without; 0 when each recovered."""
    parser = common.parser(__doc__, reps=3)
    parser.add_argument(
        "--documents", type=int, default=DOCUMENTS, help="in the index, 0.6 ms of a core each"
    )
    options = parser.parse_args(argv)
    console, machine = common.console(), common.machine()
    samples: dict[str, list[Sample]] = {"rehearsed": [], "cold": []}
    lines = ("ReturnToService=2",)
    with common.boot("rehearsal", nodes=NODES + SPARES, slurm_conf_lines=lines) as sandbox:
        shutil.copyfile(common.ROOT / "benchmarks" / SCRIPT, sandbox.home(common.USER) / SCRIPT)
        for rep in range(options.reps):
            for name, found in samples.items():
                folder = f"{name}-{rep}"
                found.append(measure(sandbox, folder, options.documents, rehearse=name == "rehearsed"))
                text = ", ".join(f"{key} {value:.1f}" for key, value in asdict(found[-1]).items())
                console.print(f"{rep + 1} {name}: {text}")
    facts = {
        "machine": machine,
        "documents": options.documents,
        "samples": {n: [asdict(s) for s in found] for n, found in samples.items()},
    }
    path = common.write("rehearsal", facts)
    columns = ("standby", "first start", "in place", "replaced", "replaced / in place", "rehearsal")
    table = common.table(f"Seconds from the launch to the first step, n={options.reps}", *columns)
    for name, found in samples.items():
        ratio = Summary.of([s.replaced / s.in_place for s in found])
        fields = [Summary.of([getattr(s, f) for s in found]) for f in ("cold_start", "in_place", "replaced")]
        took = Summary.of([s.rehearsal for s in found])
        table.add_row(name, *(s.text() for s in fields), ratio.text(), took.text())
    console.print(table, f"every sample is in {path}")
    return 0


def measure(sandbox: Sandbox, name: str, documents: int, *, rehearse: bool) -> Sample:
    """One job: a rank is killed, then the power of a node is cut."""
    folder = common.folder_for(sandbox, name)
    index = f"/tmp/index-{name}"
    settings = {
        "START_INDEX": index,
        "START_DOCUMENTS": documents,
        "OMP_NUM_THREADS": 1,
        "TORCHINDUCTOR_CACHE_DIR": f"/tmp/inductor-{name}",
    }
    setting = f"--set standby.rehearse={str(rehearse).lower()} --set standby.rehearse_writes={index}"
    options = f"--job-dir {folder[1]}/jobs --spares {SPARES} --nproc-per-node 1 {setting}"
    script = f"{common.exports(settings)}\nexec srobust run {options} ../{SCRIPT}"
    job = common.submit(sandbox, folder, [f"--nodes={NODES + SPARES}", "--exclusive", "--no-kill"], script)
    journal = folder[0] / "jobs" / str(job) / "journal.jsonl"

    def wait(condition: Callable[[Sequence[ev.AnyEvent]], bool], what: str) -> None:
        log = folder[0] / "log"
        tail = log.read_text(errors="replace")[-1500:] if log.exists() else ""
        common.wait_for(lambda: condition(_events(journal)), LIMIT_S, f"{what}:\n{tail}")

    try:
        wait(lambda events: _first_steps(events) >= 1, "no first step")
        if rehearse:
            wait(lambda events: _took_s(events) > 0, "no standby has rehearsed")
        killed = sandbox.fault.kill_rank(job, 1)
        wait(lambda events: _first_steps(events) >= 2, "no step after a kill")
        node = fold(_events(journal)).world.slots[-1]
        cut = sandbox.fault.power_cut(node)
        try:
            wait(lambda events: _first_steps(events) >= 3, "no step after a power cut")
        finally:
            sandbox.fault.boot(node)
    finally:
        common.finish(sandbox, job, patience_s=0.0)
    events = _events(journal)
    launches = [e.t for e in events if isinstance(e, ev.GenerationLaunched)]
    steps = [e.t for e in events if isinstance(e, ev.FirstStep)]
    return Sample(
        cold_start=steps[0] - launches[0],
        in_place=steps[1] - launches[1],
        in_place_all=steps[1] - killed.t,
        replaced=steps[2] - launches[2],
        replaced_all=steps[2] - cut.t,
        rehearsal=_took_s(events),
    )


def _events(journal: Path) -> Sequence[ev.AnyEvent]:
    return read(journal) if journal.exists() else ()


def _first_steps(events: Sequence[ev.AnyEvent]) -> int:
    return sum(isinstance(event, ev.FirstStep) for event in events)


def _took_s(events: Sequence[ev.AnyEvent]) -> float:
    """That the rehearsal took, 0 while none has passed."""
    stages = [event for event in events if isinstance(event, ev.StandbyChanged)]
    return max((e.took_s for e in stages if e.stage is StandbyStage.REHEARSED), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
