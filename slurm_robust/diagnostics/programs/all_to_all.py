"""Each rank sends to each other rank within the node: its GPUs over NCCL, or two processes over gloo."""

from __future__ import annotations

import torch
import torch.distributed as dist

from slurm_robust.diagnostics.devices import gpus_of
from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart
from slurm_robust.diagnostics.ranks import Ranks, best_rate, judged, pattern, run_ranks
from slurm_robust.wire.network import PortHolder

_CPU_WORDS = 1 << 19  # 2 MiB to each
_GPU_WORDS = 1 << 25  # 128 MiB to each
_REPEATS = 5


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``NotHere``, ``Wrong``, ``OSError``."""
    gpus = len(gpus_of(part))
    if gpus == 1:
        raise NotHere("the node has one GPU only")
    holder = PortHolder()
    count = gpus or 2
    ranks = Ranks(
        count=count, first=0, world=count, address="127.0.0.1", port=holder.port, on_gpus=bool(gpus)
    )
    holder.open()
    try:
        return run_ranks(ranks, exchange, part)
    finally:
        holder.close()


def exchange(rank: int, device: torch.device) -> Measurement:
    """Run one rank's part."""
    words = _GPU_WORDS if device.type == "cuda" else _CPU_WORDS
    world = dist.get_world_size()
    sent = torch.cat([pattern(rank, other, words, device) for other in range(world)])
    received = torch.empty_like(sent)
    bytes_sent = words * 4 * (world - 1)
    rate = best_rate(lambda: dist.all_to_all_single(received, sent), bytes_sent, _REPEATS, device)
    return judged(
        rank, [*received.view(world, words)], lambda other: pattern(other, rank, words, device), rate
    )
