"""Train a small GPT on the sources of Python's standard library, byte by byte.

The same script runs alone, under torchrun, and under `srobust run`; two lines of it (marked ->) make it
survive faults. With the same options it ends with bitwise the same weights, however often it was
interrupted: compare the "sha256" of --out.

    python examples/train_gpt.py --steps 20
    torchrun --nproc-per-node 2 examples/train_gpt.py --steps 20
    srobust run --nproc-per-node 2 examples/train_gpt.py --steps 300 --out result.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import slurm_robust as sr

CORPUS_BYTES = 4_000_000


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        # Written out: the fused kernels for this are not deterministic on every GPU.
        scores = (q @ k.transpose(-2, -1)) * (width // self.heads) ** -0.5
        future = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).reshape(batch, time, width)
        x = x + self.dropout(self.out(mixed))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.token = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.randn(context, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


class Loader:
    """Random windows of the corpus: which ones depends on seed, rank and how many were drawn."""

    def __init__(self, corpus: torch.Tensor, batch: int, context: int, seed: int) -> None:
        self.corpus, self.batch, self.context = corpus, batch, context
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(self.corpus) - self.context - 1, (self.batch,), generator=self.generator)
        windows = torch.stack([self.corpus[s : s + self.context + 1] for s in starts.tolist()]).long()
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self.generator.set_state(state["generator"])


def read_corpus() -> torch.Tensor:
    """The first megabytes of the standard library's sources, in the order of their names."""
    found, size = [], 0
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        found.append(path.read_bytes())
        size += len(found[-1])
        if size >= CORPUS_BYTES:
            break
    return torch.frombuffer(bytearray(b"".join(found)), dtype=torch.uint8)


def set_up(seed: int) -> tuple[int, int, torch.device]:
    """Rank, world size and device, from the environment that torchrun and srobust give."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // local_world_size))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(seed)
    return rank, world_size, device


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64, help="bytes that the model sees")
    parser.add_argument("--batch", type=int, default=2, help="windows per rank and step")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", default="checkpoints", help="checkpoint folder outside of srobust run")
    parser.add_argument("--out", type=Path, help="write the final weights' hash here, as JSON")
    return parser.parse_args()


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train(options: argparse.Namespace, rank: int, world_size: int, device: torch.device) -> dict[str, object]:
    model = GPT(options.layers, options.width, options.heads, options.context).to(device)
    trained: nn.Module = model
    if world_size > 1:
        # Without find_unused_parameters DDP regroups gradients after its first step, so that the step
        # after a restart would add them up in another order than the run without a restart did. (DDP warns
        # once that it found no unused parameters: that is as meant.)
        trained = DistributedDataParallel(model, find_unused_parameters=True)
    torch.manual_seed(options.seed + 1 + rank)  # dropout differs by rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    loader = Loader(read_corpus(), options.batch, options.context, seed=options.seed + 1000 * rank)

    entries = {"model": trained, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    checkpointer = sr.Checkpointer(entries, every=options.every, path=options.path)  # ->
    loss = torch.full((), float("nan"))
    for step in range(checkpointer.restore(), options.steps):
        tokens, targets = (t.to(device) for t in loader.next())
        loss = F.cross_entropy(trained(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        grad_norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        checkpointer.step(step, loss=loss.detach(), grad_norm=grad_norm)  # ->
        if rank == 0 and (step + 1) % 10 == 0:
            print(f"step {step} loss {loss.item():.4f} grad_norm {grad_norm.item():.4f}", flush=True)
    return {"sha256": weights_hash(model), "steps": options.steps, "loss": loss.item()}


def main() -> None:
    options = parse()
    rank, world_size, device = set_up(options.seed)
    result = train(options, rank, world_size, device)
    if rank == 0 and options.out:
        beside = options.out.with_suffix(".tmp")
        beside.write_text(json.dumps(result) + "\n")
        beside.replace(options.out)
    if world_size > 1:
        # The DDP module is gone by now: freed after the group, it can wait for a thread of the group that
        # waits for the interpreter, for ever.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
