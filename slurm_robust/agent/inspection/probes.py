"""The probes of a node, each at its own pace, so that none holds up another."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.agent.inspection.gpuevents import GpuEvents, findings_of
from slurm_robust.agent.inspection.observation import Observation, subject_of
from slurm_robust.agent.inspection.probe import ProbeRunner
from slurm_robust.config.nodefile import FILE
from slurm_robust.health.check import Probe
from slurm_robust.health.gpus.judging import SECOND_LOOK_S
from slurm_robust.health.gpus.presence import LOST
from slurm_robust.health.host import Host
from slurm_robust.health.isolate import call, directly
from slurm_robust.health.kernelevents import BEGINS
from slurm_robust.health.kmsg import KernelLog

if TYPE_CHECKING:
    from slurm_robust.model.job import InspectionSpec

Tell = Callable[[Observation], None]

# After this many probes in a row without an answer of the GPUs' driver it is asked less often. They take a
# minute: those that starting workers disturb do not count.
_PATIENCE = 6


def probes(spec: InspectionSpec, host: Host, file: Path = FILE) -> tuple[Callable[[Tell], None], ...]:
    """Functions that probe for ever, each for a process of its own. ``file`` is the node's configuration."""
    return (
        partial(follow_kernel, ProbeRunner(Probe.KERNEL, call, host, file), host, spec),
        partial(follow_gpus, ProbeRunner(Probe.GPU, directly, host, file), spec),
        partial(follow, ProbeRunner(Probe.NETWORK, call, host, file), spec.network_s, spec),
        partial(follow, ProbeRunner(Probe.NODE, call, host, file), spec.node_s, spec),
    )


def follow(probe: ProbeRunner, every_s: float, spec: InspectionSpec, tell: Tell) -> None:
    """Run ``probe`` every ``every_s`` seconds."""
    while True:
        begun = time.monotonic()
        observation = probe.run()
        tell(observation)
        # Hardware that is not there will hardly come.
        every = every_s if observation.well or observation.failed else max(every_s, spec.node_s)
        time.sleep(max(0.0, begun + every - time.monotonic()))


def follow_kernel(probe: ProbeRunner, host: Host, spec: InspectionSpec, tell: Tell) -> None:
    """Run ``probe`` when the kernel has logged something that a check knows, at most every ``kernel_s``."""
    news = KernelNews(host)
    while True:
        begun = time.monotonic()
        tell(probe.run())
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


def follow_gpus(probe: ProbeRunner, spec: InspectionSpec, tell: Tell) -> None:
    """Look again and again, and tell of the driver's events at once.

    The driver is opened once: opening it each time would take its locks for longer than all questions. So the
    process has no children, and a run that hangs costs a thread: then the driver is asked less often.
    """
    events = GpuEvents()
    poller = select.poll()
    poller.register(events.fileno(), select.POLLIN)
    silent = 0
    while True:
        begun = time.monotonic()
        observation = probe.run()
        tell(observation)
        silent = silent + 1 if _is_silent(observation) else 0
        due = begun + _until_next_s(spec, observation, silent)
        while (left := due - time.monotonic()) > 0:
            if not poller.poll(left * 1000 + 1):
                continue
            seen = events.read()
            if found := findings_of(seen):
                tell(probe.judged(found))
            if any(event.code == 0 for event in seen):
                break  # a GPU is lost, and only a run says which


def _until_next_s(spec: InspectionSpec, observation: Observation, silent: int) -> float:
    """``silent``: runs in a row without an answer. The second must come late enough to count."""
    if 0 < silent < _PATIENCE:
        return max(spec.gpu_s, SECOND_LOOK_S)
    is_there = silent == 0 and (observation.well or observation.failed)
    return spec.gpu_s if is_there else max(spec.gpu_s, spec.node_s)


def _is_silent(observation: Observation) -> bool:
    """Whether the driver has not answered."""
    return (LOST, "") in (*map(subject_of, observation.failed), *observation.unknown)
