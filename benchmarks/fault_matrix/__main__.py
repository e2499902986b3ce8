"""The fault matrix: every fault planted in a real training, what was expected of it, and what followed."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks import common
from benchmarks.fault_matrix import show
from benchmarks.fault_matrix.cases import CASES, Case
from benchmarks.fault_matrix.confusion import figures
from benchmarks.fault_matrix.outcomes import OBSERVE
from benchmarks.fault_matrix.run import Matrix, cluster

MODES = ("act", OBSERVE)
SEED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Plant, print, write build/bench/fault_matrix.json (of one mode: fault_matrix_MODE.json)."""
    options = _options(argv)
    machine, begun = common.machine(), time.monotonic()
    facts: dict[str, object] = {"machine": machine, "seed": options.seed}
    console = common.console()
    for mode in MODES if options.mode == "both" else (options.mode,):
        with cluster(f"bench-{os.getpid()}-matrix-{mode}") as sandbox:
            matrix = Matrix(sandbox, mode, options.seed, common.say)
            matrix.run(options.only or CASES)
            matrix.compare()
        show.print_mode(console, mode, matrix.outcomes, matrix.endings)
        facts[mode] = {
            "figures": asdict(figures(matrix.outcomes)),
            "outcomes": [show.as_json(outcome) for outcome in matrix.outcomes],
            "trainings": [asdict(ending) for ending in matrix.endings],
        }
    facts["took_s"] = round(time.monotonic() - begun)
    name = "fault_matrix" if options.mode == "both" else f"fault_matrix_{options.mode}"
    print(f"written to {common.write(name, facts)}", file=sys.stderr)
    return 0


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fault_matrix", description=__doc__)
    parser.add_argument("--only", type=_cases, help="names of cases, separated by commas (default: all)")
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both", help="(default: both)")
    parser.add_argument("--seed", type=int, default=SEED, help=f"chooses the ranks (default: {SEED})")
    return parser.parse_args(argv)


def _cases(text: str) -> tuple[Case, ...]:
    by_name = {case.name.lower(): case for case in CASES}
    names = [name.strip().lower() for name in text.split(",")]
    if unknown := [name for name in names if name not in by_name]:
        known = ", ".join(case.name for case in CASES)
        raise argparse.ArgumentTypeError(f"no case {unknown[0]!r}; there are: {known}")
    return tuple(by_name[name] for name in names)


if __name__ == "__main__":
    sys.exit(main())
