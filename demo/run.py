"""The main demonstration: a training job loses a rank, then a whole node, and ends as if nothing was.

Boots a real Slurm of six nodes on this machine, submits the same job twice as an ordinary user (once
left alone, once with a rank killed and later the power of a node cut), and compares the final weights
bit by bit. Prints a table and writes the same facts to ``build/demo.json``.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from slurm_robust.evidence.incident_text import IncidentRow, incident_rows
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model.events import AnyEvent
from slurm_robust.model.journal import fold, read
from slurm_robust.model.state import JobState
from slurm_robust.sandbox import Sandbox, SandboxConfig

ROOT = Path(__file__).resolve().parent.parent
USER = "alice"
LIMIT_S = 600.0
_STEP = re.compile(r"^step (\d+) ", re.MULTILINE)


@dataclass(frozen=True)
class JobRun:
    """One submitted job: its id and its folders as seen from this machine."""

    job_id: int
    folder: Path
    result: Path

    def events(self) -> list[AnyEvent]:
        """The journal so far."""
        return read(self.folder / "journal.jsonl")

    def state(self) -> JobState:
        """The state of the job, from its journal."""
        return fold(self.events())

    def step(self) -> int:
        """Newest step that rank 0 printed, -1 before the first."""
        found = -1
        for log in sorted(self.folder.glob("logs/gen-*/rank-00000.out")):
            steps = _STEP.findall(log.read_text(errors="replace"))
            found = max(found, int(steps[-1])) if steps else found
        return found


@dataclass(frozen=True)
class PlannedFault:
    """A fault to be made when rank 0 has printed ``at_step``."""

    at_step: int
    name: str
    make: Callable[[JobRun], None]


def prepare(sandbox: Sandbox) -> Path:
    """Give the user a copy of the training script and the template, as from a checkout."""
    home = sandbox.home(USER)
    for source in (ROOT / "examples" / "train_gpt.py", ROOT / "sbatch_templates" / "train.sbatch"):
        shutil.copy(source, home / source.name)
        (home / source.name).chmod(0o644)
    return home


def submit(sandbox: Sandbox, home: Path, name: str, options: argparse.Namespace) -> JobRun:
    """``sbatch train.sbatch train_gpt.py …`` on five nodes, one of which is the spare."""
    out = f"{name}.json"
    arguments = ["train_gpt.py", "--steps", str(options.steps), "--every", "10", "--out", out]
    command = ["sbatch", "--parsable", "--nodes=5", f"--job-name={name}", f"--output={name}.log"]
    # All nodes of this cluster share the machine's few cores: more threads would only be in the way.
    threads = {"OMP_NUM_THREADS": "1"}
    done = sandbox.exec(
        [*command, "train.sbatch", *arguments], user=USER, timeout_s=30.0, env=threads, check=True
    )
    job_id = int(done.stdout.strip().partition(";")[0])
    return JobRun(job_id=job_id, folder=home / "srobust-jobs" / str(job_id), result=home / out)


def follow(
    sandbox: Sandbox, job: JobRun, steps: int, progress: Progress, title: str, planned: Sequence[PlannedFault]
) -> None:
    """Show the progress of ``job`` until it has ended, and make the planned faults on the way."""
    bar = progress.add_task(title, total=steps, note="waiting for the first step")
    waiting, deadline = list(planned), time.monotonic() + LIMIT_S
    shown = ""
    while True:
        state, step = job.state(), job.step()
        note = f"generation {state.world.generation}, {len(state.world.slots)} nodes"
        if state.world.incident is not None:
            note = f"incident {state.world.incident.number}: {state.world.incident.symptom.value}"
        progress.update(bar, completed=step + 1, note=note)
        line = f"{title}: step {(step + 1) // 50 * 50} of {steps}, {note}"
        if line != shown and not progress.console.is_terminal:
            shown = line  # a log has no bar that moves
            progress.console.print(line)
        if waiting and step >= waiting[0].at_step and state.world.incident is None:
            fault = waiting.pop(0)
            progress.console.print(f"[yellow]fault:[/] {fault.name} at step {step}")
            fault.make(job)
        if state.ended is not None:
            progress.update(bar, completed=step + 1, note=state.ended.reason)
            break
        if time.monotonic() > deadline:
            raise SystemExit(f"job {job.job_id} has not ended within {LIMIT_S:.0f} s; see {job.folder}")
        time.sleep(0.2)
    if not job.result.exists():
        log = job.folder.parent.parent / f"{title.split()[0]}.log"
        raise SystemExit(f"job {job.job_id} left no result; its output:\n{log.read_text(errors='replace')}")


def planned_faults(sandbox: Sandbox, steps: int) -> list[PlannedFault]:
    """A rank is killed after a third of the steps; the power of the last slot's node is cut later."""

    def kill_rank(job: JobRun) -> None:
        sandbox.fault.kill_rank(job.job_id, 2)

    def power_cut(job: JobRun) -> None:
        sandbox.fault.power_cut(job.state().world.slots[-1])

    return [
        PlannedFault(steps // 3, "rank 2 is killed (SIGKILL)", kill_rank),
        PlannedFault(2 * steps // 3, "power cut of the last slot's node", power_cut),
    ]


def fault_times(sandbox: Sandbox) -> list[float]:
    """When the faults were really made, seconds since 1970."""
    lines = sandbox.folder.faults.read_text().splitlines()
    return [json.loads(line)["t"] for line in lines]


def report(console: Console, facts: dict[str, Any], found: Sequence[IncidentRow]) -> None:
    """The table of incidents and the three sentences that count."""
    table = Table(title="What happened", title_justify="left")
    for name in ("seen", "blamed", "done"):
        table.add_column(name, overflow="fold")
    for name in ("detect s", "localise s", "recover s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in facts["incidents"]:
        numbers = [
            "-" if row[key] is None else f"{row[key]:.2f}" for key in ("detect_s", "localise_s", "recover_s")
        ]
        table.add_row(row["detail"], row["blamed"], row["done"], *numbers)
    console.print(table)
    wall_s = facts["job_wall_s"]
    console.print(f"ETTR {facts['ettr']:.1%} with {len(found)} faults within {wall_s:.0f} s of training")
    same = "[green]bitwise equal[/]" if facts["weights_equal"] else "[red]DIFFERENT[/]"
    console.print(f"final weights: {same} to those of the run without faults (sha256 {facts['sha256']})")


def collect(reference: JobRun, faulty: JobRun, faults: Sequence[float], started: float) -> dict[str, Any]:
    """Everything that ``build/demo.json`` holds. ``detect_s`` counts from the moment of the fault."""
    events = faulty.events()
    found = incident_rows(events)
    first, second = (json.loads(job.result.read_text()) for job in (reference, faulty))
    spent = summary_of(events, time.time())
    rows = [
        {
            "symptom": incident.symptom,
            "detail": "; ".join(incident.signs),
            "blamed": incident.blamed,
            "done": incident.done,
            "detect_s": incident.t - fault,
            "localise_s": incident.localise_s,
            "recover_s": incident.recover_s,
        }
        for incident, fault in zip(found, faults, strict=True)
    ]
    return {
        "incidents": rows,
        "ettr": spent.ettr,
        "weights_equal": first["sha256"] == second["sha256"],
        "sha256": second["sha256"],
        "steps": second["steps"],
        "job_wall_s": (spent.wall_ms - spent.started_ms) / 1000,
        "wall_s": time.monotonic() - started,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration; 0 when both faults were survived and the weights are equal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "demo.json")
    options = parser.parse_args(argv)
    started = time.monotonic()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    console.print("Booting a Slurm cluster of 6 nodes on this machine …")
    with Sandbox.up(SandboxConfig(nodes=6, accounting=False), name="demo") as sandbox:
        home = prepare(sandbox)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
            reference = submit(sandbox, home, "reference", options)
            follow(sandbox, reference, options.steps, progress, "reference run", [])
            faulty = submit(sandbox, home, "faulty", options)
            planned = planned_faults(sandbox, options.steps)
            follow(sandbox, faulty, options.steps, progress, "faulty run", planned)
        facts = collect(reference, faulty, fault_times(sandbox), started)
        found = incident_rows(faulty.events())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(facts, indent=2) + "\n")
    report(console, facts, found)
    console.print(f"{facts['wall_s']:.0f} s in all; the same facts are in {options.json}")
    return 0 if facts["weights_equal"] and len(found) == 2 else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the sandbox is down by now
        sys.exit("interrupted")
