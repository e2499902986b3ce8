"""What a standby costs while it sleeps: ``python -m benchmarks.asleep [--reps N]``.

The CPU time of an agent, its zygote and its inspector, with the defaults of a job, while a controller answers
their heartbeats.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slurm_robust.config.job import JobConfig
from slurm_robust.policy.liveness import beacon_interval
from slurm_robust.util import proc
from tests.builders.specs import usual_inspection
from tests.unit.agent.local_job import LocalJob, ScriptedController

SECONDS = 60.0
AWAKE_S = 30.0
"""The inspector begins 15 s after its agent."""
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(agent: int) -> dict[str, float]:
    """CPU seconds of an agent and its descendants so far, by what each is."""
    found: dict[str, float] = {}
    table = proc.process_table()
    for pid in (agent, *(process.pid for process in proc.descendants(table, agent))):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # a child that has just ended counts for its parent
        name = next((word.removeprefix("slurm_robust.") for word in words if word.startswith("slurm_")), "?")
        # With those of children that have ended.
        found[name] = found.get(name, 0.0) + sum(map(int, fields[11:15])) / _TICKS
    return found


def pump(controller: ScriptedController, seconds: float) -> None:
    """Answer heartbeats for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        controller.pump()


def main(argv: Sequence[str] | None = None) -> int:
    """Print CPU seconds a minute, by process."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reps", type=int, default=3, help="minutes that are measured (default: 3)")
    options = parser.parse_args(argv)
    timings = JobConfig().timings
    with tempfile.TemporaryDirectory() as folder:
        job = LocalJob(
            Path(folder),
            "",
            heartbeat_s=timings.heartbeat_s,
            beacon_s=beacon_interval(timings.verdict_s, 4),
            inspection=usual_inspection(),
        )
        try:
            controller = job.controller()
            agent = job.start_agent("n1", fresh=True)
            controller.wait_for("n1", lambda heartbeat: heartbeat.ready, 300.0)
            pump(controller, AWAKE_S)
            minutes: list[dict[str, float]] = []
            for _ in range(options.reps):
                before = cpu_s(agent.pid)
                pump(controller, SECONDS)
                minutes.append({name: s - before.get(name, 0.0) for name, s in cpu_s(agent.pid).items()})
        finally:
            job.close()
    for name in minutes[0]:
        seconds = [minute.get(name, 0.0) for minute in minutes]
        print(f"{name}: {statistics.median(seconds):.2f} ({min(seconds):.2f}-{max(seconds):.2f}) s a minute")
    whole = statistics.median(sum(minute.values()) for minute in minutes)
    print(f"all: {whole:.2f} s of CPU in {SECONDS:.0f} s, {whole / SECONDS:.2%} of a core")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
