"""Node health under faults that come and go: no false drain, and every real one found at the next look.

``python -m benchmarks.soak_health [--minutes 10] [--nodes 16] [--seed 1]`` (root). Nodes are looked at every
5 s by Slurm's HealthCheckProgram. An administrator holds two of them drained all the time; they are hurt too.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.samples import Summary
from slurm_robust.hooks.drain_lock import USED_S
from slurm_robust.hooks.drainer import SPREAD_S
from slurm_robust.sandbox import Sandbox, SandboxConfig
from tests.cluster import checked_nodes
from tests.cluster.checked_nodes import INTERVAL_S, CheckedNodes

# Slurm's own ticks lie up to a second apart from what is asked for, and a look takes its time.
# A check of a site may fail on many nodes at once, so each waits a little before it asks Slurm.
FOUND_S = INTERVAL_S + 1.0 + SPREAD_S
LOOK_S = 3.0
POLL_S = 0.25
PERSON = "new cables, alice"
STANDS_S = (15.0, 40.0)
RESTS_S = (20.0, 60.0)


@dataclass
class Fault:
    """One fault: when it came, was found, went, and when the node was back; seconds since 1970."""

    node: str
    came: float
    goes: float
    found: float | None = None
    went: float | None = None
    back: float | None = None


class Soak:
    """Plants and heals faults, and watches what Slurm shows."""

    def __init__(self, cluster: CheckedNodes, seed: int) -> None:
        self.cluster, self._chance = cluster, random.Random(seed)
        self.faults: list[Fault] = []
        self.wrong: list[str] = []
        self._open: dict[str, Fault] = {}
        self._next = {node: self._later(time.time(), (5.0, 60.0)) for node in cluster.names}
        self._healed = dict.fromkeys(cluster.names, 0.0)
        self.overtaken: set[tuple[str, float]] = set()
        self._persons = cluster.names[-2:]
        nodes = f"nodename={','.join(self._persons)}"
        cluster.sandbox.exec(["scontrol", "update", nodes, "state=drain", f"reason={PERSON}"], user="root")

    def _later(self, now: float, between: tuple[float, float]) -> float:
        return now + self._chance.uniform(*between)

    def turn(self, *, may_hurt: bool) -> None:
        """Look once, then plant and heal what is due."""
        drained, now = self.cluster.drained(), time.time()
        for node in self.cluster.names:
            fault = self._open.get(node)
            if node in self._persons:
                if drained.get(node) != PERSON:
                    self.wrong.append(f"{node}: the administrator's drain became {drained.get(node)!r}")
            elif fault is None:
                # An order follows the run that saw the fault, by USED_S at most; the next run resumes it.
                if node in drained and now - self._healed[node] <= USED_S + INTERVAL_S:
                    self.overtaken.add((node, self._healed[node]))
                elif node in drained:
                    self.wrong.append(f"{node}: drained without a fault: {drained[node]}")
            elif node in drained:
                fault.found = fault.found or now
            elif fault.went is not None:
                fault.back = now
                del self._open[node]
                self._next[node] = self._later(now, RESTS_S)
            self._act(node, now, may_hurt)

    def _act(self, node: str, now: float, may_hurt: bool) -> None:
        fault = self._open.get(node)
        if fault is None and may_hurt and now >= self._next[node]:
            self.cluster.hurt(node, "fan")
            if node in self._persons:
                self._next[node] = float("inf")
                return
            begun = time.time()
            self._open[node] = Fault(node, begun, self._later(begun, STANDS_S))
            self.faults.append(self._open[node])
        elif fault is not None and fault.went is None and now >= fault.goes:
            self.cluster.heal(node, "fan")
            fault.went = self._healed[node] = time.time()

    @property
    def is_quiet(self) -> bool:
        """Whether all faults have gone and all nodes are back."""
        return not self._open


def run(nodes: int, minutes: float, seed: int) -> Soak:
    """One soak in a sandbox of its own."""
    with tempfile.TemporaryDirectory(prefix="srobust-soak-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        checked_nodes.install(folder)
        config = SandboxConfig(
            nodes=nodes,
            accounting=False,
            binds=(name,),
            slurm_conf_lines=checked_nodes.slurm_conf(folder),
        )
        with Sandbox.up(config, name=f"soak-{os.getpid()}") as sandbox:
            cluster = CheckedNodes(sandbox)
            cluster.clean()
            soak = Soak(cluster, seed)
            end = time.monotonic() + 60 * minutes
            last = end + 120.0
            while time.monotonic() < last and not (time.monotonic() > end and soak.is_quiet):
                soak.turn(may_hurt=time.monotonic() < end)
                time.sleep(POLL_S)
            for fault in soak.faults:
                if not fault.found or fault.found - fault.came > FOUND_S + LOOK_S:
                    explain(cluster, fault)
            return soak


def explain(cluster: CheckedNodes, fault: Fault) -> None:
    """What the node's own log says about the time of a fault that was found late or not at all."""
    print(f"{fault}")
    for event in cluster.events(fault.node):
        if fault.came - INTERVAL_S <= event["at"] <= (fault.went or fault.goes) + INTERVAL_S:
            words = {k: v for k, v in event.items() if k not in ("node", "took_s", "left_out", "mode") and v}
            print(f"  {words}")


def main() -> int:
    """0 when there was no false drain and every fault was found in time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    soak = run(args.nodes, args.minutes, args.seed)
    found = [fault.found - fault.came for fault in soak.faults if fault.found is not None]
    back = [f.back - f.went for f in soak.faults if f.back is not None and f.went is not None]
    missed = [fault for fault in soak.faults if fault.found is None]
    late = [seconds for seconds in found if seconds > FOUND_S + LOOK_S]
    print(f"{args.nodes} nodes, {args.minutes:g} min, looked at every {INTERVAL_S} s, seed {args.seed}")
    print(f"faults {len(soak.faults)}, missed {len(missed)}, later than {FOUND_S + LOOK_S:g} s {len(late)}")
    for text, values in (("found after", found), ("returned after", back)):
        if values:
            print(f"{text}: {Summary.of(values).text(1)} s")
    print(f"drains ordered just after the fault had gone: {len(soak.overtaken)}")
    print(f"false drains and touched administrator's drains: {len(soak.wrong)}")
    print("\n".join(dict.fromkeys(soak.wrong)))
    good = soak.faults and not (missed or late or soak.wrong) and len(back) == len(soak.faults)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
