"""A worker that holds memory of a GPU and registered shared memory, with kernels under way; killed."""

from __future__ import annotations

import argparse
import json
import mmap
import os
import time
from pathlib import Path

import torch

from benchmarks.gpu.bench import GB
from slurm_robust.checkpoint.devices import Pinned
from slurm_robust.checkpoint.gpus import CUDA

_BUFFERS = 4  # as many as a rank has


def main() -> None:
    """Take what was asked for, say how long that took in ``--mark``, and hold it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", required=True, help="cpu or cuda")
    parser.add_argument("--registered-gb", type=float, required=True)
    parser.add_argument("--device-gb", type=float, required=True)
    parser.add_argument("--place", type=Path, required=True, help="a folder in shared memory")
    parser.add_argument("--mark", type=Path, required=True)
    options = parser.parse_args()
    begun = time.monotonic()
    device = torch.device(options.device)
    held = [torch.ones(1, device=device)]
    facts: dict[str, object] = {"context_s": time.monotonic() - begun}
    held += [torch.ones(10**8, device=device) for _ in range(int(options.device_gb / 0.4))]
    pinned, kept = Pinned(CUDA), []
    pinned.device = device if device.type == "cuda" else None
    for number in range(_BUFFERS if options.registered_gb else 0):
        size = int(options.registered_gb * GB) // _BUFFERS // mmap.PAGESIZE * mmap.PAGESIZE
        file = os.open(options.place / f"own-{number}", os.O_RDWR | os.O_CREAT)
        begun = time.monotonic()
        os.posix_fallocate(file, 0, size)
        reserved = time.monotonic()
        kept.append(mmap.mmap(file, size))
        pinned.pin(memoryview(kept[-1]))
        facts[f"buffer {number}"] = {"reserve_s": reserved - begun, "register_s": time.monotonic() - reserved}
    beside = options.mark.with_suffix(".new")
    beside.write_text(json.dumps(facts))
    beside.replace(options.mark)
    while True:
        if device.type == "cuda":
            torch.cuda._sleep(10**9)  # type: ignore[no-untyped-call]  # half a second: something always runs
            torch.cuda.synchronize()
        else:
            time.sleep(1)


if __name__ == "__main__":
    main()
