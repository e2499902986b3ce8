"""Forks of a zygote: which imports make one unfit for a GPU, whether it sees that, and what a fork costs."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from benchmarks import common
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.forking import CASES

_CASE_S = 40.0
_ALONE = ("torch alone", "all that the zygote imports")
"""Whose seconds matter; the imports of the others take up to 20 s each, so they go on side by side."""
_AT_ONCE = 3


def forks(bench: Bench) -> None:
    """Each case in an interpreter of its own."""
    for case in _ALONE[:1] if bench.cpu else _ALONE:
        _fork(bench, case)
    if not bench.cpu:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda case: _fork(bench, case), [case for case in CASES if case not in _ALONE]))


def _fork(bench: Bench, case: str) -> None:
    words = [sys.executable, "-m", "benchmarks.gpu.forking", "--case", case, "--device", bench.device]
    try:
        done = subprocess.run(
            words, cwd=common.ROOT, capture_output=True, text=True, timeout=_CASE_S, check=False
        )
    except subprocess.TimeoutExpired:
        bench.tell("fork", case=case, error=f"not over within {_CASE_S:.0f} s")
        return
    last = done.stdout.strip().rpartition("\n")[2]
    found = json.loads(last) if last.startswith("{") else {"error": done.stderr.strip()[-300:]}
    bench.tell("fork", case=case, **found)
