"""FSDP2 (`fully_shard`) with a stateful loader: every rank keeps its shards and its position in the data.

The same script runs alone, under torchrun and under `srobust run`, on CPUs (gloo) and GPUs. With the same
options it ends with bitwise the same weights, however often it was interrupted, and every sample is used
once per epoch.

    torchrun --nproc-per-node 2 examples/fsdp2.py --steps 40 --workers 2
    srobust run --nproc-per-node 2 examples/fsdp2.py --steps 400 --out result.json

Needs torchdata (pip install torchdata).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import slurm_robust as sr


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Random walks over 64 symbols. What is random in a sample depends on its number and on nothing else."""

    def __init__(self, count: int, length: int = 17) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        walk = torch.randint(-1, 2, (self.length,), generator=generator).cumsum(0) + index
        return {"id": torch.tensor(index), "symbols": walk % 64}


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.mlp(self.norm(x)))


def build(width: int, layers: int, device: torch.device) -> nn.Module:
    blocks = [Block(width) for _ in range(layers)]
    model = nn.Sequential(nn.Embedding(64, width), *blocks, nn.Linear(width, 64)).to(device)
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def build_loader(
    options: argparse.Namespace, rank: int, world_size: int
) -> tuple[DistributedSampler, StatefulDataLoader]:
    data = Sequences(options.samples)
    # The order depends on the epoch alone, so a restarted process draws the same one.
    sampler = DistributedSampler(data, world_size, rank, shuffle=True, seed=options.seed, drop_last=True)
    # With a generator of its own the loader leaves the global one, which dropout uses, as it is.
    own = torch.Generator().manual_seed(options.seed)
    loader = StatefulDataLoader(
        data, options.batch, sampler=sampler, drop_last=True, num_workers=options.workers, generator=own
    )
    return sampler, loader


def train(options: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> dict[str, object]:
    model = build(options.width, options.layers, device)
    torch.manual_seed(options.seed + 1 + rank)  # dropout differs by rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sampler, loader = build_loader(options, rank, world_size)
    entries = {"model": model, "optimizer": optimizer, "loader": loader}
    checkpointer = sr.Checkpointer(entries, every=options.every, path=options.path)
    step = checkpointer.restore()
    while step < options.steps:
        sampler.set_epoch(step // len(loader))
        for batch in loader:  # begins behind the last batch of the checkpoint
            began = time.monotonic()
            symbols = batch["symbols"].to(device)
            loss = F.cross_entropy(model(symbols[:, :-1].flatten()), symbols[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if options.ids:
                record(options.ids, rank, step, batch["id"])
            checkpointer.step(step, loss=loss.detach())
            time.sleep(max(0.0, options.step_s - (time.monotonic() - began)))
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)
            step += 1
            if step == options.steps:
                break
    return {"sha256": weights_hash(model), "steps": options.steps}


def record(folder: Path, rank: int, step: int, ids: torch.Tensor) -> None:
    """Note which samples this step used. A step that is run again writes the same line again."""
    with (folder / f"ids-{rank}").open("a") as file:
        file.write(f"{step} {' '.join(map(str, ids.tolist()))}\n")


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode() + value.full_tensor().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def set_up(seed: int) -> tuple[int, int, torch.device]:
    """Rank, world size and device, from the environment that torchrun and srobust give."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # fully_shard needs a group, of one if need be
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(seed)
    return rank, world_size, device


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=240, help="of the data set")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank and step")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, per rank")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--every", type=int, default=1, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0, help="least seconds per step: time to break it")
    parser.add_argument("--path", default="checkpoints", help="checkpoint folder outside of srobust run")
    parser.add_argument("--ids", type=Path, help="folder to note in which samples were used")
    parser.add_argument("--out", type=Path, help="write the final weights' hash here, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    rank, world_size, device = set_up(options.seed)
    result = train(options, rank, world_size, device)
    if rank == 0 and options.out:
        beside = options.out.with_suffix(".tmp")
        beside.write_text(json.dumps(result) + "\n")
        beside.replace(options.out)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
