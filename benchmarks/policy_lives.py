"""Plays lives of random specs by the policy alone, and checks what each promises.

What fails is made as small as it gets, for ``tests/data/simulator``. Lives that were played are kept in
``build/bench/policy_lives.jsonl``: another call goes on where the last one stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice
from pathlib import Path

import msgspec
from rich.progress import Progress

from benchmarks import common
from slurm_robust.model.record import Record
from slurm_robust.testing.policy_lives.draw import drawn
from slurm_robust.testing.policy_lives.promises import broken_promises
from slurm_robust.testing.policy_lives.shrink import as_yaml, shrunk

LIVES = 10_000
SHRUNK = 3
"""Of this many lives that fail the smallest spec is shown."""

TRIES = 300
"""How many specs are tried for it: a minute or two."""


class Played(Record):
    """One life."""

    seed: int
    broken: list[str]
    cpu_s: float


def main(argv: Sequence[str] | None = None) -> int:
    """Play, show what is broken, write build/bench/policy_lives.json; 1 if something is."""
    options = common.parser(__doc__, 1)
    options.add_argument("--lives", type=int, default=LIVES, help=f"seeds from 0 on (default: {LIVES})")
    options.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="lives at a time"
    )
    options.add_argument("--anew", action="store_true", help="forget the lives that were played before")
    chosen = options.parse_args(argv)
    kept = common.OUT / "policy_lives.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    if chosen.anew:
        kept.unlink(missing_ok=True)
    lives, begun = [], time.monotonic()
    with Progress(*Progress.get_default_columns()) as progress:
        task = progress.add_task("lives", total=chosen.lives)
        for one in play(chosen.lives, chosen.processes, kept):
            lives.append(one)
            progress.update(task, advance=1)
    failed = sorted((one for one in lives if one.broken), key=lambda one: one.cpu_s)
    cpu_s = sum(one.cpu_s for one in lives)
    print(f"{len(lives)} lives, {len(failed)} of them break a promise; {cpu_s / 60:.1f} minutes of one core")
    for one in sorted(failed, key=lambda one: one.seed):
        print(f"seed {one.seed}: {one.broken[0]}")
    for one in failed[:SHRUNK]:
        print(f"\nseed {one.seed}, made small:\n{smallest(one)}")
    facts = {
        "machine": common.machine(),
        "lives": len(lives),
        "broken": [msgspec.to_builtins(one) for one in failed],
        "cpu_s": cpu_s,
        "wall_s": time.monotonic() - begun,
        "slowest": msgspec.to_builtins(max(lives, key=lambda one: one.cpu_s)),
    }
    print(common.write("policy_lives", facts))
    return 1 if failed else 0


def live(seed: int) -> Played:
    """Play one life."""
    begun = time.process_time()
    broken = broken_promises(drawn(seed), 0)
    return Played(seed=seed, broken=broken, cpu_s=time.process_time() - begun)


def play(lives: int, processes: int, kept: Path) -> Iterator[Played]:
    """Yield the lives of seeds 0, 1, … as soon as they are known, first those that ``kept`` has."""
    known: dict[int, Played] = {}
    for line in kept.read_bytes().splitlines() if kept.exists() else ():
        try:
            one = msgspec.json.decode(line, type=Played)
        except msgspec.DecodeError:
            continue  # it was cut
        known[one.seed] = one
    yield from (known[seed] for seed in range(lives) if seed in known)
    missing = iter([seed for seed in range(lives) if seed not in known])
    with ProcessPoolExecutor(processes) as pool, kept.open("ab") as file:
        running = {pool.submit(live, seed) for seed in islice(missing, 2 * processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                running |= {pool.submit(live, seed) for seed in islice(missing, 1)}
                file.write(msgspec.json.encode(future.result()) + b"\n")
                file.flush()
                yield future.result()


def smallest(life: Played) -> str:
    """Return the smallest spec found that breaks the same promise, as YAML."""
    promise = life.broken[0].partition(":")[0]
    return as_yaml(
        shrunk(
            drawn(life.seed),
            lambda spec: any(text.startswith(f"{promise}:") for text in broken_promises(spec, 0)),
            most=TRIES,
        )
    )


if __name__ == "__main__":
    raise SystemExit(main())
