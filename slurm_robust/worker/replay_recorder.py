"""Records what each step of a replayed script computed, as digests."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.optim.optimizer import register_optimizer_step_pre_hook

from slurm_robust.worker import trial
from slurm_robust.worker.replay import REPLAY, REPLAY_STEPS, Gradients, Machine, add_line


def record_steps(environ: Mapping[str, str]) -> None:
    """Record every step of every torch optimizer of this process, and end it after the last one.

    Called before the script. The process then ends in the middle of the script, without its exit handlers:
    after the last step there is nothing that it should still write.
    """
    path, steps = environ[REPLAY], int(environ[REPLAY_STEPS])
    # Asked, not forced: an operation without a deterministic form would end a script that does well without.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(0)
    random.seed(0)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)
    count = 0

    # Before the update, because a script may have its optimizer drop the gradients.
    def record(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        nonlocal count
        if count == 0:
            add_line(path, Machine(name=_machine()))
        add_line(path, _gradients(count, optimizer))
        count += 1
        if count == steps:
            trial.leave("replay")

    register_optimizer_step_pre_hook(torch.compiler.disable(record))  # type: ignore[no-untyped-call]


def _gradients(step: int, optimizer: torch.optim.Optimizer) -> Gradients:
    """Sum up the gradients of all parameters in the order in which the optimizer has them."""
    digest, is_finite = xxhash.xxh3_128(), True
    for gradient in _local(p.grad for group in optimizer.param_groups for p in group["params"]):
        # Each of its own length, so that a gradient that is missing moves no other into its place.
        digest.update(struct.pack("<q", gradient.numel()))
        digest.update(gradient.cpu().view(torch.uint8).numpy().data)
        is_finite = is_finite and bool(torch.isfinite(gradient.float()).all())
    return Gradients(step=step, digest=digest.hexdigest(), is_finite=is_finite)


def _local(gradients: Iterable[torch.Tensor | None]) -> Iterable[torch.Tensor]:
    """Yield this rank's own part of each, flat and dense."""
    for gradient in gradients:
        if gradient is None:
            yield torch.empty(0)
            continue
        part: Any = gradient.detach()
        part = part.to_local() if hasattr(part, "to_local") else part
        part = part.to_dense().contiguous()
        # A single number may keep any stride, and torch views none but 1 as bytes.
        yield part.as_strided((part.numel(),), (1,))


def _machine() -> str:
    if torch.cuda.is_available():
        name = torch.cuda.get_device_name()
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        # Both decide in which order a sum is made.
        name = f"{model}, {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}"
