"""Lightning that goes on bitwise after a fault: two lines of it (marked ->) do that.

A small network learns to continue random walks. The same script runs alone, under torchrun and under
`srobust run`, on CPUs (gloo) and GPUs.

    torchrun --nproc-per-node 2 examples/lightning_trainer.py --epochs 3
    srobust run --nproc-per-node 2 examples/lightning_trainer.py --epochs 20 --out result.json

Needs lightning and torchdata (pip install 'slurm_robust[lightning]').
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from slurm_robust.integrations.data import ResumableLoader
from slurm_robust.integrations.lightning import RobustCallback


class Walks(Dataset[torch.Tensor]):
    """Random walks over 64 symbols. What is random in a sample depends on its number and on nothing else."""

    def __init__(self, count: int, length: int = 17) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(index)
        return (torch.randint(-1, 2, (self.length,), generator=generator).cumsum(0) + index) % 64


class Model(LightningModule):
    def __init__(self, options: argparse.Namespace, width: int = 32) -> None:
        super().__init__()
        self.options = options
        self.network = nn.Sequential(
            nn.Embedding(64, width), nn.Linear(width, width), nn.Dropout(0.1), nn.ReLU(), nn.Linear(width, 64)
        )

    def configure_model(self) -> None:
        if self.options.shard:
            from torch.distributed.fsdp import fully_shard  # since torch 2.6

            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return F.cross_entropy(self.network(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)]

    def train_dataloader(self) -> ResumableLoader:
        data = Walks(self.options.samples)
        # Its order depends on the epoch alone, and the loader knows its position in it.
        sampler = DistributedSampler(data, self.trainer.world_size, self.trainer.global_rank)
        return ResumableLoader(
            data, self.options.batch, sampler=sampler, num_workers=self.options.workers, drop_last=True
        )

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Walks(8), 4)


class Pace(Callback):
    """Says each step, and makes steps last, to have time to break them."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        if trainer.is_global_zero:
            print(f"step {trainer.global_step - 1}", flush=True)
        time.sleep(self.step_s)


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor  # a DTensor of FSDP2
        digest.update(name.encode() + whole.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(options: argparse.Namespace) -> dict[str, object]:
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    nodes = world_size // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.manual_seed(options.seed)
    model = Model(options)
    robust = RobustCallback(every=options.every, path=options.path)  # ->
    trainer = Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=world_size // nodes,
        num_nodes=nodes,
        # find_unused_parameters keeps the order of summation over restarts, see docs/checkpoints.md.
        strategy=ModelParallelStrategy()
        if options.shard
        else ("ddp_find_unused_parameters_true" if world_size > 1 else "auto"),
        max_epochs=options.epochs,
        max_steps=options.steps,
        val_check_interval=0.5,
        accumulate_grad_batches=options.accumulate,
        callbacks=[robust, Pace(options.step_s)],  # ->
        deterministic=True,
        logger=False,
        enable_checkpointing=False,  # the snapshots are enough to go on
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model)
    return {"sha256": weights_hash(model), "steps": trainer.global_step}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=-1, help="end after so many steps, if before the epochs")
    parser.add_argument("--samples", type=int, default=80, help="of the data set")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank and pass")
    parser.add_argument("--accumulate", type=int, default=1, help="passes per step")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, per rank")
    parser.add_argument("--shard", action="store_true", help="FSDP2 in place of DistributedDataParallel")
    parser.add_argument("--every", type=int, default=1, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--path", default="checkpoints", help="checkpoint folder outside of srobust run")
    parser.add_argument("--out", type=Path, help="write the final weights' hash here, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    result = train(options)
    if int(os.environ.get("RANK", "0")) == 0 and options.out:
        beside = options.out.with_suffix(".tmp")
        beside.write_text(json.dumps(result) + "\n")
        beside.replace(options.out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
