"""Measure what only a machine with a GPU shows, most important first, in less than 8 minutes."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from benchmarks.gpu.part import PARTS, Part
from benchmarks.scratch import SHARED_MEMORY, cleanly, deferred, remove_dead, scratch
from slurm_robust.util.process import signal_group
from slurm_robust.util.program import kill_tree
from tools.lacks import OURS, lacks

_DEVICE = """
import json, torch
there = torch.cuda.is_available()
gpu = torch.cuda.get_device_properties(0) if there else None
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": torch.cuda.device_count(),
    "gpu": gpu and gpu.name, "gpu_memory_gib": gpu and round(gpu.total_memory / 2**30, 1)}))
"""
_DEVICE_S = 60.0
_GONE_S = 10.0  # a worker with 40 GB registered was gone after 1.7 s
_ROOT = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts one after the other, each in a process of its own; 1 if one failed or took too long."""
    options = _options(argv)
    if options.list:
        for part in PARTS:
            print(f"{part.name:12} {part.limit_s:4.0f} s  {part.question}")
        return 0
    try:
        if missing := lacks(OURS):
            raise _CannotRun(missing)
        if not (options.shm.is_dir() and os.access(options.shm, os.R_OK | os.W_OK | os.X_OK)):
            raise _CannotRun(f"--shm {options.shm}: no folder that you may write to")
        with _claimed(options.out) as file:
            return _measure(options, file)
    except _CannotRun as error:
        print(error, file=sys.stderr)
        return 2


class _CannotRun(Exception):
    """The message says why, and what to do."""


@contextmanager
def _claimed(out: Path) -> Iterator[TextIO]:
    """The file of results, as it was, held by this run. Raises :class:`_CannotRun`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / "gpu.jsonl").open("a")
    except OSError as error:
        raise _CannotRun(f"--out {out}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            message = f"another run writes to {out}: wait for its end, or name another folder with --out"
            raise _CannotRun(message) from None
        except OSError:
            pass  # a file system without locks
        yield file


def _measure(options: argparse.Namespace, file: TextIO) -> int:
    from benchmarks import common

    device = _device()
    if not device.get("gpu") and not options.cpu:
        raise _CannotRun(f"torch {device['torch']} sees no CUDA device; --cpu tries the parts without one")
    file.truncate(0)
    lines, whole = options.out / "gpu.jsonl", options.out / "gpu.json"
    whole.unlink(missing_ok=True)
    remove_dead(options.shm)  # before its room is measured
    facts: dict[str, object] = {"machine": {**common.machine(), **device, **_driver(), **_shm(options.shm)}}
    print(json.dumps(facts), flush=True)
    begun, sound = time.monotonic(), True
    for part in options.parts:
        _run(part, lines, shm=options.shm, cpu=options.cpu)
        results = [json.loads(line) for line in lines.read_text().splitlines()]
        sound = sound and results[-1]["what"] in ("done", "left out")
        took_s = round(time.monotonic() - begun)
        common.write("gpu", {**facts, "took_s": took_s, "results": results}, options.out)
    print(f"written to {whole}", file=sys.stderr)
    return 0 if sound else 1


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="PART", help="some of the parts (default: all)")
    parser.add_argument(
        "--cpu", action="store_true", help="try the parts themselves, in small, without a GPU"
    )
    parser.add_argument("--list", action="store_true", help="list the parts, each with its time limit")
    parser.add_argument(
        "--out",
        type=Path,
        default=_ROOT / "build" / "bench",
        help="folder of the results (default: build/bench)",
    )
    parser.add_argument("--shm", type=Path, default=SHARED_MEMORY, help="a tmpfs (default: /dev/shm)")
    options = parser.parse_args(argv)
    known = {part.name: part for part in PARTS}
    # No choices=: argparse then refuses the empty list that stands for all.
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"no part {unknown[0]!r}; there are: {', '.join(known)}")
    options.parts = [part for part in PARTS if part.name in options.names] or list(PARTS)
    return options


def _run(part: Part, lines: Path, *, shm: Path, cpu: bool) -> None:
    """One part in a group of processes that ends with it, and a folder that goes with it."""
    if part.needs_cuda and cpu:
        _note(lines, part=part.name, what="left out", reason="needs CUDA")
        return
    with scratch(f"gpu-{part.name}", shm) as place:
        words = [sys.executable, "-m", "benchmarks.gpu.part", part.name, *(["--cpu"] if cpu else [])]
        words += ["--place", str(place), "--results", str(lines), "--parent", str(os.getpid())]
        process = subprocess.Popen(words, cwd=_ROOT, env=_environ(), start_new_session=True)
        try:
            if code := process.wait(part.limit_s):
                _note(lines, part=part.name, what="failed", error=f"exit code {code}")
        except subprocess.TimeoutExpired:
            _note(lines, part=part.name, what="failed", error=f"ended at its limit of {part.limit_s:g} s")
        finally:
            with deferred():
                _end(process)


def _note(lines: Path, **result: str) -> None:
    line = json.dumps(result)
    print(line, flush=True)
    with lines.open("a") as file:
        file.write(line + "\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        kill_tree(process.pid)
    else:
        signal_group(process.pid, signal.SIGKILL)  # what it left behind
    try:
        process.wait(_GONE_S)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the driver: what follows will show it


def _environ() -> dict[str, str]:
    # The package and these files, also for the workers of a zygote; this Python's programs, as py-spy.
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def _device() -> dict[str, object]:
    # In a process of its own: this one keeps no GPU.
    words = [sys.executable, "-c", _DEVICE]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_DEVICE_S, check=False)
    except subprocess.TimeoutExpired:
        raise _CannotRun(f"torch does not find the GPU within {_DEVICE_S:g} s") from None
    if done.returncode:
        raise _CannotRun(f"torch does not start: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def _driver() -> dict[str, object]:
    try:
        return {"driver": Path("/proc/driver/nvidia/version").read_text().splitlines()[0]}
    except OSError:
        return {}


def _shm(folder: Path) -> dict[str, object]:
    space = os.statvfs(folder)
    return {"shm": str(folder), "shm_gb": round(space.f_bavail * space.f_frsize / 1e9, 1)}


if __name__ == "__main__":
    sys.exit(cleanly(main))
