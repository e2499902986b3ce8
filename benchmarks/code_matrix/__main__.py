"""The matrix of faults of the code: each once and in every attempt, and who was made to pay for it."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace

import msgspec

from benchmarks import common
from benchmarks.code_matrix import show
from benchmarks.code_matrix.cases import ACT, CASES, Case, chosen, with_undisturbed
from benchmarks.code_matrix.outcomes import Outcome, complaints
from benchmarks.code_matrix.run import Matrix, config
from benchmarks.fault_matrix.outcomes import OBSERVE
from slurm_robust.sandbox import Sandbox

NAME = "code_matrix"
JOBS = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print, keep in build/bench/code_matrix.json. 1 if anything is wrong, 130 if it was interrupted."""
    options = _options(argv)
    wanted = with_undisturbed(replace(case, mode=options.mode) for case in options.only or CASES)
    outcomes = {o.case: o for o in _kept() if options.resume or o.case not in wanted}
    todo = [case for case in wanted if case not in outcomes]
    begun, machine = time.monotonic(), common.machine()

    def done(outcome: Outcome) -> None:
        outcomes[outcome.case] = outcome
        _write(machine, outcomes.values())
        count = sum(case in outcomes for case in todo)
        rate = count / (time.monotonic() - begun)
        text = show.in_short(outcome, outcomes.get(outcome.case.undisturbed))
        left = (len(todo) - count) / rate
        common.say(f"{count} of {len(todo)}, {rate * 60:.1f} a minute, {left / 60:.0f} minutes left: {text}")

    try:
        if todo:
            with Sandbox.up(config(options.jobs), name=f"bench-{os.getpid()}-code") as sandbox:
                Matrix(sandbox, options.jobs, _commit(), done).run(todo)
    except KeyboardInterrupt:
        common.say(
            f"interrupted: --resume runs the {sum(case not in outcomes for case in todo)} that are missing"
        )
        return 130
    show.print_mode(common.console(), options.mode, outcomes)
    print(f"kept in {common.OUT / NAME}.json; journals and logs in {common.OUT / NAME}", file=sys.stderr)
    return int(any(complaints(outcomes[case], outcomes[case.undisturbed]) for case in wanted))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.code_matrix", description=__doc__)
    parser.add_argument("--only", type=_cases, help="words of cases: 'hang always, nan 5' (default: all)")
    parser.add_argument("--mode", choices=(ACT, OBSERVE), default=ACT, help=f"(default: {ACT})")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"trainings at a time (default: {JOBS})")
    parser.add_argument("--resume", action="store_true", help="leave out what an earlier run has finished")
    return parser.parse_args(argv)


def _cases(text: str) -> tuple[Case, ...]:
    try:
        return chosen(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _kept() -> list[Outcome]:
    """What earlier runs have finished."""
    path = common.OUT / f"{NAME}.json"
    if not path.exists():
        return []
    return msgspec.convert(json.loads(path.read_text())["outcomes"], list[Outcome])


def _write(machine: object, outcomes: Iterable[Outcome]) -> None:
    common.write(NAME, {"machine": machine, "outcomes": [asdict(outcome) for outcome in outcomes]})


def _commit() -> str:
    words = ["git", "-C", str(common.ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
