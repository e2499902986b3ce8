"""How long it takes to play 1,000 whole lives of jobs by the simulator: launch, faults, recoveries, end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from benchmarks import common
from benchmarks.samples import Summary
from slurm_robust.testing.sim.lives import live

LIVES = 1000


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/sim_lives.json."""
    options = common.parser(__doc__, 1)
    options.add_argument("--lives", type=int, default=LIVES, help=f"seeds from 0 on (default: {LIVES})")
    chosen = options.parse_args(argv)
    machine = common.machine()
    live(0)  # what is imported and compiled once
    runs: list[float] = []
    ends: Counter[str] = Counter()
    simulated_s, slowest = 0.0, (0.0, 0)
    for rep in range(chosen.reps):
        begun = time.process_time()
        for seed in range(chosen.lives):
            at = time.process_time()
            life = live(seed)
            slowest = max(slowest, (time.process_time() - at, seed))
            if rep == 0:
                ends[str(life.code)] += 1
                simulated_s += life.sim.now
        runs.append(time.process_time() - begun)
    cpu_s = Summary.of(runs)
    print(
        f"{chosen.lives} lives: {cpu_s.text()} s of one core, {60 * chosen.lives / cpu_s.median:.0f} a minute"
    )
    print(f"simulated: {simulated_s / 3600:.1f} hours; exit codes: {dict(ends)}; slowest: seed {slowest[1]}")
    facts = {
        "machine": machine,
        "lives": chosen.lives,
        "cpu_s": runs,
        "simulated_s": simulated_s,
        "exit_codes": dict(ends),
        "slowest": {"seed": slowest[1], "cpu_s": slowest[0]},
    }
    print(common.write("sim_lives", facts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
