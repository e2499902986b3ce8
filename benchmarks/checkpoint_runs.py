"""Starts the measurements of the checkpoint benchmark, each in a process and with folders of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks import common
from benchmarks.scratch import scratch

Result = dict[str, Any]
LIMIT_S = 600.0


@dataclass(frozen=True)
class Folders:
    """Empty folders of one measurement, on a disk and in /dev/shm."""

    disk: Path
    shm: Path


@contextmanager
def folders() -> Iterator[Folders]:
    """Both, removed at the end with what is in them."""
    common.OUT.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=common.OUT, prefix="checkpoint-") as disk,
        scratch("checkpoint") as shm,
    ):
        yield Folders(Path(disk), shm)


def run(order: str, **details: object) -> Result:
    """One order to its end (:mod:`benchmarks.checkpoint_child`), in a process of its own."""
    text = json.dumps({"order": order, **details})
    words = [sys.executable, "-m", "benchmarks.checkpoint_child", text]
    done = subprocess.run(
        words, cwd=common.ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
    )
    if done.returncode != 0:
        raise common.BenchmarkFailed(f"{text} failed:\n{(done.stdout + done.stderr)[-3000:]}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def touch_memory(nbytes: int) -> None:
    """Have a virtual machine get this much from its host, which is slow the first time a page is used."""
    nbytes = min(nbytes, psutil.virtual_memory().available * 2 // 3)
    code = (
        f"import mmap; m = mmap.mmap(-1, {nbytes}); [m.__setitem__(i, 1) for i in range(0, {nbytes}, 4096)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=LIMIT_S)
