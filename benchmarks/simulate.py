"""How long one simulated life of 90 days takes, by the policy alone and by the controller's whole core."""

from __future__ import annotations

import time
from collections.abc import Sequence

from benchmarks import common
from slurm_robust.config.job import JobConfig, Limits
from slurm_robust.simulator.figures import figures_of
from slurm_robust.simulator.runs import played
from slurm_robust.simulator.spec import FaultOf, FaultSource, SimulatedCluster, SimulatedJob, Spec

NODES = (128, 1200, 10_000)
INCIDENTS = 300
"""Faults of a life of :data:`DAYS`: as the paper's mix, most name a node."""
DAYS = 90


def spec_of(nodes: int, fidelity: str, days: int) -> Spec:
    """Return the job that is played."""
    mix = {FaultOf.GPU: 0.55, FaultOf.NODE: 0.2, FaultOf.HANG: 0.1, FaultOf.CRASH: 0.15}
    faults = tuple(
        FaultSource(kind=kind, rate=f"{INCIDENTS * share:g} / {DAYS} days", at_node=0.8, detect="4 s")
        for kind, share in mix.items()
    )
    return Spec(
        name=f"{nodes} nodes",
        job=SimulatedJob(nodes=nodes, spares=4, step="20 s"),
        time=f"{days} days",
        cluster=SimulatedCluster(free=max(50, nodes // 20)),
        faults=faults,
        fidelity="core" if fidelity == "core" else "policy",
        policy=JobConfig(limits=Limits(total=10_000)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/simulate.json."""
    options = common.parser(__doc__, 1)
    options.add_argument("--nodes", type=int, nargs="+", default=list(NODES))
    options.add_argument("--days", type=int, default=DAYS, help=f"of each life (default: {DAYS})")
    options.add_argument("--fidelity", choices=("policy", "core"), nargs="+", default=["policy", "core"])
    chosen = options.parse_args(argv)
    rows: list[dict[str, object]] = []
    for nodes in chosen.nodes:
        for fidelity in chosen.fidelity:
            for seed in range(chosen.reps):
                begun = time.process_time()
                life = played(spec_of(nodes, fidelity, chosen.days), seed)
                cpu_s = time.process_time() - begun
                found = figures_of(life)
                rows.append(
                    {
                        "nodes": nodes,
                        "fidelity": fidelity,
                        "seed": seed,
                        "cpu_s": cpu_s,
                        "incidents": found.incidents,
                        "ettr": found.ettr,
                    }
                )
                print(
                    f"{nodes:6,} nodes, {fidelity:6}: {cpu_s:7.2f} s of one core, "
                    f"{found.incidents} incidents, ETTR {100 * found.ettr:.2f} %",
                    flush=True,
                )
    facts = {"machine": common.machine(), "days": chosen.days, "lives": rows}
    print(common.write("simulate", facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
