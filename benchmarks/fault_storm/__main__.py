"""Random faults in one job: the last weights stay bitwise the same, and nobody innocent is evicted.

``python -m benchmarks.fault_storm [--faults 50] [--minutes 25] [--seed 1]`` (root). Four nodes train, two
stand by, others of the partition can be borrowed. Nodes that were cut come back after a while.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from benchmarks import common
from benchmarks.fault_storm.plan import plan
from benchmarks.fault_storm.storm import JOBS, Storm
from benchmarks.fault_storm.training import Training
from benchmarks.fault_storm.verdict import by_kind, innocents, unequal
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox, SandboxError
from tests.cluster.protected_job import USER
from tests.cluster.shared_storage import shared_disk

END_S = 420.0
CLUSTER = {
    "slurmd_timeout_s": 30,
    "cred_expire_s": 5,
    # A node that was cut comes back by itself, and with an epilog evicted nodes are given back.
    "slurm_conf_lines": ("ReturnToService=2", "Epilog=/bin/true"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """0 if the job completed with the same weights, nobody innocent was evicted and nothing was left."""
    options = _parse(argv)
    machine = common.machine()
    facts: dict[str, object] = {"machine": machine, "seed": options.seed}
    failures: list[str] = []
    with (
        common.boot("storm", nodes=options.nodes, **CLUSTER) as sandbox,
        shared_disk(sandbox, JOBS, mb=256) as disk,
    ):
        training = Training(sandbox, minutes=options.minutes)
        storm = Storm(sandbox, training, disk, options.seed, common.say)
        begun = time.monotonic()
        try:
            planned = plan(options.seed, 2 * options.faults + 1)  # not each finds a target
            storm.run(planned, options.faults, begun + 60 * options.minutes)
            facts["faults_took_s"] = round(time.monotonic() - begun)
            _end(storm, training)
            failures += _compare(sandbox, training, facts)
        except (common.BenchmarkFailed, SandboxError, AssertionError) as error:
            failures.append(str(error).splitlines()[0])
        finally:
            storm.watch.end()
            _keep(sandbox, training)
        failures += _judge(storm, training, facts)
        if not failures:
            failures += _left(sandbox, options.patience)
    facts["failures"] = failures
    path = common.write("fault_storm", facts)
    _show(storm, facts, path)
    print("\n".join(failures))
    return 1 if failures else 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fault_storm", description=__doc__)
    parser.add_argument("--faults", type=int, default=50, help="that find a target (default: 50)")
    parser.add_argument("--minutes", type=float, default=25.0, help="no fault later than this (default: 25)")
    parser.add_argument("--seed", type=int, default=1, help="chooses kinds, times and targets (default: 1)")
    parser.add_argument("--nodes", type=int, default=16, help="of the cluster (default: 16)")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds in which nothing must be left (default: 60)"
    )
    return parser.parse_args(argv)


def _end(storm: Storm, training: Training) -> None:
    storm.mend()
    training.end_soon()
    training.wait(lambda: training.state.ended is not None, END_S, "end of the run")
    over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "")
    training.wait(lambda: training.slurm_state() in over, END_S, "end of the job")


def _compare(sandbox: Sandbox, training: Training, facts: dict[str, object]) -> list[str]:
    """The job's end, and its weights against those of an undisturbed run."""
    shown, code = training.slurm_state(), training.exit_code()
    facts["job"] = f"{shown} {code}"
    found = [] if (shown, code) == ("COMPLETED", "0:0") else [f"the job is {shown} {code}"]
    hashes, final = training.hashes(), training.out.read_text()
    steps = max(hashes) + 1
    sandbox.wait_idle(120.0)
    common.say(f"reference: {steps} steps without faults")
    reference = Training(sandbox, steps=steps)
    reference.wait(lambda: reference.state.ended is not None, 60 + steps * 0.2, "end of the reference")
    reference.wait(lambda: reference.slurm_state() in ("COMPLETED", ""), 60, "end of the reference")
    others = unequal(hashes, reference.hashes())
    facts |= {"steps": steps, "unequal": others, "final": final, "equal": final == reference.out.read_text()}
    found += [f"weights differ after steps {others[:10]}"] if others else []
    return found + ([] if facts["equal"] else ["the final weights differ"])


def _judge(storm: Storm, training: Training, facts: dict[str, object]) -> list[str]:
    journal = training.journal()
    evicted = innocents(journal, storm.planted)
    counts = {
        "requeues": sum(isinstance(e, ev.RequeueStarted) for e in journal),
        "runs": sum(isinstance(e, ev.AllocationTaken) for e in journal),
        "generations": sum(isinstance(e, ev.GenerationLaunched) for e in journal),
        "incidents": sum(isinstance(e, ev.IncidentOpened) for e in journal),
        "evictions": sum(isinstance(e, ev.NodeEvicted) for e in journal),
        "takeovers": sum(isinstance(e, ev.ControllerStarted) and bool(e.taken_from) for e in journal),
        "companions": sum(isinstance(e, ev.CompanionStarted) for e in journal),
    }
    facts |= counts
    found = summary_of(journal, time.time())
    facts |= {"ettr": found.ettr, "ledger": msgspec.to_builtins(found)}
    facts["faults"] = [asdict(fault) for fault in storm.planted]
    facts["skipped"] = storm.skipped
    facts["new_step_s"] = {kind: asdict(summary) for kind, summary in by_kind(storm.planted).items()}
    facts["load"] = os.getloadavg()
    return [f"{e.node} was evicted although nothing had hit it: {e.reason}" for e in evicted]


def _left(sandbox: Sandbox, patience_s: float) -> list[str]:
    """Processes, copies in memory and jobs of the user that remain."""

    def remains() -> list[str]:
        uid, found = sandbox.config.uid(USER), []
        for node in sandbox.config.node_names:
            for pid in sandbox.host_pids(node):
                process = Path(f"/proc/{pid}")
                try:
                    if process.stat().st_uid == uid:
                        words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                        found.append(f"{node}: process {pid}: {words}")
                except OSError:
                    continue  # it has ended meanwhile
            memory = Path(f"/proc/{sandbox.node_pid(node)}/root/dev/shm")
            found += [f"{node}: /dev/shm/{path.name}" for path in memory.iterdir()]
        return found + sandbox.exec(["squeue", "-h"], user=USER).stdout.splitlines()

    try:
        common.wait_for(lambda: not remains(), patience_s, "left", every_s=1.0)
    except common.BenchmarkFailed:
        return [f"left behind: {what}" for what in remains()]
    return []


def _keep(sandbox: Sandbox, training: Training) -> None:
    """The evidence, whatever came of it."""
    folder = common.OUT / "fault_storm"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    home = training.home
    kept = (training.folder / "journal.jsonl", training.folder / "plan.json")
    for path in (*kept, home / f"{training.name}.log", training.steps_file):
        if path.exists():
            shutil.copy(path, folder)
    for name in ("agents", "incidents", "logs", "votes"):
        if (training.folder / name).is_dir():
            shutil.copytree(training.folder / name, folder / name, dirs_exist_ok=True)
    shutil.copytree(sandbox.folder.logs, folder / "slurm", dirs_exist_ok=True)
    shutil.copy(sandbox.folder.faults, folder)


def _show(storm: Storm, facts: dict[str, object], path: Path) -> None:
    table = common.table("Seconds to a new step: median (range)", "fault", "n", "seconds")
    for kind, summary in by_kind(storm.planted).items():
        table.add_row(kind, str(summary.n), summary.text(1))
    console = common.console()
    console.print(table)
    said = (
        "job",
        "equal",
        "steps",
        "requeues",
        "runs",
        "generations",
        "evictions",
        "takeovers",
        "companions",
    )
    console.print(f"{len(storm.planted)} faults; " + ", ".join(f"{n} {facts.get(n)}" for n in said))
    console.print(f"ETTR {facts.get('ettr', 0.0):.1%}; see {path}")


if __name__ == "__main__":
    sys.exit(main())
