"""The controller of the simulated job: the real loop, core, socket and journal over a Slurm in memory.

``python -m benchmarks.scale_controller FOLDER NODES SPARES BEACON_S``. Writes its port, and at the end
``controller.json``: CPU seconds of the process (ZeroMQ's thread included) at the beginning of each stage.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from benchmarks.scale_agents import NPROC
from slurm_robust.analysis.logs import shipped
from slurm_robust.checkpoint.tiers import SharedTiers, shared_tiers
from slurm_robust.config.job import JobConfig, MetricsConfig, ReplayConfig, Timings
from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.controller.journal import Journal
from slurm_robust.controller.live_status_file import LiveStatusFile
from slurm_robust.controller.loop import Loop
from slurm_robust.controller.metrics import About, MetricsServer
from slurm_robust.controller.requeue import Requeuer
from slurm_robust.controller.shrink import Shrinker
from slurm_robust.controller.tester import Tester
from slurm_robust.controller.turns import read_clocks
from slurm_robust.diagnostics.replay.steps import ReplayCommand
from slurm_robust.engine import effects as fx
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core, Stage
from slurm_robust.engine.stages.table import build
from slurm_robust.engine.transitions import ToGathering, Transition
from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.journal import fold
from slurm_robust.policy.liveness import overdue_s
from slurm_robust.run.preflight import open_directory
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_diagnoser import FakeDiagnoser
from slurm_robust.testing.fake_replayer import FakeReplayer
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.wire import messages as msg
from slurm_robust.wire.beacons import BeaconReceiver
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.sockets import ControllerSocket


class TimedCore(Core):
    """Counts its ticks and times the longest; once a second it notes what this process has taken."""

    ticks, heartbeats, longest_s = 0, 0, 0.0

    def __init__(self, *given: Any) -> None:
        """As the core does."""
        self.samples: list[tuple[float, float, int, int]] = []
        super().__init__(*given)

    def on_heartbeat(self, heartbeat: msg.Heartbeat, now: Now) -> None:
        """As the core does."""
        self.heartbeats += 1
        super().on_heartbeat(heartbeat, now)

    def on_pulse(self, pulse: msg.Pulse, now: Now) -> None:
        """As the core does."""
        self.heartbeats += 1
        super().on_pulse(pulse, now)

    def on_tick(self, now: Now) -> list[fx.Effect]:
        """As the core does."""
        # The clock of CPU seconds would cost a small job's controller a tenth of what it takes itself.
        begun = time.monotonic()
        effects = super().on_tick(now)
        self.longest_s = max(self.longest_s, time.monotonic() - begun)
        self.ticks += 1
        if not self.samples or now.mono - self.samples[-1][0] >= 1.0:
            self.samples.append((now.mono, time.process_time(), self.heartbeats, self.ticks))
        return effects


class Marks:
    """When each stage began, by the clock and by the CPU seconds of this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[tuple[str, float, float]] = []

    def build(self, transition: Transition) -> Stage:
        """As the table of stages does."""
        stage = build(transition)
        self.found.append((type(stage).__name__, time.monotonic(), time.process_time()))
        self.path.write_text(json.dumps(self.found))
        return stage


def main(folder: Path, nodes: int, spares: int, beacon_s: float) -> int:
    """Serve the job until SIGTERM."""
    directory = JobDirectory(folder)
    open_directory(directory)
    directory.spec.write_text('{"run_id": "scale"}')
    names = tuple(f"n{i}" for i in range(1, nodes + spares + 1))
    journal = Journal(directory.journal)
    for event in beginning(names, nodes):
        journal.append(event)
    # All nodes are on one machine, whose silences are not what is measured.
    verdict_s = Timings().verdict_s if beacon_s else 0.0
    timings = Timings(node_dead_s=300.0, verdict_s=verdict_s, launch_s=600.0, agent_start_s=600.0)
    config = JobConfig(timings=timings, metrics=MetricsConfig(listen="127.0.0.1:0"))
    slurm = FakeSlurm(FakeCluster(names))
    job_id = slurm.submit(SubmitRequest(command=("job.sh",), nodes=len(names)))
    marks = Marks(folder / "marks.json")
    keys = load_server(directory.keys)
    with ExitStack() as stack:
        server = stack.enter_context(closing(ControllerSocket(keys, agents=len(names))))
        beacons = None
        if beacon_s:
            beacons = BeaconReceiver(keys.client_public, server.port, beacon_s, overdue_s(beacon_s))
            stack.enter_context(closing(beacons))
        begin = ToGathering(start=True)
        core = TimedCore(config, fold(journal.events), marks.build, begin, read_clocks(), shipped())
        live_status = LiveStatusFile(directory, journal, timings.moment_s)
        command = ReplayCommand(kind=CommandKind.SCRIPT, command=("train.py",), cwd="/")
        loop = Loop(
            core,
            config=config,
            directory=directory,
            journal=journal,
            socket=server,
            beacons=beacons,
            steps=AgentSteps(slurm, slurm.allocation(job_id), ("true",), directory.agents),
            requeuer=Requeuer(slurm, 7, 0, folder / "requeue.jsonl", start_now=False),
            store=SharedTiers(shared_tiers({Tier.STORAGE: str(directory.checkpoints)})),
            slurm=slurm,
            shrinker=Shrinker(slurm, job_id),
            tester=Tester(
                FakeDiagnoser(), FakeReplayer(), lambda _: command, ReplayConfig(), "", FakeDiagnoser
            ),
            live_status=live_status,
        )
        about = About(folder="7", cluster="", user="", name="")
        metrics = MetricsServer(config.metrics, directory, lambda: live_status.newest, about, loop.report)
        stack.enter_context(closing(metrics))
        metrics.start()
        (folder / ".port").write_text(str(server.port))
        (folder / ".port").rename(folder / "port")
        loop.run()
        (folder / "port").unlink()
    found = {
        "marks": marks.found,
        "samples": core.samples,
        "ticks": core.ticks,
        "longest_tick_s": core.longest_s,
        "received": server.received,
        "sent": server.sent,
        "choose_s": timed(lambda: core.checkpoints.choose(read_clocks())),
        "seal_s": timed(lambda: core.copies.seal(core.world.generation, (), read_clocks(), None)),
        "journal_events": len(journal.events),
        "journal_bytes": directory.journal.stat().st_size,
        "append_1250_s": timed(lambda: append(folder / "trial.jsonl", 1250)),
    }
    (folder / "controller.json").write_text(json.dumps(found))
    return 0


def beginning(names: tuple[str, ...], slots: int) -> tuple[ev.AnyEvent, ...]:
    now = time.time()
    return (
        ev.RunStarted(
            t=now,
            run_id="scale",
            job_id=7,
            kind="script",
            command=("train.py",),
            cwd="/",
            slots=slots,
            spares=len(names) - slots,
            nproc_per_node=NPROC,
            version="0",
        ),
        ev.ControllerStarted(t=now, epoch=1, host="n1", pid=1, port=1),
        ev.AllocationTaken(t=now, restart_count=0, nodes=names, slots=names[:slots], spares=names[slots:]),
    )


def append(path: Path, count: int) -> None:
    journal = Journal(path)
    journal.append(
        *(ev.AgentJoined(t=time.time(), node=f"n{i}", agent="a", address="x") for i in range(count))
    )
    journal.close()


def timed(work: Callable[[], object]) -> float:
    """CPU seconds of this thread."""
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
