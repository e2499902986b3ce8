"""Writes tests/data/stacks/KIND.json: what py-spy sees of a training that hangs: ``record.py [KIND ...]``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil

from slurm_robust.model.stacks import Frame, ProcessKind, ProcessStacks, RankStacks, ThreadStack

WORLD, VICTIM = 4, 2
KINDS = ("c", "lock", "io", "loader", "skip", "p2p", "stop")
OUT = Path(__file__).resolve().parents[4] / "data" / "stacks"
SCRIPT = Path(__file__).with_name("hanging.py")
PY_SPY = Path(sys.executable).with_name("py-spy")


def main(kinds: list[str]) -> None:
    for kind in kinds or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            workers = [start(kind, rank, folder) for rank in range(WORLD)]
            try:
                time.sleep(45)  # imports, four steps, and time to come to a halt
                for native in (False, True):
                    stacks = [take(rank, worker.pid, native) for rank, worker in enumerate(workers)]
                    write(OUT / (f"{kind}-native.json" if native else f"{kind}.json"), stacks)
            finally:
                for worker in workers:
                    end(worker)


def write(path: Path, stacks: list[RankStacks]) -> None:
    """One rank a line, with the paths of a cluster and not of the machine that recorded it."""
    text = "[\n" + ",\n".join(msgspec.json.encode(rank).decode() for rank in stacks) + "\n]\n"
    for here, there in (
        (sys.prefix, "/opt/venv"),
        (sys.base_prefix, "/usr"),
        (str(SCRIPT.parent), "/home/alice"),
    ):
        text = text.replace(here, there)
    path.write_text(re.sub(r'/[^"]*/Python-3[^"/]*/', "/usr/src/", text))


def start(kind: str, rank: int, folder: str) -> subprocess.Popen[bytes]:
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    words = [sys.executable, str(SCRIPT), kind, str(VICTIM)]
    env |= {"OMP_NUM_THREADS": "1", "TMPDIR": folder}  # killed processes leave their sockets' folders
    return subprocess.Popen(words, env=os.environ | env, cwd=folder)


def end(worker: subprocess.Popen[bytes]) -> None:
    for process in psutil.Process(worker.pid).children(recursive=True):
        process.kill()
    worker.kill()
    worker.wait()


def take(rank: int, pid: int, native: bool) -> RankStacks:
    children = psutil.Process(pid).children(recursive=True)
    kinds = [(pid, ProcessKind.WORKER), *((child.pid, ProcessKind.LOADER) for child in children)]
    processes = tuple(process(pid, kind, native) for pid, kind in kinds)
    return RankStacks(rank=rank, node=f"n{rank // 2}", processes=processes, source="py-spy")


def process(pid: int, kind: ProcessKind, native: bool) -> ProcessStacks:
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    mode = ["--native"] if native else ["--nonblocking"]
    words = [str(PY_SPY), "dump", "--json", *mode, "--pid", str(pid)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        return ProcessStacks(pid=pid, kind=kind, state=state, error=done.stderr.strip().splitlines()[-1])
    return ProcessStacks(pid=pid, kind=kind, state=state, threads=tuple(threads(done.stdout, pid)))


def threads(dump: str, pid: int) -> Iterator[ThreadStack]:
    for thread in json.loads(dump):
        frames = tuple(
            Frame(function=f["name"], file=f["filename"], line=f["line"] or 0) for f in thread["frames"]
        )
        is_main = thread.get("os_thread_id") == pid or thread["thread_name"] == "MainThread"
        yield ThreadStack(frames=frames, name=thread["thread_name"] or "", is_main=is_main)


if __name__ == "__main__":
    main(sys.argv[1:])
