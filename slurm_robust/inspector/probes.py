"""The probes of a node, each at its own pace, so that none holds up another."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from slurm_robust.config.errors import ConfigError
from slurm_robust.config.node import NetworkLimits, NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.inspector.gpuevents import GpuEvents, findings_of
from slurm_robust.inspector.observation import Observation, sort, subject_of
from slurm_robust.kernel.events import BEGINS
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import KernelLog
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.nodes.check import CheckContext, Probe
from slurm_robust.nodes.checks import ethernet, infiniband
from slurm_robust.nodes.checks.ethernet import EthernetFacts
from slurm_robust.nodes.checks.infiniband import InfinibandFacts
from slurm_robust.nodes.gpus.judging import CONFIRM_AFTER_S
from slurm_robust.nodes.gpus.presence import LOST
from slurm_robust.nodes.memory import ProcessMemory
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.runner import failing_runs, inspect
from slurm_robust.nodes.verdict import Report, conclude, rule_of
from slurm_robust.util.isolate import CallResult, call, directly

if TYPE_CHECKING:
    from slurm_robust.model.job import InspectionSpec

Send = Callable[[Observation], None]

# After this many probes in a row without an answer of the GPUs' driver it is asked less often. They take a
# minute: those that starting workers disturb do not count.
_PATIENCE = 6

# A site may silence a check while a job of weeks runs.
_REREAD_S = 300.0
_BUDGET_S = 15.0


def probes(spec: InspectionSpec, host: Host, file: Path = FILE) -> tuple[Callable[[Send], None], ...]:
    """Return functions that probe for ever, each for its own process. ``file``: the node's configuration."""
    return (
        partial(follow_kernel, ProbeRunner(Probe.KERNEL, call, host, file), host, spec),
        partial(follow_gpus, ProbeRunner(Probe.GPU, directly, host, file), spec),
        partial(follow, ProbeRunner(Probe.NETWORK, call, host, file), spec.network_s, spec),
        partial(follow, ProbeRunner(Probe.NODE, call, host, file), spec.node_s, spec),
    )


class ProbeRunner:
    """Runs the checks of one probe, with a memory of its own.

    Checks of the site are left out: they are written for root, and one that lacks a permission would look
    like a fault of the node. ``calls`` gathers, see :func:`~slurm_robust.nodes.runner.inspect`.
    """

    def __init__(
        self,
        probe: Probe,
        calls: Callable[..., dict[str, CallResult]],
        host: Host,
        file: Path = FILE,
    ) -> None:
        self._checks = tuple(check for check in CHECKS if check.probe is probe)
        self._calls = calls
        self._host = host
        self._file = file
        self._problem = ""
        self._config = self._read()
        self._memory = ProcessMemory(Path(self._config.paths.state))

    def run(self) -> Observation:
        """Run the checks now. Takes as long as the slowest source of these checks."""
        if time.monotonic() - self._read_at > _REREAD_S:
            self._config = self._read()
        report = inspect(
            self._config,
            CheckContext.LIVE,
            host=self._host,
            memory=self._memory,
            now=time.time(),
            budget_s=_BUDGET_S,
            job_gone=False,
            checks=self._checks,
            calls=self._calls,
        )
        report = conclude(report, self._config, failing_runs(report, self._memory))
        observation = sort(report, self._checks, filter(None, (self._problem, *_unread(report.findings))))
        return structs.replace(observation, nbytes=self._carried(report))

    def _carried(self, report: Report) -> int | None:
        """Return the bytes by what this run has read; None for parts that are not the network."""
        sources = (infiniband.SOURCE, ethernet.SOURCE)
        samples = (self._memory.fresh(source, report.at, report.boot_id) for source in sources)
        ports, interfaces = (one.facts if one and one.at == report.at else None for one in samples)
        return carried(ports, interfaces, self._config.network)

    def judged(self, findings: Sequence[Finding]) -> Observation:
        """Return the findings from elsewhere (the driver's events), judged by the site's rules."""
        wanted = [found for found in findings if rule_of(self._config, found.check).enabled is not False]
        report = Report(at=time.time(), context=CheckContext.LIVE, findings=tuple(wanted))
        return sort(conclude(report, self._config, {}), CHECKS)

    def _read(self) -> NodeConfig:
        self._read_at = time.monotonic()
        try:
            self._problem = ""
            return load(self._file)
        except ConfigError as error:
            self._problem = f"inspection: default limits are used: {error}"
            return NodeConfig()


def _unread(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Return why the kernel's log cannot be read; mostly ordinary users may not."""
    silent = [f.text for f in findings if f.check.startswith("kernel.") and f.outcome is Outcome.UNKNOWN]
    return tuple(f"inspection: {text}" for text in dict.fromkeys(silent))


def carried(
    infiniband: InfinibandFacts | None, ethernet: EthernetFacts | None, limits: NetworkLimits
) -> int | None:
    """Return the bytes that the links for training have carried since they count; None if nothing tells.

    These are the InfiniBand and RoCE ports (those of ``network.infiniband``, else all), and the Ethernet
    interfaces of ``network.ethernet``: any other may be the management network.
    """
    ports = infiniband.ports if infiniband else {}
    interfaces = ethernet.interfaces if ethernet else {}
    counts = [
        port.nbytes for name, port in ports.items() if name in limits.infiniband or not limits.infiniband
    ]
    counts += [interface.nbytes for name, interface in interfaces.items() if name in limits.ethernet]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def follow(probe: ProbeRunner, every_s: float, spec: InspectionSpec, send: Send) -> None:
    """Run ``probe`` every ``every_s`` seconds."""
    while True:
        begun = time.monotonic()
        observation = probe.run()
        send(observation)
        # Hardware that is not there will hardly come.
        every = every_s if observation.well or observation.failed else max(every_s, spec.node_s)
        time.sleep(max(0.0, begun + every - time.monotonic()))


def follow_kernel(probe: ProbeRunner, host: Host, spec: InspectionSpec, send: Send) -> None:
    """Run ``probe`` when the kernel has logged something that a check knows, at most every ``kernel_s``."""
    news = KernelNews(host)
    while True:
        begun = time.monotonic()
        send(probe.run())
        said = False
        while (since := time.monotonic() - begun) < spec.node_s and not (said and since >= spec.kernel_s):
            time.sleep(spec.kernel_s / 2)
            said = news.came() or said


class KernelNews:
    """What the kernel says from now on; never anything if its log cannot be read."""

    def __init__(self, host: Host) -> None:
        try:
            self._log: KernelLog | None = KernelLog(host)
        except OSError:
            self._log = None  # the check tells of it
        self.came()

    def came(self) -> bool:
        """Return whether there is anything new that a check knows."""
        try:
            return self._log is not None and bool(self._log.read(BEGINS))
        except OSError:
            return False


def follow_gpus(probe: ProbeRunner, spec: InspectionSpec, send: Send) -> None:
    """Run ``probe`` every ``gpu_s``, and send the driver's events immediately.

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
        send(observation)
        silent = silent + 1 if _is_silent(observation) else 0
        due = begun + _until_next_s(spec, observation, silent)
        while (left := due - time.monotonic()) > 0:
            if not poller.poll(left * 1000 + 1):
                continue
            seen, unheard = events.read()
            if unheard:
                send(Observation(notes=tuple(unheard)))
            if found := findings_of(seen):
                send(probe.judged(found))
            if any(event.code == 0 for event in seen):
                break  # a GPU is lost, and only a run says which


def _until_next_s(spec: InspectionSpec, observation: Observation, silent: int) -> float:
    """Return the pause. ``silent``: runs in a row without an answer. The second must be late enough."""
    if 0 < silent < _PATIENCE:
        return max(spec.gpu_s, CONFIRM_AFTER_S)
    is_there = silent == 0 and (observation.well or observation.failed)
    return spec.gpu_s if is_there else max(spec.gpu_s, spec.node_s)


def _is_silent(observation: Observation) -> bool:
    """Return whether the driver has not answered."""
    return (LOST, "") in (*map(subject_of, observation.failed), *observation.unknown)
