"""Seconds from a node's power cut to the end of the next new step, with a spare in the allocation."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks import common, timeline
from benchmarks.samples import Summary
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox

NODES, SPARES = 4, 1
WARM_STEP = 5
LIMIT_S = 120.0
# Far more than are needed: the job is cancelled when it has recovered.
STEPS = 100_000


@dataclass(frozen=True)
class Sample:
    """Seconds after the cut: incident opened, workers stopped, launch ordered, first new step, its number."""

    detect: float
    stop: float
    launch: float
    step: float
    new_step: int


def main(argv: Sequence[str] | None = None) -> int:
    """Cut the power of the last slot's node ``--reps`` times; 0 when each was survived."""
    parser = common.parser(__doc__, reps=5)
    parser.add_argument(
        "--batch-host", action="store_true", help="cut that of the first one, with the controller"
    )
    options = parser.parse_args(argv)
    console, machine = common.console(), common.machine()
    samples = []
    # A node that was cut comes back by itself for the next repetition.
    lines = ("ReturnToService=2",)
    with common.boot("power", nodes=NODES + SPARES, slurm_conf_lines=lines) as sandbox:
        for rep in range(options.reps):
            samples.append(measure(sandbox, rep, slot=0 if options.batch_host else -1))
            text = f"seen after {samples[-1].detect:.2f} s, new step after {samples[-1].step:.2f} s"
            console.print(f"{rep + 1} power cut: {text}")
    summaries = {
        name: Summary.of([getattr(s, name) for s in samples]) for name in ("detect", "stop", "launch", "step")
    }
    facts = {"machine": machine, "samples": [asdict(s) for s in samples]}
    name = "power_cut_batch_host" if options.batch_host else "power_cut"
    path = common.write(name, {**facts, "summary": {name: asdict(s) for name, s in summaries.items()}})
    title = f"Seconds after a power cut, {NODES} nodes and {SPARES} spare: median (range), n={options.reps}"
    table = common.table(title, "seen", "stopped and sealed", "launched", "new step")
    table.add_row(*(summary.text() for summary in summaries.values()))
    console.print(table, f"every sample is in {path}")
    return 0


def measure(sandbox: Sandbox, rep: int, slot: int) -> Sample:
    """One job, one power cut of the node in ``slot``, which is on again afterwards."""
    folder = common.folder_for(sandbox, f"power-{rep}")
    settings = {"BENCH_DIR": folder[1], "BENCH_SAVE": "srobust", "BENCH_STEPS": STEPS, "OMP_NUM_THREADS": 1}
    settings |= common.EVERY_STEP
    options = f"--job-dir {folder[1]}/jobs --spares {SPARES} --nproc-per-node 1"
    script = f"{common.exports(settings)}\nexec srobust run {options} ../{common.TRAINING}"
    nodes = f"--nodes={NODES + SPARES}"
    job = common.submit(sandbox, folder, [nodes, "--exclusive", "--no-kill"], script)
    journal = folder[0] / "jobs" / str(job) / "journal.jsonl"
    marks = folder[0] / "events.jsonl"

    def steps_done() -> bool:
        return sum(m.name == "step" and m.step >= WARM_STEP for m in timeline.read(marks)) >= NODES

    def recovered() -> bool:
        return any(isinstance(event, ev.IncidentClosed) for event in read(journal))

    log = folder[0] / "log"
    try:
        common.wait_for(steps_done, LIMIT_S, f"the job does not train; see its output {common.tail(log)}")
        launched = [e for e in read(journal) if isinstance(e, ev.GenerationLaunched)]
        node = launched[-1].slots[slot]
        cut = sandbox.fault.power_cut(node)
        try:
            common.wait_for(
                recovered, LIMIT_S, f"no new step after the power cut of {node}:{common.tail(log)}"
            )
        finally:
            sandbox.fault.boot(node)
    finally:
        common.finish(sandbox, job, patience_s=0.0)
    return sample(read(journal), cut.t)


def sample(journal: Sequence[ev.AnyEvent], cut: float) -> Sample:
    """The times of the one incident of a journal. Pure."""
    opened = next(e for e in journal if isinstance(e, ev.IncidentOpened))
    ended = next(e for e in journal if isinstance(e, ev.GenerationEnded))
    launched = next(e for e in journal if isinstance(e, ev.GenerationLaunched) and e.t >= ended.t)
    closed = next(e for e in journal if isinstance(e, ev.IncidentClosed))
    return Sample(
        detect=opened.t - cut,
        stop=ended.t - cut,
        launch=launched.t - cut,
        step=closed.t - cut,
        new_step=closed.step,
    )


if __name__ == "__main__":
    sys.exit(main())
