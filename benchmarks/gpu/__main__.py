"""Measure what only a machine with a GPU shows, most important first, in less than 8 minutes."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.part import PARTS, Part
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
    if missing := lacks(OURS):
        print(missing, file=sys.stderr)
        return 2
    from benchmarks import common

    device = _device()
    if not device.get("gpu") and not options.cpu:
        print(
            f"torch {device['torch']} sees no CUDA device; --cpu tries the parts without one", file=sys.stderr
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    lines = options.out / "gpu.jsonl"
    lines.unlink(missing_ok=True)
    facts: dict[str, object] = {"machine": {**common.machine(), **device, **_driver(), **_shm(options.shm)}}
    print(json.dumps(facts), flush=True)
    begun, sound = time.monotonic(), True
    for part in options.parts:
        _run(part, lines, shm=options.shm, cpu=options.cpu)
        results = [json.loads(line) for line in lines.read_text().splitlines()]
        sound = sound and results[-1]["what"] in ("done", "left out")
        path = common.write(
            "gpu", {**facts, "took_s": round(time.monotonic() - begun), "results": results}, options.out
        )
    print(f"written to {path}", file=sys.stderr)
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
    parser.add_argument("--shm", type=Path, default=Path("/dev/shm"), help="a tmpfs (default: /dev/shm)")
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
    place = Path(tempfile.mkdtemp(prefix=f"bench-gpu-{part.name}-", dir=shm))
    words = [sys.executable, "-m", "benchmarks.gpu.part", part.name, *(["--cpu"] if cpu else [])]
    words += ["--place", str(place), "--results", str(lines), "--parent", str(os.getpid())]
    process = subprocess.Popen(words, cwd=_ROOT, env=_environ(), start_new_session=True)
    try:
        if code := process.wait(part.limit_s):
            _note(lines, part=part.name, what="failed", error=f"exit code {code}")
    except subprocess.TimeoutExpired:
        _note(lines, part=part.name, what="failed", error=f"ended at its limit of {part.limit_s:g} s")
    finally:
        _end(process)
        shutil.rmtree(place, ignore_errors=True)


def _note(lines: Path, **result: str) -> None:
    line = json.dumps(result)
    print(line, flush=True)
    with lines.open("a") as file:
        file.write(line + "\n")


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it left nobody behind
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
    done = subprocess.run(
        [sys.executable, "-c", _DEVICE], capture_output=True, text=True, timeout=_DEVICE_S, check=True
    )
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
    sys.exit(main())
