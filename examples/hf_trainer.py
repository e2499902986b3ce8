"""transformers.Trainer that goes on bitwise after a fault: two lines of it (marked ->) do that.

A tiny GPT-2, made from its configuration, learns random walks; nothing is downloaded. The same script runs
alone, under torchrun and under `srobust run`, on CPUs (gloo) and GPUs.

    torchrun --nproc-per-node 2 examples/hf_trainer.py --steps 40
    srobust run --nproc-per-node 2 examples/hf_trainer.py --steps 400 --out result.json

Needs transformers and accelerate (pip install 'slurm_robust[hf]').
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no network, also where there is one
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from slurm_robust.integrations.huggingface import RobustCallback


class Sequences(Dataset[dict[str, torch.Tensor]]):
    """Random walks over 64 symbols. What is random in a sample depends on its number and on nothing else."""

    def __init__(self, count: int, length: int = 16) -> None:
        self.count, self.length = count, length

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        walk = (torch.randint(-1, 2, (self.length,), generator=generator).cumsum(0) + index) % 64
        return {"input_ids": walk, "labels": walk}


class Pace(TrainerCallback):
    """Says each step, and makes steps last, to have time to break them."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s

    def on_step_end(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            print(f"step {state.global_step - 1}", flush=True)
        time.sleep(self.step_s)


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(options: argparse.Namespace, output: str) -> dict[str, object]:
    cuda = torch.cuda.is_available()
    arguments = TrainingArguments(
        output_dir=output,
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=options.batch,
        gradient_accumulation_steps=options.accumulate,
        dataloader_num_workers=options.workers,
        learning_rate=1e-3,
        warmup_steps=5,
        lr_scheduler_type="constant_with_warmup",
        seed=options.seed,
        eval_strategy="steps",
        eval_steps=8,
        logging_steps=1,
        save_strategy="no",  # the snapshots are enough to go on; the Trainer's own are for the model
        report_to="none",
        disable_tqdm=True,
        use_cpu=not cuda,
        ddp_backend=("nccl" if cuda else "gloo") if "RANK" in os.environ else None,
        ddp_find_unused_parameters=True,  # the same order of summation after a restart, docs/checkpoints.md
    )
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(options.seed)
    sizes = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    robust = RobustCallback(every=options.every, path=options.path)  # ->
    trainer = Trainer(
        model,
        arguments,
        train_dataset=Sequences(options.samples),
        eval_dataset=Sequences(8),
        callbacks=[robust, Pace(options.step_s)],
    )
    trainer.train(resume_from_checkpoint=robust.resume(trainer))  # ->
    return {"sha256": weights_hash(model), "steps": trainer.state.global_step}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--samples", type=int, default=88, help="of the data set")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank and pass")
    parser.add_argument("--accumulate", type=int, default=1, help="passes per step")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data, per rank")
    parser.add_argument("--every", type=int, default=1, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds to wait in each step")
    parser.add_argument("--path", default="checkpoints", help="checkpoint folder outside of srobust run")
    parser.add_argument("--out", type=Path, help="write the final weights' hash here, as JSON")
    return parser.parse_args()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as output:  # where the Trainer would put what it saves
        result = train(options, output)
    if int(os.environ.get("RANK", "0")) == 0 and options.out:
        beside = options.out.with_suffix(".tmp")
        beside.write_text(json.dumps(result) + "\n")
        beside.replace(options.out)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
