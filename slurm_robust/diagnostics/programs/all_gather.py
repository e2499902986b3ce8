"""Two neighbours gather what both have: over every GPU's way out by NCCL, or one process each over gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist

from slurm_robust.diagnostics.devices import can_use_gpus
from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart
from slurm_robust.diagnostics.ranks import Ranks, best_rate, judged, pattern, run_ranks

_CPU_WORDS = 1 << 20  # 4 MiB
_GPU_WORDS = 1 << 25  # 128 MiB
_REPEATS = 5


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``NotHere``."""
    if part.gpus_together and not can_use_gpus():
        raise NotHere(f"PyTorch {torch.__version__} is built without support of GPUs")
    count = part.gpus_together or 1
    ranks = Ranks(
        count=count,
        first=part.group.index(part.node) * count,
        world=len(part.group) * count,
        address=part.address,
        port=part.port,
        on_gpus=bool(part.gpus_together),
    )
    return run_ranks(ranks, gather, part)


def gather(rank: int, device: torch.device) -> Measurement:
    """Run one rank's part."""
    words = _GPU_WORDS if device.type == "cuda" else _CPU_WORDS
    world = dist.get_world_size()
    sent = pattern(rank, world, words, device)
    received = [torch.empty_like(sent) for _ in range(world)]
    bytes_received = words * 4 * (world - 1)
    rate = best_rate(lambda: dist.all_gather(received, sent), bytes_received, _REPEATS, device)
    return judged(rank, received, lambda other: pattern(other, world, words, device), rate)
