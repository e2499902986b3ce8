"""Ranks of a collective on this node, each a process of its own, within a bounded time. Imports torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import msgspec
import psutil
import torch
import torch.distributed as dist

from slurm_robust.agent.ports import local_address
from slurm_robust.diagnostics.children import in_children
from slurm_robust.diagnostics.part import Found, Part, failed, late, worst
from slurm_robust.model.record import Record

_GIVE_UP_S = 3.0  # before the time is over, so that what went wrong can still be told
_LATE = 0.9


class Ranks(Record):
    """``count`` ranks of this node out of ``world``, from ``first`` on, which meet at an address and port."""

    count: int
    first: int
    world: int
    address: str
    port: int
    on_gpus: bool


def run_ranks(ranks: Ranks, body: Callable[[int, torch.device], Found], part: Part) -> Found:
    """Call ``body(rank, device)`` in every rank, with the process group up; the worst of what they found.

    The rate is that of the slowest. A rank that raises has failed; one that dies or does not end has measured
    nothing.
    """
    limit_s = max(1.0, part.limit_s - _GIVE_UP_S)
    every = range(ranks.first, ranks.first + ranks.count)
    bodies = {f"rank {rank}": partial(_rank, ranks, rank, body, limit_s - 2.0) for rank in every}
    found = list(in_children(bodies, limit_s).values())
    rates = [one.rate for one in found if one.rate]
    return msgspec.structs.replace(worst(found), rate=min(rates, default=0.0))


def _rank(ranks: Ranks, rank: int, body: Callable[[int, torch.device], Found], timeout_s: float) -> Found:
    begun = time.monotonic()
    try:
        return _meet(ranks, rank, body, timeout_s)
    except RuntimeError as error:
        if time.monotonic() - begun >= _LATE * timeout_s:
            return late(timeout_s, f"rank {rank}")
        first = str(error).strip().partition("\n")[0]
        return failed(f"rank {rank}: {first}"[:300])


def _meet(ranks: Ranks, rank: int, body: Callable[[int, torch.device], Found], timeout_s: float) -> Found:
    _choose_interface(ranks)
    device = torch.device("cuda", rank - ranks.first) if ranks.on_gpus else torch.device("cpu")
    torch.set_num_threads(1)
    if ranks.on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if ranks.on_gpus else "gloo",
        init_method=f"tcp://{ranks.address}:{ranks.port}",
        rank=rank,
        world_size=ranks.world,
        timeout=timedelta(seconds=max(1.0, timeout_s)),
    )
    found = body(rank, device)
    # Nobody may leave while another one still receives from it. No orderly end: the process ends now.
    dist.barrier()
    return found


def _choose_interface(ranks: Ranks) -> None:
    """Have gloo use the way to the others; by itself it takes what the node's own name resolves to."""
    own = local_address(ranks.address, ranks.port or 1)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == own for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)


def pattern(source: int, target: int, words: int, device: torch.device) -> torch.Tensor:
    """What ``source`` sends to ``target``: words of 32 bits that no other pair of ranks sends."""
    index = torch.arange(words, dtype=torch.int32, device=device)
    return index * 2654435 ^ (source * 40503 + target * 9973)


def best_rate(exchange: Callable[[], object], sent: int, repeats: int, device: torch.device) -> float:
    """GB/s of the fastest of some exchanges of ``sent`` bytes: others may disturb, nothing can hasten."""
    best = 0.0
    for _ in range(repeats):
        begun = time.monotonic()
        exchange()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = max(best, sent / max(1e-9, time.monotonic() - begun) / 1e9)
    return best
