"""Forks of a zygote: which imports make one unfit for a GPU, whether it sees that, and what a fork costs."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks import common
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.forking import CASES

_CASE_S = 30.0
_ON_CPU = ("torch alone",)


def forks(bench: Bench) -> None:
    """Each case in an interpreter of its own."""
    for case in _ON_CPU if bench.cpu else CASES:
        words = [sys.executable, "-m", "benchmarks.gpu.forking", "--case", case, "--device", bench.device]
        try:
            done = subprocess.run(
                words, cwd=common.ROOT, capture_output=True, text=True, timeout=_CASE_S, check=False
            )
        except subprocess.TimeoutExpired:
            bench.tell("fork", case=case, error=f"not over within {_CASE_S:.0f} s")
            continue
        last = done.stdout.strip().rpartition("\n")[2]
        found = json.loads(last) if last.startswith("{") else {"error": done.stderr.strip()[-300:]}
        bench.tell("fork", case=case, **found)
