"""A training that is sharded or replicated and prints a hash of its whole state: before a fault and after."""

import argparse
import hashlib
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import slurm_robust as sr

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--step-s", type=float, default=0.1)
parser.add_argument("--every", type=int, default=1)
parser.add_argument("--kind", choices=["fsdp", "hsdp", "ddp"], required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--no-position", action="store_true", help="data are drawn from the global generator")
options = parser.parse_args()


class Position:
    """How many samples this rank has drawn, and of which stream: another one on each rank."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(rank)

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def state_hash(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Of parameters and the optimizer's state, put together. A collective call."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        of_one = [parameter.detach(), *(v for _, v in sorted(optimizer.state.get(parameter, {}).items()))]
        for tensor in of_one:
            digest.update(whole(tensor).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 31), nn.Dropout(0.2), nn.Linear(31, 1))
    if options.kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    elif options.kind == "hsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shards = dist.get_world_size() // 2
        fully_shard(model, mesh=init_device_mesh("cpu", (2, shards), mesh_dim_names=("replicas", "shards")))
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    position = Position(rank)
    entries = {"model": model, "optimizer": optimizer, "position": position}
    generator = position.generator
    if options.no_position:
        torch.manual_seed(100 + rank)
        del entries["position"]
        generator = torch.default_generator
    checkpointer = sr.Checkpointer(entries, every=options.every)
    first = checkpointer.restore()
    found = state_hash(model, optimizer)
    if rank == 0:
        print(f"begins {first} of {dist.get_world_size()} with {found}", flush=True)
    for step in range(first, options.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        time.sleep(options.step_s)
        checkpointer.step(step, loss=loss.item())
        found = state_hash(model, optimizer)
        if rank == 0:
            print(f"step {step} is {found}", flush=True)
    if rank == 0:
        options.out.write_text(found)


main()
dist.destroy_process_group()
