"""Run the benchmarks one after the other: ``python -m benchmarks.run_all [name ...]``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scratch import cleanly

ROOT = Path(__file__).resolve().parent.parent
_CLEANS_UP_S = 30.0
NAMES = (
    "restart",
    "hot_update",
    "power_cut",
    "recovery",
    "rehearsal",
    "overhead",
    "checkpoint",
    "keep_up",
    "hooks",
    "detection",
    "stacks",
    "controller_scale",
    "sim_lives",
    "simulate",
    "metrics",
    "top",
    "port_flood",
    "drain_storm",
    "fleet",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Each benchmark is a process of its own; the first failure's exit code is ours."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    # No choices=: argparse then refuses the empty list that stands for all.
    parser.add_argument("names", nargs="*", metavar="name", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--reps", type=int, help="repetitions (default: as each benchmark has it)")
    parser.add_argument("--slow", action="store_true", help="also what takes minutes by nature")
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}")
    code = 0
    for name in options.names or NAMES:
        words = [sys.executable, "-m", f"benchmarks.{name}"]
        words += ["--reps", str(options.reps)] if options.reps else []
        words += ["--slow"] if options.slow and name == "restart" else []
        code = _run(words) or code
    return code


def _run(words: Sequence[str]) -> int:
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        return process.wait()
    except KeyboardInterrupt as end:
        if end.args[0] != signal.SIGINT:  # of that one the terminal has told it
            process.send_signal(end.args[0])
        try:
            process.wait(_CLEANS_UP_S)
        except subprocess.TimeoutExpired:
            process.kill()
        raise


if __name__ == "__main__":
    sys.exit(cleanly(main))
