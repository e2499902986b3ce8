"""Seconds from the power cut of nodes to the next new step, by each way to replace them, and their WAS.

WAS, the weighted average scheduling time, is the ByteRobust paper's: the mean over the numbers of nodes that
fail at once, up to the standbys that a P99 asks for, by their probability, with 1 % for a catastrophe (a
leaf switch).
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks import common, timeline
from benchmarks.samples import Summary, interleaved
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.policy.spares import PAPER_RATE, QUANTILE, REPLENISH_DAYS, at_once, failing
from slurm_robust.report.job_view import JobView
from slurm_robust.report.startup import start_of
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.boot import EXPEDITES, slurm_version

WARM_STEP = 3
LIMIT_S = 240.0
# Far more than are needed: the job is cancelled when it has recovered.
STEPS = 100_000
RESERVATION = "bench_spares"
CATASTROPHE = 0.01
"""The weight that the paper gives to the loss of a whole switch."""

OURS, ORACLE, RESCHEDULE, REQUEUE = "ours", "oracle", "reschedule", "requeue"
AIMS = {REQUEUE: 10.87, RESCHEDULE: 5.36, ORACLE: 1 / 1.0519}
"""The paper's WAS of each policy, in that of its own way."""


@dataclass(frozen=True)
class Case:
    """``lost`` nodes lose power at once; ``spares`` stand by; ``run`` gets a sandbox, a folder and itself."""

    name: str
    nodes: int
    lost: int
    spares: int
    run: Callable[[Sandbox, common.Folder, Case], Sample]

    @property
    def title(self) -> str:
        """Unique in a run."""
        return self.name if self.lost == 1 else f"{self.name}, {self.lost} nodes lost"


@dataclass(frozen=True)
class Sample:
    """Seconds after the cut. ``detect``: 0 where somebody who knew at once acted; ``stages``: only ours."""

    detect: float
    step: float
    new_step: int
    load: float
    stages: dict[str, float] = field(default_factory=dict)
    requeued: float | None = None
    """Seconds until the new step since Slurm took the order to requeue, if there was one."""

    @property
    def scheduling(self) -> float:
        """From detection on, which is what the paper's WAS counts."""
        return self.step - self.detect


# -- pure ---------------------------------------------------------------------------------------------------


def new_step(marks: Sequence[timeline.Mark], cut: float, ranks: int) -> tuple[float, int] | None:
    """When all ``ranks`` had completed a step that none had before ``cut``, and which step; None before."""
    before = max((m.step for m in marks if m.name == "step" and m.t <= cut), default=-1)
    found: dict[int, dict[int, float]] = {}
    for mark in marks:
        if mark.name == "step" and mark.t > cut and mark.step > before:
            found.setdefault(mark.step, {}).setdefault(mark.rank, mark.t)
    done = [(max(times.values()), step) for step, times in found.items() if len(times) == ranks]
    return min(done, default=None)


def was(times: Mapping[int, float], catastrophe_s: float, nodes: int) -> float:
    """The paper's mean of ``times``, by how many of ``nodes`` fail at once, and of a catastrophe."""
    p = failing(PAPER_RATE, REPLENISH_DAYS)
    weights = {k: math.comb(nodes, k) * p**k * (1 - p) ** (nodes - k) for k in times}
    mean = sum(weights[k] * times[k] for k in times) / sum(weights.values())
    return (1 - CATASTROPHE) * mean + CATASTROPHE * catastrophe_s


def standbys(nodes: int) -> int:
    """As many as a P99 asks for, at the paper's rate; at least one."""
    return max(1, at_once(nodes, failing(PAPER_RATE, REPLENISH_DAYS), QUANTILE))


def switch(nodes: int) -> int:
    """Nodes of a catastrophe: a quarter, as 32 of 128 in the paper, and more than there are standbys."""
    return max(standbys(nodes) + 1, nodes // 4)


def was_table(medians: Mapping[str, float], every: Sequence[Case], nodes: int) -> dict[str, float]:
    """WAS of each policy of which all times were measured; ``medians`` by a case's title.

    The paper's policy reschedules what its standbys are short of; *reschedule* does so for each lost node.
    """

    def seconds(case: Case) -> float | None:
        return medians.get(case.title)

    known = {(c.name, c.lost, c.spares): seconds(c) for c in every}
    warm, shared, requeue = _WARM, _SHARED, _REQUEUE
    counts, most = range(1, standbys(nodes) + 1), switch(nodes)
    policies = {
        OURS: ([(warm, k, k) for k in counts], (_SHORT, most, standbys(nodes))),
        ORACLE: ([(warm, k, k) for k in counts], (warm, most, most)),
        RESCHEDULE: ([(shared, k, 0) for k in counts], (shared, most, 0)),
        REQUEUE: ([(requeue, k, 0) for k in counts], (requeue, most, 0)),
    }
    found = {}
    for policy, (single, worst) in policies.items():
        times = {key[1]: known.get(key) for key in single}
        catastrophe_s = known.get(worst)
        if catastrophe_s is not None and all(t is not None for t in times.values()):
            found[policy] = was({k: t for k, t in times.items() if t is not None}, catastrophe_s, nodes)
    return found


# -- the cases ----------------------------------------------------------------------------------------------

_WARM, _COLD, _SHARED = "warm standby", "cold standby", "shared spare"
_REQUEUE, _RESUBMIT, _SHORT = "requeue, tuned", "resubmission", "standbys and shared spares"


def cases(nodes: int, *, all_of_was: bool) -> list[Case]:
    """One node lost, by each way; with ``all_of_was`` also what the WAS needs beyond."""
    found = [
        Case(_WARM, nodes, 1, 1, srobust),
        Case(_COLD, nodes, 1, 1, srobust_cold),
        Case(_SHARED, nodes, 1, 0, srobust_shared),
        Case(_REQUEUE, nodes, 1, 0, srobust),
        Case(_RESUBMIT, nodes, 1, 0, resubmission),
    ]
    if all_of_was:
        most = switch(nodes)
        for k in (*range(2, standbys(nodes) + 1), most):
            found += [
                Case(_WARM, nodes, k, k, srobust),
                Case(_SHARED, nodes, k, 0, srobust_shared),
                Case(_REQUEUE, nodes, k, 0, srobust),
            ]
        found.append(Case(_SHORT, nodes, most, standbys(nodes), srobust_shared))
    return found


def srobust(sandbox: Sandbox, folder: common.Folder, case: Case) -> Sample:
    """``srobust run`` with its standbys, or none: then it requeues itself without the dead nodes."""
    return _srobust(sandbox, folder, case, lambda spares: None)


def srobust_cold(sandbox: Sandbox, folder: common.Folder, case: Case) -> Sample:
    """The zygotes of the standbys die with the nodes, so that they have to import everything anew."""

    def chill(spares: Sequence[str]) -> None:
        for node in spares:
            for pid in sandbox.host_pids(node):
                if b"slurm_robust.worker.zygote\0" in _command_line(pid):
                    os.kill(pid, signal.SIGKILL)

    return _srobust(sandbox, folder, case, chill)


def srobust_shared(sandbox: Sandbox, folder: common.Folder, case: Case) -> Sample:
    """Spares in a reservation, which companion jobs lend to a job whose standbys are too few."""
    spares = sandbox.config.node_names[-(case.lost - case.spares) :]
    words = [f"reservationname={RESERVATION}", "starttime=now", "duration=UNLIMITED", f"users={common.USER}"]
    (folder[0] / "shared.yaml").write_text(f"companions: {{reservation: {RESERVATION}}}\n")
    create = ["scontrol", "create", "reservation", *words, f"nodes={','.join(spares)}"]
    remove = ["scontrol", "delete", f"reservationname={RESERVATION}"]
    sandbox.exec(create, user="root", check=True)
    try:
        return _srobust(sandbox, folder, case, lambda spares: None, f"--config {folder[1]}/shared.yaml ")
    finally:
        # A companion ends with its job, a moment later.
        common.wait_for(
            lambda: sandbox.exec(remove, user="root", check=False).returncode == 0,
            LIMIT_S,
            "the spares stay lent",
        )


def _srobust(
    sandbox: Sandbox,
    folder: common.Folder,
    case: Case,
    meanwhile: Callable[[Sequence[str]], None],
    more: str = "",
) -> Sample:
    settings = {"BENCH_DIR": folder[1], "BENCH_SAVE": "srobust", "BENCH_STEPS": STEPS, "OMP_NUM_THREADS": 1}
    settings |= common.EVERY_STEP
    options = f"{more}--job-dir {folder[1]}/jobs --spares {case.spares} --nproc-per-node 1"
    script = f"{common.exports(settings)}\nexec srobust run {options} ../{common.TRAINING}"
    requeue = "--requeue=expedite" if slurm_version() >= EXPEDITES else "--requeue"
    words = [f"--nodes={case.nodes + case.spares}", "--exclusive", "--no-kill", requeue]
    job = common.submit(sandbox, folder, words, script)
    journal = folder[0] / "jobs" / str(job) / "journal.jsonl"

    def choose() -> list[str]:
        launched = [e for e in read(journal) if isinstance(e, ev.GenerationLaunched)][-1]
        taken = [e for e in read(journal) if isinstance(e, ev.AllocationTaken)][-1]
        meanwhile(taken.spares)
        return list(launched.slots[-case.lost :])

    step, at, number, load = _measure(sandbox, folder, case, [job], choose, lambda dead: [])
    events = read(journal)
    opened = next(e for e in events if isinstance(e, ev.IncidentOpened))
    taken = (e for e in events if isinstance(e, ev.StageDone) and e.what == "requeue" and e.ok)
    requeued = next((at + step - e.t for e in taken), None)
    return Sample(
        max(0.0, opened.t - at), step, number, load, start_of(JobView(events=events)).stages, requeued
    )


def resubmission(sandbox: Sandbox, folder: common.Folder, case: Case) -> Sample:
    """A plain job, which somebody who knows at once cancels and submits anew without the dead nodes."""
    settings = {"BENCH_DIR": folder[1], "BENCH_SAVE": "torch", "BENCH_STEPS": STEPS, "OMP_NUM_THREADS": 1}
    script = f"""{common.exports(settings)}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 900))
srun --kill-on-bad-exit=1 {sys.executable} ../{common.TRAINING}"""
    words = [f"--nodes={case.nodes}", "--ntasks-per-node=1", "--exclusive", "--no-requeue"]
    jobs = [common.submit(sandbox, folder, words, script)]

    def choose() -> list[str]:
        shown = sandbox.exec(["squeue", "-h", "-j", str(jobs[0]), "-o", "%N"], user=common.USER).stdout
        names = sandbox.exec(["scontrol", "show", "hostnames", shown.strip()], user=common.USER).stdout
        return names.split()[-case.lost :]

    def again(dead: Sequence[str]) -> list[int]:
        sandbox.exec(["scancel", str(jobs[0])], user=common.USER)
        return [common.submit(sandbox, folder, [*words, f"--exclude={','.join(dead)}"], script)]

    step, _, number, load = _measure(sandbox, folder, case, jobs, choose, again)
    return Sample(0.0, step, number, load)


def _measure(
    sandbox: Sandbox,
    folder: common.Folder,
    case: Case,
    jobs: list[int],
    choose: Callable[[], list[str]],
    react: Callable[[Sequence[str]], list[int]],
) -> tuple[float, float, int, float]:
    """Seconds from the cut to the new step, the cut's time, the step, the load; nodes are on afterwards."""
    marks, dead = folder[0] / "events.jsonl", []

    def warm() -> bool:
        done = timeline.read(marks)
        return sum(m.name == "step" and m.step == WARM_STEP for m in done) >= case.nodes

    try:
        common.wait_for(warm, LIMIT_S, "no training")
        dead = choose()
        at = min([sandbox.fault.power_cut(node).t for node in dead])
        jobs += react(dead)

        def recovered() -> bool:
            return new_step(timeline.read(marks), at, case.nodes) is not None

        common.wait_for(recovered, LIMIT_S, f"no new step after the power cut of {', '.join(dead)}")
        found = new_step(timeline.read(marks), at, case.nodes)
        assert found is not None
        return found[0] - at, at, found[1], os.getloadavg()[0]
    except common.BenchmarkFailed as error:
        raise common.BenchmarkFailed(f"{error}; its output: {common.tail(folder[0] / 'log')}") from None
    finally:
        for node in dead:
            sandbox.fault.boot(node)
        # Slurm waits for a node without power until SlurmdTimeout, and that it is on again shows late.
        common.finish(sandbox, *jobs, patience_s=0.0, cancelled_s=LIMIT_S)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# -- the run ------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Measure all cases in turn; 0 when each recovered."""
    options = _parse(argv)
    console, machine = common.console(), common.machine()
    wanted = options.only.split("; ")
    every = [
        c for c in cases(options.nodes, all_of_was=options.was) if any(part in c.title for part in wanted)
    ]
    samples: dict[str, list[Sample]] = {case.title: [] for case in every}
    failed = 0
    # A node that was cut comes back by itself for the next repetition.
    lines = ["ReturnToService=2"]
    if slurm_version() >= EXPEDITES:
        lines.append("SlurmctldParameters=enable_expedited_requeue")
    boot = {"slurm_conf_lines": tuple(lines), "slurmd_timeout_s": options.slurmd_timeout}
    # Whatever a case comes to: a requeue asks for as many nodes as before, without those that were lost.
    extra = max(case.spares + case.lost for case in every)
    try:
        with common.boot("recovery", nodes=options.nodes + extra, cred_expire_s=5, **boot) as sandbox:
            runs = interleaved(every, options.reps)
            for number, (rep, case) in enumerate(runs):
                folder = common.folder_for(sandbox, f"recovery-{number}")
                try:
                    found = case.run(sandbox, folder, case)
                except common.BenchmarkFailed as error:
                    failed += 1
                    console.print(f"[red]{rep + 1} {case.title}: failed:[/] {error}")
                    continue
                samples[case.title].append(found)
                text = f"seen after {found.detect:.2f} s, new step {found.new_step} after {found.step:.2f} s"
                console.print(f"{rep + 1} {case.title}: {text}")
    finally:
        # Also what was measured until something failed: it took minutes.
        path = common.write("recovery", {"machine": machine, **_facts(samples, every, options)})
        _show(console, samples, every, options)
        console.print(f"every sample is in {path}")
    return 1 if failed or not all(samples.values()) else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = common.parser(__doc__, reps=3)
    parser.add_argument("--nodes", type=int, default=4, help="nodes that train, one rank each (default: 4)")
    parser.add_argument("--only", default="", help="parts of the titles of the cases to run: 'warm; cold'")
    parser.add_argument("--was", action="store_true", help="also the loss of a whole switch, for the WAS")
    parser.add_argument(
        "--slurmd-timeout", type=int, default=30, help="SlurmdTimeout of the site (default: 30, tuned)"
    )
    return parser.parse_args(argv)


def _facts(
    samples: Mapping[str, Sequence[Sample]], every: Sequence[Case], options: argparse.Namespace
) -> dict[str, object]:
    found = _was(samples, every, options.nodes)
    return {
        "nodes": options.nodes,
        "slurmd_timeout_s": options.slurmd_timeout,
        "samples": {title: [asdict(s) for s in runs] for title, runs in samples.items()},
        "summary": {
            title: {what: asdict(summary) for what, summary in _summaries(runs).items()}
            for title, runs in samples.items()
        },
        "was": found,
        "was in ours": {policy: s / found[OURS] for policy, s in found.items()} if OURS in found else {},
        "aims": AIMS,
        "standbys": standbys(options.nodes),
        "lost in a catastrophe": switch(options.nodes),
    }


def _was(samples: Mapping[str, Sequence[Sample]], every: Sequence[Case], nodes: int) -> dict[str, float]:
    medians = {t: statistics.median(s.scheduling for s in runs) for t, runs in samples.items() if runs}
    return was_table(medians, every, nodes)


def _summaries(runs: Sequence[Sample]) -> dict[str, Summary]:
    if not runs:
        return {}
    requeued = [s.requeued for s in runs if s.requeued is not None]
    return {
        "detect": Summary.of([s.detect for s in runs]),
        "scheduling": Summary.of([s.scheduling for s in runs]),
        "step": Summary.of([s.step for s in runs]),
        **({"requeued": Summary.of(requeued)} if requeued else {}),
    }


def _show(
    console: Console,
    samples: Mapping[str, Sequence[Sample]],
    every: Sequence[Case],
    options: argparse.Namespace,
) -> None:
    title = f"Seconds after the power cut, {options.nodes} nodes: median (range)"
    table = common.table(
        title,
        "",
        "runs",
        "seen",
        "from then to the new step",
        "new step",
        "of which after the requeue",
        "/ warm",
        "where the time went",
    )
    warm = _summaries(samples.get(_WARM, ()))
    for case in every:
        runs = samples.get(case.title, ())
        found = _summaries(runs)
        if not found:
            table.add_row(case.title, "0", "-", "-", "never", "-", "-", "")
            continue
        ratio = f"{found['step'].median / warm['step'].median:.1f}" if warm else "-"
        cells = [found[what].text() for what in ("detect", "scheduling", "step")]
        cells.append(found["requeued"].text() if "requeued" in found else "-")
        table.add_row(case.title, str(len(runs)), *cells, ratio, _stages(runs))
    console.print(table)
    was_of = _was(samples, every, options.nodes)
    if OURS in was_of:
        console.print(
            f"WAS, {standbys(options.nodes)} standby(s), {switch(options.nodes)} nodes on a switch:"
        )
        for policy, seconds in was_of.items():
            aim = f", aim {AIMS[policy]:.2f}" if policy in AIMS else ""
            console.print(f"  {policy}: {seconds:.2f} s, {seconds / was_of[OURS]:.2f} of ours{aim}")


def _stages(runs: Sequence[Sample]) -> str:
    names = dict.fromkeys(name for run in runs for name in run.stages)
    medians = {name: statistics.median(run.stages.get(name, 0.0) for run in runs) for name in names}
    return ", ".join(f"{name} {spent:.2f}" for name, spent in medians.items() if spent >= 0.005)


if __name__ == "__main__":
    sys.exit(main())
