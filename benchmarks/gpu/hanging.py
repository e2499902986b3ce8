"""A rank that hangs as on a cluster: its host has run ahead of a device or a rank that does not come.

With NCCL, one rank: a kernel that takes minutes, collectives behind it, and a wait for the result. That is
what every rank but the culprit looks like. With gloo, two ranks on the CPU: rank 1 does not come to the sixth
collective.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from slurm_robust.util.process import die_with_parent
from slurm_robust.worker import dump

# What is hanging does not end by itself before it is ended.
_HANGS_S = 120.0


def main() -> None:
    """Join the group, work a little, and hang; ``--mark`` is a file that appears just before."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backend", choices=("nccl", "gloo"), required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    for name in ("record", "meet", "mark"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    os.environ["WORLD_SIZE"] = "2"  # as in any job of several ranks, so that the recorder's server starts
    die_with_parent(os.getppid())
    dump.allow_tracing(os.getppid())
    dump.prepare(str(options.record))
    dist.init_process_group(
        options.backend, init_method=f"file://{options.meet}", rank=options.rank, world_size=options.ranks
    )
    hang_on_gpu(options.mark) if options.backend == "nccl" else hang_on_rank(options.rank, options.mark)


def hang_on_gpu(mark: Path) -> None:
    torch.cuda.set_device(0)
    x = torch.ones(1 << 20, device="cuda")
    group = dist.new_group([0])

    def step() -> torch.Tensor:
        for _ in range(30):
            dist.all_reduce(x)
            y = x * 1.0001
        dist.all_gather([torch.empty_like(x)], x, group=group)
        return y.sum()

    # Once before: communicators, memory and kernels that are not there yet would wait for what runs.
    step().item()
    torch.cuda._sleep(int(_HANGS_S * 1.9e9))  # type: ignore[no-untyped-call]
    waited_for = step()
    mark.touch()
    waited_for.item()


def hang_on_rank(rank: int, mark: Path) -> None:
    x = torch.ones(1 << 10)
    for _ in range(5):
        dist.all_reduce(x)
    if rank != 0:
        time.sleep(_HANGS_S)
        return
    mark.touch()
    dist.all_reduce(x)


if __name__ == "__main__":
    main()
