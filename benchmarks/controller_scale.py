"""What the controller of a large job costs: simulated agents speak the real protocol to the real controller.

Agents live in a few processes (``benchmarks.scale_agents``), the controller in one of its own
(``benchmarks.scale_controller``) with its loop, core, ZeroMQ socket and journal. Figures are CPU seconds of
the controller's process, so they hold on a machine that the agents keep busy.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise, product
from pathlib import Path

import msgspec
import psutil

from benchmarks import common
from benchmarks.scale_agents import NPROC
from benchmarks.scratch import cleanly
from slurm_robust.config.job import Timings
from slurm_robust.policy.liveness import beacon_interval
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import Drill, DrillReply, ShowStacks, StacksShown
from slurm_robust.wire.sockets import Client

NODES = (1250,)
SPARES = 10
STEPS_S = (10.0, 1.0)
"""Seconds per step: of a large model, and of one whose every heartbeat tells of a new step and new copies."""

STEADY_S = 10.0
SETTLE_S = 3.0
PATIENCE_S = 180.0
ANSWER_S = 60.0
NODES_PER_PROCESS = 700
# Aims at 1,250 nodes.
MAX_SHARE = 0.5


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/controller_scale.json."""
    options = common.parser(__doc__, 1)
    options.add_argument("--nodes", type=int, nargs="+", default=NODES, help=f"(default: {NODES[0]})")
    options.add_argument("--spares", type=int, default=SPARES, help=f"beside them (default: {SPARES})")
    options.add_argument("--steps-s", type=float, nargs="+", default=STEPS_S, help="seconds per step")
    options.add_argument("--heartbeat-s", type=float, default=1.0, help="of each agent (default: 1)")
    options.add_argument("--no-beacons", dest="beacons", action="store_false", help="agents send none")
    options.add_argument("--no-look", dest="look", action="store_false", help="take no stacks")
    chosen = options.parse_args(argv)
    machine = common.machine()
    runs: list[dict[str, object]] = []
    for nodes, step_s, _ in product(chosen.nodes, chosen.steps_s, range(chosen.reps)):
        runs.append(
            measure(
                nodes, chosen.spares, step_s, chosen.heartbeat_s, beacons=chosen.beacons, look=chosen.look
            )
        )
        path = common.write("controller_scale", {"machine": machine, "runs": runs})
    show(runs)
    print(f"written to {path}", file=sys.stderr)
    return 0


def measure(
    nodes: int, spares: int, step_s: float, heartbeat_s: float, *, beacons: bool, look: bool
) -> dict[str, object]:
    """One job: join, launch, steady state, a look at all stacks, a killed rank and the launch after it."""
    beacon_s = beacon_interval(Timings().verdict_s, nodes + spares) if beacons else 0.0
    with job_of(nodes, spares, step_s, heartbeat_s, beacon_s) as job:
        job.wait("Running")
        time.sleep(SETTLE_S + step_s)  # past the first step
        begun = time.monotonic()
        time.sleep(STEADY_S)
        steady = begun, time.monotonic()
        looked = job.look() if look else {}
        job.drill("kill-rank", 77)
        job.wait("Running", times=2)
        time.sleep(SETTLE_S)
        ended = job.end()
    samples = [s for s in ended.pop("samples") if steady[0] <= s[0] <= steady[1]]  # type: ignore[attr-defined]
    shares = steady_state(samples, nodes / heartbeat_s)
    return {
        "nodes": nodes,
        "spares": spares,
        "ranks": nodes * NPROC,
        "step_s": step_s,
        "heartbeat_s": heartbeat_s,
        "beacon_s": beacon_s,
        **shares,
        **looked,
        **ended,
    }


class SimulatedJob:
    """The processes of one job."""

    def __init__(self, folder: Path, started: list[subprocess.Popen[bytes]]) -> None:
        """``started``: the controller first."""
        self._folder = self.folder = folder
        self._started, self._controller = started, started[0]
        self._process = psutil.Process(started[0].pid)

    def wait(self, stage: str, times: int = 1) -> None:
        """Until the controller has been ``times`` times in ``stage``."""

        def reached() -> bool:
            if self._controller.poll() is not None:
                raise common.BenchmarkFailed(f"the controller ended with {self._controller.poll()}")
            return [name for name, _, _ in self._marks()].count(stage) >= times

        common.wait_for(reached, PATIENCE_S, f"{stage} was not reached")

    def look(self) -> dict[str, object]:
        """The stacks of all ranks, as ``srobust stacks`` gets them."""
        begun, cpu, nodes = time.monotonic(), self._cpu(), 0
        with closing(self._client()) as client:
            shown = StacksShown()
            while not shown.over:
                wish = ShowStacks(number=shown.number, after=nodes)
                answer = client.ask(wish, ANSWER_S)
                if not isinstance(answer, StacksShown) or answer.error:
                    raise common.BenchmarkFailed(f"no stacks: {answer}")
                shown, nodes = answer, nodes + len(answer.stacks)
                time.sleep(0.0 if answer.stacks else 0.05)
        return {
            "stacks_nodes": nodes,
            "stacks_wall_s": time.monotonic() - begun,
            "stacks_cpu_s": self._cpu() - cpu,
            "memory_mb": self._process.memory_info().rss / 1e6,
        }

    def drill(self, fault: str, rank: int) -> None:
        """Have a rank killed, by its agent."""
        with closing(self._client()) as client:
            answer = client.ask(Drill(fault=fault, rank=rank), ANSWER_S)
        if not isinstance(answer, DrillReply) or not answer.ok:
            raise common.BenchmarkFailed(f"no drill: {answer}")

    def end(self) -> dict[str, object]:
        """End the job; what controller and agents have written down."""
        self._controller.send_signal(signal.SIGTERM)
        for process in self._started:
            process.wait(PATIENCE_S)
        told = json.loads((self._folder / "controller.json").read_text())
        agents = [json.loads(path.read_text()) for path in self._folder.glob("agents-*.json")]
        failed = next((a["failed_at"] for a in agents if a["failed_at"]), None)
        stops = sorted(t for a in agents for t in a["stopped_at"] if failed is not None and t > failed)
        cpu = spans(told.pop("marks"))
        return {
            **told,
            "gather_cpu_s": cpu["Gathering"][0],
            "launch_cpu_s": cpu["Launching"][0],
            "restart_cpu_s": sum(
                cpu[name][-1] for name in ("Stopping", "Deciding", "Gathering", "Launching")
            ),
            "relaunch_cpu_s": cpu["Launching"][-1],
            "first_stop_s": stops[0] - failed if failed and stops else None,
            "last_stop_s": stops[-1] - failed if failed and stops else None,
            "heartbeat_bytes": sum(a["heartbeat_bytes"] * a["heartbeats"] for a in agents)
            / sum(a["heartbeats"] for a in agents),
            "agents_cpu_s": sum(a["cpu_s"] for a in agents),
        }

    def _client(self) -> Client:
        return Client(
            (f"tcp://127.0.0.1:{(self._folder / 'port').read_text()}",), load_client(self._folder / "keys")
        )

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _marks(self) -> list[tuple[str, float, float]]:
        try:
            text = (self._folder / "marks.json").read_bytes()
            return msgspec.json.decode(text, type=list[tuple[str, float, float]])
        except (OSError, msgspec.DecodeError):
            return []  # not there yet, or being written


def steady_state(samples: list[tuple[float, float, int, int]], full_rate: float) -> dict[str, float]:
    """What the controller took while nothing happened, as told by itself once a second.

    ``full_rate``: heartbeats per second, if none is late.
    """
    (begun, cpu, heartbeats, ticks), (ended, more_cpu, more_heartbeats, more_ticks) = samples[0], samples[-1]
    seconds, used = ended - begun, more_cpu - cpu
    return {
        "steady_share": used / seconds,
        "beats_per_s": (more_heartbeats - heartbeats) / seconds,
        "ticks_per_s": (more_ticks - ticks) / seconds,
        # Where agents on the same machine are held up there are fewer heartbeats than there would be.
        "share_at_full_rate": used / (more_heartbeats - heartbeats) * full_rate,
    }


def spans(marks: list[tuple[str, float, float]]) -> dict[str, list[float]]:
    """CPU seconds of each stay in each stage but the last."""
    found: dict[str, list[float]] = {}
    for (name, _, begun), (_, _, ended) in pairwise(marks):
        found.setdefault(name, []).append(ended - begun)
    return found


@contextmanager
def job_of(
    nodes: int, spares: int, step_s: float, heartbeat_s: float, beacon_s: float
) -> Iterator[SimulatedJob]:
    """A job in a folder of its own; its processes end with it."""
    folder = Path(tempfile.mkdtemp(prefix="srobust-scale-"))
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: object) -> None:
        with (folder / "log").open("ab") as log:
            command = [sys.executable, "-m", *map(str, words)]
            started.append(subprocess.Popen(command, cwd=common.ROOT, stdout=log, stderr=log))

    total = nodes + spares
    try:
        start("benchmarks.scale_controller", folder, nodes, spares, beacon_s)
        common.wait_for((folder / "port").exists, 30.0, "no controller")
        for first in range(1, total + 1, NODES_PER_PROCESS):
            last = min(first + NODES_PER_PROCESS, total + 1)
            rates = step_s, heartbeat_s, beacon_s
            start("benchmarks.scale_agents", folder, first, last, total, *rates)
        yield SimulatedJob(folder, started)
    except Exception as error:
        raise common.BenchmarkFailed((folder / "log").read_text()[-3000:]) from error
    finally:
        for process in started:
            process.kill()
            process.wait()
        shutil.rmtree(folder)


ROWS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("controller in the steady state, share of a core", "steady_share", "{:.1%}".format),
    ("the same per heartbeat, times all nodes", "share_at_full_rate", "{:.1%}".format),
    ("heartbeats received, per s", "beats_per_s", "{:.0f}".format),
    ("ticks, per s", "ticks_per_s", "{:.1f}".format),
    ("seconds between two beacons of an agent", "beacon_s", "{:.3f}".format),
    ("mean bytes of a heartbeat", "heartbeat_bytes", "{:.0f}".format),
    ("join of all agents, CPU s", "gather_cpu_s", "{:.2f}".format),
    ("first launch, CPU s", "launch_cpu_s", "{:.2f}".format),
    ("killed rank → first order to stop, s", "first_stop_s", "{:.2f}".format),
    ("killed rank → last order to stop, s", "last_stop_s", "{:.2f}".format),
    ("stop, seal, decide, choose, launch, CPU s", "restart_cpu_s", "{:.2f}".format),
    ("of these: choice and launch", "relaunch_cpu_s", "{:.2f}".format),
    ("seal, CPU s", "seal_s", "{:.3f}".format),
    ("choice of restore, CPU s", "choose_s", "{:.3f}".format),
    ("stacks of all ranks, CPU s", "stacks_cpu_s", "{:.2f}".format),
    ("stacks of all ranks, s", "stacks_wall_s", "{:.1f}".format),
    ("longest tick, s", "longest_tick_s", "{:.2f}".format),
    ("journal, events", "journal_events", "{:.0f}".format),
    ("1,250 events into the journal, CPU s", "append_1250_s", "{:.3f}".format),
    ("memory, MB", "memory_mb", "{:.0f}".format),
)


def show(runs: Sequence[dict[str, object]]) -> None:
    """One column per run."""
    table = common.table("The controller of a large job", "")
    for run in runs:
        table.add_column(f"{run['nodes']} nodes, {run['ranks']} ranks, {run['step_s']:g} s a step")
    for words, name, form in ROWS:
        table.add_row(words, *("" if run.get(name) is None else form(run[name]) for run in runs))  # type: ignore[arg-type]
    common.console().print(table)


if __name__ == "__main__":
    sys.exit(cleanly(main))
