"""Nodes that live although little of them is heard: how many are called dead? None should be.

``python -m benchmarks.soak_liveness [--minutes 60] [--nodes 6] [--load 8] [--seed 1]`` (root). A training
runs beside processes that use all processors and memory, agents are stopped for up to 3 s, one after the
other, and two nodes hear and are heard 0.2 s late each way with 5 % of the packets lost.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import common
from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob, find_process

DELAY_S, LOSS, STOPPED_S = 0.2, 0.05, (0.3, 3.0)
PRESSURE_MB = 512
STEPS = 1_000_000
LATE_NODES = 2

BUSY = "while True: pass"
# Memory that is taken, written and given back, again and again.
PRESSURE = f"""
import time
while True:
    taken = bytearray({PRESSURE_MB} << 20)
    taken[::4096] = b"x" * len(taken[::4096])
    del taken
    time.sleep(0.2)
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that do nothing but compute, and one that takes memory."""
    programs = [*[BUSY] * processes, PRESSURE]
    children = [subprocess.Popen([sys.executable, "-c", program]) for program in programs]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


def make_late(sandbox: Sandbox, node: str) -> None:
    """Packets from and to ``node`` are late from now on, and some are lost."""
    script = sandbox.home("alice") / "slow_wire.py"
    shutil.copy(Path(__file__).with_name(script.name), script)
    relay = f"setsid python3 /home/alice/{script.name} eth0 {DELAY_S} {LOSS} </dev/null >/dev/null 2>&1 &"
    sandbox.exec(["sh", "-c", relay], node=node, user="root", check=True)


def stop_agents(sandbox: Sandbox, nodes: tuple[str, ...], until: float, seed: int) -> int:
    """Stop one agent after the other for a moment; how many times."""
    chance, stops = random.Random(seed), 0
    while time.monotonic() < until:
        try:
            agent = find_process(sandbox, chance.choice(nodes), "-m", "slurm_robust.agent")
        except OSError:
            continue  # another process of the node has ended meanwhile
        os.kill(agent, signal.SIGSTOP)
        try:
            time.sleep(chance.uniform(*STOPPED_S))
        finally:
            os.kill(agent, signal.SIGCONT)
        stops += 1
        time.sleep(chance.uniform(0.2, 2.0))
    return stops


def main() -> int:
    """0 if no node was called dead or evicted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    sbatch = (f"--time={int(args.minutes) + 30}",)
    # A hang of the training itself is not what is sought here.
    options = f"--spares 1 --set detect.hang=false tiny.py --out OUT --steps {STEPS} --step-s 0.3"
    with common.boot("liveness", nodes=args.nodes) as sandbox:
        job = ProtectedJob(sandbox, options, nodes=args.nodes, sbatch=sbatch)
        job.wait_step(5)
        others = tuple(node for node in job.state.world.slots if node != job.state.own_node)
        for node in others[:LATE_NODES]:
            make_late(sandbox, node)
        with busy(args.load):
            job.wait_step(job.step() + 3, 120.0)
            until = time.monotonic() + 60 * args.minutes
            stops = stop_agents(sandbox, (*others, *job.state.spares), until, args.seed)
            load = os.getloadavg()
            notes = [event.text for event in job.events(ev.Noted)]
            dead = [text for text in notes if " is dead: " in text]
            spoken = sum("the node is not dead" in text for text in notes)
            evicted = [event.node for event in job.events(ev.NodeEvicted)]
            incidents = [event.detail for event in job.events(ev.IncidentOpened)]
            steps = job.step()
        common.finish(sandbox, job.id, patience_s=0.0)
    facts = {
        "machine": common.machine(), "minutes": args.minutes, "nodes": args.nodes, "load": load,
        "stops": stops,
        "silences past the verdict's time that a kernel's answer explained": spoken, "called dead": dead,
        "evicted": evicted, "incidents": incidents, "steps": steps,
    }  # fmt: skip
    path = common.write("soak_liveness", facts)
    print(f"{args.minutes:g} min at load {load[0]:.0f}: agents stopped {stops} times, {steps} steps")
    print(f"called dead: {len(dead)}, evicted: {len(evicted)}, incidents: {len(incidents)}; see {path}")
    print("\n".join((*dead, *incidents)))
    return 1 if dead or evicted else 0


if __name__ == "__main__":
    sys.exit(main())
