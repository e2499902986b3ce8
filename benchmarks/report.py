"""The report on a long job of many GPUs: seconds that it takes, and bytes of its page.

``python -m benchmarks.report [--days D] [--nodes N] [--incidents I]`` writes the journal of a job that never
was, as its controller would have written it, and runs ``srobust report`` on it in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.model import events as ev
from slurm_robust.model import incident as inc
from slurm_robust.model.copies import CheckpointId
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import Symptom
from slurm_robust.model.startup import START_PHASES, phase_times

BEGIN = 1_780_000_000.0
NPROC = 8
STEP_S = 8.0
PROGRESS_S = 10.0
"""A controller writes a line of progress so often."""

SPARES = 24
TAIL = 20
"""Lines of output that the journal keeps of a failed rank."""

FAULTS = (
    (Symptom.WORKER_EXIT, inc.Blame.NOBODY, 6),
    (Symptom.NODE_LOST, inc.Blame.NODE, 1),
    (Symptom.NODE_FAULT, inc.Blame.NODE, 1),
    (Symptom.HANG, inc.Blame.NODE, 4),
    (Symptom.NETWORK, inc.Blame.NODE, 2),
    (Symptom.USER_EXCEPTION, inc.Blame.CODE, 3),
    (Symptom.NON_FINITE, inc.Blame.NODE, 5),
)


class Job:
    """A training over weeks, in which something fails again and again; every tenth time it is requeued."""

    def __init__(self, days: float, nodes: int, incidents: int) -> None:
        self.random = random.Random(7)
        self.t, self.end = BEGIN, BEGIN + days * 86400
        self.names = [f"gpu{number:05d}" for number in range(nodes + SPARES + incidents)]
        self.slots, self.spares = self.names[:nodes], self.names[nodes : nodes + SPARES]
        self.fresh = iter(self.names[nodes + SPARES :])
        self.every_s = days * 86400 / (incidents + 1)
        self.incidents = incidents
        self.epoch = self.generation = self.run = 0
        self.step = self.sealed = -1

    def events(self) -> Iterator[ev.AnyEvent]:
        yield ev.RunStarted(
            t=self.t, run_id="r", job_id=4711, kind="script", command=("pretrain.py",), cwd="/",
            version="0.1.0", slots=len(self.slots), spares=SPARES, nproc_per_node=NPROC, cluster="big",
        )  # fmt: skip
        yield from self.begin_run()
        yield from self.launch()
        for number in range(1, self.incidents + 1):
            yield from self.train(BEGIN + number * self.every_s)
            yield from self.fail(number)
        yield from self.train(self.end)
        yield ev.RunEnded(t=self.t, epoch=self.epoch, code=0, reason="the training is complete")

    def begin_run(self) -> Iterator[ev.AnyEvent]:
        self.epoch += 1
        submitted = self.t
        self.t += 300
        yield ev.ControllerStarted(t=self.t, epoch=self.epoch, host=self.slots[0], pid=1, port=1)
        yield ev.AllocationTaken(
            t=self.t, epoch=self.epoch, restart_count=self.run, nodes=(*self.slots, *self.spares),
            slots=tuple(self.slots), spares=tuple(self.spares), submitted=submitted, queued_s=290.0,
            eligible=submitted + 120, gpus=NPROC * (len(self.slots) + SPARES),
        )  # fmt: skip

    def launch(self) -> Iterator[ev.AnyEvent]:
        self.generation += 1
        self.t += 5
        made = CheckpointId(step=self.sealed, generation=self.generation - 1) if self.sealed >= 0 else None
        yield ev.GenerationLaunched(
            t=self.t, epoch=self.epoch, generation=self.generation, slots=tuple(self.slots), master="m:1",
            restore=made, tiers={"memory": NPROC * len(self.slots)} if made else {},
        )  # fmt: skip
        times = {
            node: {phase: self.random.uniform(0.5, 9.0) for phase in START_PHASES} for node in self.slots[:64]
        }
        self.t += 90
        self.step = self.sealed + 1
        yield ev.FirstStep(
            t=self.t, epoch=self.epoch, generation=self.generation, step=self.step, reported=True
        )
        phases = phase_times(times)
        yield ev.StartMeasured(
            t=self.t, epoch=self.epoch, generation=self.generation, phases=phases, took_s=90.0
        )

    def train(self, until: float) -> Iterator[ev.AnyEvent]:
        begin, first = self.t, self.step
        while self.t + PROGRESS_S < until:
            self.t += PROGRESS_S
            self.step = first + int((self.t - begin) / STEP_S)
            yield ev.ProgressMade(
                t=self.t, epoch=self.epoch, generation=self.generation, step=self.step, reported=True,
                loss=2 + 9 / (1 + self.step / 5000) + self.random.gauss(0, 0.02),
                grad_norm=abs(self.random.gauss(1, 0.2)), spent={"checkpoint": (self.t - begin) * 0.002},
            )  # fmt: skip
        self.sealed = self.step - 2

    def fail(self, number: int) -> Iterator[ev.AnyEvent]:
        symptom, blame, rung = FAULTS[number % len(FAULTS)]
        place = self.random.randrange(len(self.slots))
        node = self.slots[place]
        rank = NPROC * place
        self.t += 30
        yield ev.IncidentOpened(
            t=self.t, epoch=self.epoch, incident=number, generation=self.generation, symptom=symptom,
            detail=f"rank {rank} on {node} was killed by signal 9", detect_s=12.0, best_step=self.step,
        )  # fmt: skip
        lines = tuple(f"[rank{rank}] NCCL WARN line {line} of what it said at last" for line in range(TAIL))
        error = WorkerExit(rank=rank, signal=9, tail=lines)
        yield ev.GenerationEnded(
            t=self.t + 4, epoch=self.epoch, generation=self.generation, reason="a worker failed",
            exits=(inc.NodeExit(node=node, exit=error),), sealed_step=self.sealed, root=rank,
        )  # fmt: skip
        self.t += 60
        yield from self.decide(number, node, blame, rung)
        yield from self.launch()
        self.t += 40
        self.step += 5
        yield ev.IncidentClosed(
            t=self.t, epoch=self.epoch, incident=number, generation=self.generation, step=self.step,
            recover_s=130.0, stages={"detecting": 12.0, "deciding": 60.0, "gathering": 5.0, "running": 130.0},
        )  # fmt: skip

    def decide(self, number: int, node: str, blame: inc.Blame, rung: int) -> Iterator[ev.AnyEvent]:
        requeue = number % 10 == 0
        evict = blame is inc.Blame.NODE
        reason = f"{node} is at fault" if evict else "nothing convicts a node"
        actions: list[inc.Action] = [inc.Evict(node=node)] if evict else []
        actions.append(inc.Requeue(exclude=(node,), reason=reason) if requeue else inc.Restart())
        yield ev.Decided(
            t=self.t, epoch=self.epoch, incident=number, actions=tuple(actions), reason=reason,
            localise_s=60.0,
            verdict=inc.Verdict(
                rung=rung, blame=blame, reason=reason, suspects=(node,) if evict else (),
                signature=inc.Signature.of_nodes(inc.FaultKind.NODE, (node,)),
            ),
        )  # fmt: skip
        if evict:
            yield ev.NodeEvicted(t=self.t, epoch=self.epoch, node=node, reason=reason, incident=number)
            self.slots[self.slots.index(node)] = self.spares.pop(0)
            self.spares.append(next(self.fresh))
        if requeue:
            yield ev.RequeueStarted(t=self.t, epoch=self.epoch, exclude=(node,), reason=reason, failure=True)
            self.run += 1
            yield from self.begin_run()


def write(folder: Path, days: float, nodes: int, incidents: int) -> int:
    """Write the journal into ``folder``; the number of its events."""
    written = 0
    with (folder / "journal.jsonl").open("wb") as file:
        for event in Job(days, nodes, incidents).events():
            file.write(ev.encode_event(event) + b"\n")
            written += 1
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--nodes", type=int, default=1200)
    parser.add_argument("--incidents", type=int, default=300)
    parser.add_argument("--keep", type=Path, help="a folder for the journal and the page")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        events = write(folder, args.days, args.nodes, args.incidents)
        page = folder / "report.html"
        command = [sys.executable, "-m", "slurm_robust.cli", "report", str(folder), "--html", str(page)]
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        took_s = time.perf_counter() - begin
        measured = {
            "days": args.days,
            "gpus": args.nodes * NPROC,
            "incidents": args.incidents,
            "events": events,
            "journal_mb": round((folder / "journal.jsonl").stat().st_size / 1e6, 1),
            "seconds": round(took_s, 2),
            "page_mb": round(page.stat().st_size / 1e6, 2),
        }
        print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
