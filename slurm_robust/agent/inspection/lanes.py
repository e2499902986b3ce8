"""The parts of the node that are looked at, each at its own pace, so that none holds up another."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.agent.inspection.gpuevents import GpuEvents, findings_of
from slurm_robust.agent.inspection.looked import Looked, subject_of
from slurm_robust.agent.inspection.looker import Looker
from slurm_robust.config.nodefile import FILE
from slurm_robust.health.gpus.judging import SECOND_LOOK_S
from slurm_robust.health.gpus.presence import LOST
from slurm_robust.health.host import Host
from slurm_robust.health.isolate import call, directly
from slurm_robust.health.kernelevents import BEGINS
from slurm_robust.health.kmsg import KernelLog

if TYPE_CHECKING:
    from slurm_robust.model.job import InspectionSpec

Tell = Callable[[Looked], None]

# Looks in a row without an answer of the GPUs' driver, after which it is asked less often. A minute of them:
# those that workers disturb by their start do not count.
_PATIENCE = 6

# Not how many GPUs or how much memory the node has, nor which: a job may see its own share only.
KERNEL = ("kernel.*",)
GPU = (
    *("gpu.lost", "gpu.ecc", "gpu.remap", "gpu.retired_pages", "gpu.recovery", "gpu.nvlink", "gpu.pcie"),
    *("gpu.throttle", "gpu.temperature", "gpu.clocks"),
)
NETWORK = ("infiniband.*", "ethernet.*")
NODE = ("mounts.*", "disks.*", "memory.ecc", "memory.pressure", "processes.d_state", "clock.*")


def lanes(spec: InspectionSpec, host: Host, file: Path = FILE) -> tuple[Callable[[Tell], None], ...]:
    """Each for a process of its own; none returns. ``file`` is the node's configuration."""
    return (
        partial(follow_kernel, Looker(KERNEL, call, host, file), host, spec),
        partial(follow_gpus, Looker(GPU, directly, host, file), spec),
        partial(follow, Looker(NETWORK, call, host, file), spec.network_s, spec),
        partial(follow, Looker(NODE, call, host, file), spec.node_s, spec),
    )


def follow(looker: Looker, every_s: float, spec: InspectionSpec, tell: Tell) -> None:
    """Look again and again."""
    while True:
        begun = time.monotonic()
        looked = looker.look()
        tell(looked)
        # Hardware that is not there will hardly come.
        every = every_s if looked.well or looked.failed else max(every_s, spec.node_s)
        time.sleep(max(0.0, begun + every - time.monotonic()))


def follow_kernel(looker: Looker, host: Host, spec: InspectionSpec, tell: Tell) -> None:
    """Look when the kernel has said something that a check knows, but not all the time."""
    news = KernelNews(host)
    while True:
        begun = time.monotonic()
        tell(looker.look())
        said = False
        while (since := time.monotonic() - begun) < spec.node_s and not (said and since >= spec.kernel_s):
            time.sleep(spec.kernel_s / 2)
            said = news.came() or said


class KernelNews:
    """What the kernel says from now on; never anything where its log cannot be read."""

    def __init__(self, host: Host) -> None:
        try:
            self._log: KernelLog | None = KernelLog(host)
        except OSError:
            self._log = None  # the check tells of it
        self.came()

    def came(self) -> bool:
        """Whether there is anything new that a check knows."""
        try:
            return self._log is not None and bool(self._log.read(BEGINS))
        except OSError:
            return False


def follow_gpus(looker: Looker, spec: InspectionSpec, tell: Tell) -> None:
    """Look again and again, and tell of the driver's events at once.

    The driver is opened once and not for each look, which would take its locks for longer than all questions.
    So the process has no children, and a look that hangs costs a thread: then the driver is asked less often.
    """
    events = GpuEvents()
    poller = select.poll()
    poller.register(events.fileno(), select.POLLIN)
    silent = 0
    while True:
        begun = time.monotonic()
        looked = looker.look()
        tell(looked)
        silent = silent + 1 if _is_silent(looked) else 0
        due = begun + _until_next_s(spec, looked, silent)
        while (left := due - time.monotonic()) > 0:
            if not poller.poll(left * 1000 + 1):
                continue
            seen = events.read()
            if found := findings_of(seen):
                tell(looker.judged(found))
            if any(event.code == 0 for event in seen):
                break  # a GPU is lost, and only a look says which


def _until_next_s(spec: InspectionSpec, looked: Looked, silent: int) -> float:
    """``silent``: looks in a row without an answer. A second one must come as late as it takes to count."""
    if 0 < silent < _PATIENCE:
        return max(spec.gpu_s, SECOND_LOOK_S)
    is_there = silent == 0 and (looked.well or looked.failed)
    return spec.gpu_s if is_there else max(spec.gpu_s, spec.node_s)


def _is_silent(looked: Looked) -> bool:
    """Whether the driver has not answered."""
    return (LOST, "") in (*map(subject_of, looked.failed), *looked.unknown)
