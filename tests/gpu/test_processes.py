"""Processes with a GPU: forked after imports, killed with registered memory, hanging in a kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from slurm_robust.agent.stacks import pyspy, recorder
from slurm_robust.worker.dump import RECORDER_SUFFIX
from tests.waiting import wait_for

GB = 10**9

FORKS = """
import importlib, os
from slurm_robust.worker import zygote
for name in ("torch", *zygote._TORCH_MODULES, "slurm_robust.worker.api"):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
import torch
assert not torch.cuda.is_initialized()
pid = os.fork()
if pid == 0:
    x = torch.ones(1024, 1024, device="cuda")
    os._exit(0 if float((x @ x)[0, 0]) == 1024.0 else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

HOLDS = """
import mmap, os, sys, torch
from pathlib import Path
from slurm_robust.checkpoint import devices
from slurm_robust.checkpoint.gpus import CUDA
held = torch.ones(10 * 10**9, dtype=torch.uint8, device="cuda")
pins = devices.Pinned(CUDA)
pins.device = held.device
memory = mmap.mmap(-1, 8 * 2**30)
pins.pin(memoryview(memory))
Path(sys.argv[1]).touch()
while True:
    torch.cuda._sleep(10**9)
    torch.cuda.synchronize()
"""

HANGS = """
import os, sys, torch, torch.distributed as dist
from pathlib import Path
from slurm_robust.worker import dump
os.environ["WORLD_SIZE"] = "2"  # so that the server is started, as in any job of several ranks
dump._serve_recorder(Path(sys.argv[2]))
os.environ["WORLD_SIZE"] = "1"
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(1 << 20, device="cuda")
dist.all_reduce(x)
torch.cuda.synchronize()
torch.cuda._sleep(60 * 2_500_000_000)
for _ in range(30):
    dist.all_reduce(x)
Path(sys.argv[1]).touch()
x.sum().item()
"""


def start(code: str, mark: Path, *arguments: Path) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", code, str(mark), *map(str, arguments)]
    process = subprocess.Popen(words, env={**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"})
    wait_for(lambda: mark.exists() or process.poll() is not None, 120.0, "it does not start")
    assert process.poll() is None
    return process


def test_a_fork_after_the_zygote_s_imports_can_use_the_gpu() -> None:
    assert subprocess.run([sys.executable, "-c", FORKS], timeout=180, check=False).returncode == 0


def test_a_killed_process_gives_its_memory_back_in_time(tmp_path: Path) -> None:
    """Registered pages are given back one by one, and memory of the GPU later than the process ends."""
    torch.ones(1, device="cuda")
    process = start(HOLDS, tmp_path / "mark")
    free = torch.cuda.mem_get_info()[0]
    begun = time.monotonic()
    process.kill()
    process.wait(120.0)
    gone = time.monotonic()
    wait_for(lambda: torch.cuda.mem_get_info()[0] > free + 9 * GB, 120.0, "its memory is not free")
    print(f"gone after {gone - begun:.1f} s, its memory free after {time.monotonic() - begun:.1f} s")


def test_a_hang_on_the_gpu_is_seen_from_outside(tmp_path: Path) -> None:
    """The main thread waits in CUDA, and the recorder's server answers all the same."""
    address = tmp_path / f"rank{RECORDER_SUFFIX}"
    process = start(HANGS, tmp_path / "mark", address)
    try:
        found = recorder.take(address, time.monotonic() + 5.0)
        assert [one for one in found.collectives if one.state != "completed"]
        threads = pyspy.take(pyspy.find_pyspy(), process.pid, time.monotonic() + 20.0)
        assert any(thread.is_main for thread in threads)
    finally:
        process.kill()
        process.wait(120.0)
