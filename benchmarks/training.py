"""What all contenders train: a GPT of 10,040,320 parameters (6 layers), data parallel over gloo.

Environment: ``BENCH_DIR`` (where events go and torch.save saves), ``BENCH_STEPS``, ``BENCH_LAYERS`` (6),
``BENCH_KILL_STEP`` (the step before which ``BENCH_KILL_RANK`` sends itself SIGKILL, once; -1 never) and
``BENCH_SAVE``, how it keeps its state: ``srobust`` (our Checkpointer, each step), ``torch`` (rank 0 by
torch.save, each step), ``nvrx`` (as torch, with NVRx's heartbeats), ``report`` (our Checkpointer, step
reports, and a snapshot every ``BENCH_EVERY`` steps if that is given). With the last one the end of each step
goes to ``ends-<rank>``: little-endian doubles, ``time.monotonic()``. Rank and world size come from torchrun's
variables, else from Slurm's.
"""

from __future__ import annotations

import time

STARTED = time.time()

import json  # noqa: E402 - the clock is read before anything is imported
import os  # noqa: E402
import signal  # noqa: E402
import struct  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

E = os.environ
RANK = int(E.get("RANK", E.get("SLURM_PROCID", "0")))
WORLD_SIZE = int(E.get("WORLD_SIZE", E.get("SLURM_NTASKS", "1")))
RUN = int(E.get("TORCHELASTIC_RESTART_COUNT", E.get("SLURM_RESTART_COUNT", "0")))
FOLDER = Path(E["BENCH_DIR"])
SAVE = E["BENCH_SAVE"]
TIMED = SAVE == "report"  # then steps are not marked: that would cost time itself


def mark(name: str, step: int = -1, t: float | None = None) -> None:
    """One line of events.jsonl, by one write, so that ranks do not mix their lines."""
    line = {"t": t or time.time(), "name": name, "rank": RANK, "step": step, "run": RUN, "pid": os.getpid()}
    with (FOLDER / "events.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")


mark("python", t=STARTED)

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

torch.set_num_threads(1)
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
mark("imported")

Step = Callable[[int], torch.Tensor]

VOCABULARY, WIDTH, HEADS, CONTEXT, BATCH = 4096, 320, 5, 64, 2
LAYERS = int(E.get("BENCH_LAYERS", "6"))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, time_, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time_, width))
        mlp: torch.Tensor = self.mlp(self.norm2(x))
        return x + mlp


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.token(x) + self.position.weight[: x.shape[1]]
        logits: torch.Tensor = self.head(self.norm(self.blocks(hidden)))
        return logits


def draw(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of ``step``: inputs and targets, both (BATCH, CONTEXT) of int64."""
    generator = torch.Generator().manual_seed(step * 1000 + RANK)
    x = torch.randint(0, VOCABULARY, (BATCH, CONTEXT + 1), generator=generator)
    return x[:, :-1], x[:, 1:]


def join() -> None:
    """Form the process group, with Slurm's variables where there are no others."""
    for name, value in (("RANK", RANK), ("WORLD_SIZE", WORLD_SIZE)):
        E.setdefault(name, str(value))
    dist.init_process_group("gloo")
    mark("group")


def train_torch(step_once: Step, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each step saved by rank 0 with torch.save, as scripts for torchrun do."""
    heartbeat = None
    if SAVE == "nvrx":
        from nvidia_resiliency_ext import fault_tolerance  # type: ignore[import-not-found]

        client = fault_tolerance.RankMonitorClient()
        client.init_workload_monitoring()
        heartbeat = client.send_heartbeat
    path, first = FOLDER / "state.pt", 0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    mark("ready", first)
    for step in range(first, int(E["BENCH_STEPS"])):
        step_once(step)
        if RANK == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
        dist.barrier()  # no rank goes on before the checkpoint lies on disk
        if heartbeat is not None:
            heartbeat()


def train_srobust(step_once: Step, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Each step reported and saved by our Checkpointer; ``report``: as often as told, mostly never."""
    import slurm_robust as sr

    every = 1 if SAVE == "srobust" else int(E.get("BENCH_EVERY", 10**9))
    checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer}, every=every)
    first = checkpointer.restore()
    mark("ready", first)
    for step in range(first, int(E["BENCH_STEPS"])):
        loss = step_once(step)
        checkpointer.step(step, loss=loss)
        if SAVE == "srobust":
            dist.barrier()  # as above, so that the same step is the newest for all contenders


def train() -> None:
    model = DistributedDataParallel(GPT())
    mark("built")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    kill_step, kill_rank = int(E.get("BENCH_KILL_STEP", "-1")), int(E.get("BENCH_KILL_RANK", "2"))
    # Unbuffered: the training is ended from outside when enough was seen.
    ends = (FOLDER / f"ends-{RANK}").open("wb", buffering=0)

    def step_once(step: int) -> torch.Tensor:
        if (step, RANK) == (kill_step, kill_rank) and not (FOLDER / "killed").exists():
            (FOLDER / "killed").touch()
            mark("kill", step)
            os.kill(os.getpid(), signal.SIGKILL)
        x, y = draw(step)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        if TIMED:
            ends.write(struct.pack("<d", time.monotonic()))
        else:
            mark("step", step)
        return loss.detach()

    if SAVE in ("srobust", "report"):
        train_srobust(step_once, model, optimizer)
    else:
        train_torch(step_once, model, optimizer)
    dist.barrier()
    ends.close()


def main() -> None:
    join()
    train()
    mark("end")
    # After train() has let go of the module: freed after the group, it could wait for a thread of the
    # group that waits for the interpreter.
    dist.destroy_process_group()


main()
