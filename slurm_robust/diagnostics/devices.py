"""Processors that programs compute on: each core and each GPU by itself. Imports torch."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from slurm_robust.diagnostics.part import Died, NotHere, TestPart, Wrong
from slurm_robust.util import isolate
from slurm_robust.util.process import die_with_parent


def gpus_of(part: TestPart) -> list[torch.device]:
    """Return the node's GPUs; [] if it should have none.

    Raises :class:`NotHere` if this PyTorch cannot use GPUs at all, and :class:`Wrong` if it sees fewer
    than there should be. Uses none of them.
    """
    if not part.gpus:
        return []
    if not can_use_gpus():
        raise NotHere(f"PyTorch {torch.__version__} is built without support of GPUs")
    seen = counted_in_child(torch.cuda.device_count, part.limit_s)
    if seen < part.gpus:
        raise Wrong(f"{seen} of {part.gpus} GPUs can be used")
    return [torch.device("cuda", index) for index in range(seen)]


def counted_in_child(count: Callable[[], int], limit_s: float) -> int:
    """Return what ``count`` returns, which may start the driver: with MIG, or without NVML, PyTorch does.

    No process that is forked later could use a GPU then. Raises :class:`Wrong` with what it raised, and
    :class:`Died` if it did not come to an end.
    """

    def task(parent: int = os.getpid()) -> bytes:
        die_with_parent(parent)
        return str(count()).encode()

    answer = isolate.call({"count": task}, {"count": limit_s}, limit_s + 1.0)["count"]
    if answer.value is not None:
        return int(answer.value)
    text = f"the GPUs cannot be counted: {answer.error}"
    raise Died(text) if answer.died or answer.hung or answer.is_cut else Wrong(text)


def can_use_gpus() -> bool:
    """Return whether this PyTorch was built for GPUs, whether or not there are any."""
    return torch.version.cuda is not None or torch.version.hip is not None


def each_core(until: float) -> Iterator[int]:
    """Yield the cores that this process may use, in any order, with the calling thread bound to each in turn.

    Ends when all had their turn or ``time.monotonic()`` is beyond ``until``, but not before the first. The
    binding is as before when it ends.
    """
    before = os.sched_getaffinity(0)
    try:
        # If there is no time for all, it should not always be the same ones that are left out.
        for index, core in enumerate(random.sample(sorted(before), len(before))):
            if index and time.monotonic() > until:
                return
            os.sched_setaffinity(0, {core})
            yield core
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on the CPU in the calling thread only, so that sums are always made in one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def name_of(device: torch.device) -> str:
    """Return the model of the processor, with what decides how this PyTorch computes on it."""
    if device.type == "cuda":
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        libraries = f"CUDA {torch.version.cuda or torch.version.hip}, cuDNN {cudnn}"
        return f"{torch.cuda.get_device_name(device)}, PyTorch {torch.__version__}, {libraries}"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{_cpu_model()} ({capability}), PyTorch {torch.__version__}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "cpu model", "CPU part"):
            return value.strip()
    return os.uname().machine
