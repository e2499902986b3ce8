"""A training loop that knows nothing of slurm_robust: any PyTorch script runs under `srobust run`.

Its progress is seen all the same: the worker counts optimizer steps. After a fault it starts from the
beginning, since nobody saves its state (see train_gpt.py for the two lines that do).

    srobust run --nproc-per-node 2 examples/plain_loop.py --steps 500
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(steps: int, width: int, rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    if world_size > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(steps):
        inputs = torch.randn(64, 64)
        loss = (model(inputs).squeeze(1) - inputs.sum(1)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step + 1) % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--width", type=int, default=512)
    options = parser.parse_args()

    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size > 1:
        dist.init_process_group("gloo")
    train(options.steps, options.width, rank, world_size)
    if world_size > 1:
        dist.destroy_process_group()  # after the DDP module is gone, see train_gpt.py


if __name__ == "__main__":
    main()
