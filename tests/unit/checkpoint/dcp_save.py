"""Saves by slurm_robust what dcp_load.py loads: ``dcp_save.py FOLDER EXPECTED plain|ddp|fsdp``."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from slurm_robust.checkpoint.disk import DiskTier
from slurm_robust.checkpoint.state import Training, apply, capture
from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId
from tests.unit.checkpoint.dcp_load import model_of, stepped, whole

REF = CheckpointId(generation=1, step=7)


def main() -> None:
    folder, expected_path, kind = sys.argv[1:]
    torch.set_num_threads(1)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.manual_seed(1)
    model = model_of(normed=kind != "fsdp")
    if kind != "plain":
        dist.init_process_group("gloo", os.environ["STORE"], rank=rank, world_size=world_size)
    trained: nn.Module = model
    if kind == "ddp":
        trained = nn.parallel.DistributedDataParallel(model, broadcast_buffers=False)
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.125)
    stepped(trained, optimizer, rank)
    entries: dict[str, Any] = {"model": trained, "optimizer": optimizer}
    tier = DiskTier(CheckpointStore(folder), run_id="run", rank=rank, world_size=world_size)
    tier.save(REF, capture(entries))
    expected = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if kind == "ddp":
        buffers = [None] * world_size
        mine = {key: value for key, value in model.state_dict().items() if "running" in key}
        dist.all_gather_object(buffers, mine)
        expected["rank-00001"] = buffers[1]
    if rank == 0:
        torch.save(expected, expected_path)
    stepped(trained, optimizer, 30 + rank)
    apply(entries, tier.load(REF, Training(entries=entries)))
    again = whole({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    for name, value in again["model"].items():
        assert torch.equal(value, expected["model"][name])
    # Before the group: the reducer of DDP, which ends under the lock of the interpreter, would be the last to
    # hold it, and wait for ever where a thread of gloo that needs that lock has still some work to let go.
    del trained, entries
    if kind != "plain":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
