"""Ranks of a collective on this node, each a process of its own, within a bounded time. Imports torch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import msgspec
import psutil
import torch
import torch.distributed as dist

from slurm_robust.diagnostics.devices import name_of
from slurm_robust.diagnostics.part import Measurement, TestPart, failed, in_children, late, unknown, worst
from slurm_robust.model.record import Record
from slurm_robust.wire.network import local_address

_GIVE_UP_S = 3.0  # before the time is over, so that what went wrong can still be reported
_LATE = 0.9
# Waiting for a CPU, as a share of an exchange: below it others cost less than half the rate.
_BUSY = 0.5


class Ranks(Record):
    """Ranks of this node."""

    count: int
    first: int
    world: int
    """How many all nodes have together; they meet at ``address`` and ``port``."""
    address: str
    port: int
    on_gpus: bool


def run_ranks(ranks: Ranks, body: Callable[[int, torch.device], Measurement], part: TestPart) -> Measurement:
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


def _rank(
    ranks: Ranks, rank: int, body: Callable[[int, torch.device], Measurement], timeout_s: float
) -> Measurement:
    begun = time.monotonic()
    try:
        return _meet(ranks, rank, body, timeout_s)
    except RuntimeError as error:
        if time.monotonic() - begun >= _LATE * timeout_s:
            return late(timeout_s, f"rank {rank}")
        first = str(error).strip().partition("\n")[0]
        return failed(f"rank {rank}: {first}"[:300])


def _meet(
    ranks: Ranks, rank: int, body: Callable[[int, torch.device], Measurement], timeout_s: float
) -> Measurement:
    # Have gloo use the way to the others; by itself it takes what the node's own name resolves to
    own = local_address(ranks.address, ranks.port or 1)
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == own for one in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
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
    # No rank may leave while another one still receives from it. No orderly end: the process ends now.
    dist.barrier()
    return found


def pattern(source: int, target: int, words: int, device: torch.device) -> torch.Tensor:
    """Return what ``source`` sends to ``target``: words of 32 bits that no other pair of ranks sends."""
    index = torch.arange(words, dtype=torch.int32, device=device)
    return index * 2654435 ^ (source * 40503 + target * 9973)


def best_rate(exchange: Callable[[], object], sent: int, repeats: int, device: torch.device) -> float:
    """Return GB/s of the fastest of some exchanges of ``sent`` bytes: others may slow one, none hasten it.

    Without a GPU it is the CPUs that move the bytes. An exchange in which a rank had to wait for one does
    not count; 0.0 if there was no other: a busy node says nothing of its links.
    """
    rates, waited = [], []
    for _ in range(repeats):
        begun, wait = time.monotonic(), _waited_s()
        exchange()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = max(1e-9, time.monotonic() - begun)
        rates.append(sent / took / 1e9)
        waited.append((_waited_s() - wait) / took if device.type == "cpu" else 0.0)
    shares = torch.tensor(waited, device=device)
    dist.all_reduce(shares, dist.ReduceOp.MAX)
    undisturbed = (rate for rate, share in zip(rates, shares.tolist(), strict=True) if share < _BUSY)
    return max(undisturbed, default=0.0)


def judged(
    rank: int, received: Sequence[torch.Tensor], expected: Callable[[int], torch.Tensor], rate: float
) -> Measurement:
    """Return whether the words that ``rank`` received from each rank, at ``rate``, are the expected ones."""
    for other, words in enumerate(received):
        unlike = int((words != expected(other)).sum())
        if unlike:
            return failed(f"{unlike} of {len(words)} words from rank {other} to rank {rank} are wrong")
    if not rate:
        load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
        return unknown(f"the node's CPUs were busy with other work ({load})", measured=False)
    return Measurement(value=f"{rate:.3g} GB/s", rate=round(rate, 4), kind=name_of(received[0].device))


def _waited_s() -> float:
    """Return how long the threads of this process have waited for a CPU, in seconds (proc_pid_schedstat)."""
    waited = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        try:
            waited += int(path.read_text().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # the thread has ended, or the kernel does not count
    return waited / 1e9
