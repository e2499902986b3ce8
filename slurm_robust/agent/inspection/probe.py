"""Checks one part of the node, with the checks of :mod:`slurm_robust.health`, as an ordinary user."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs

from slurm_robust.agent.inspection.observation import Observation, sort
from slurm_robust.config.errors import ConfigError
from slurm_robust.config.node import NodeConfig
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.health.check import Context, Probe
from slurm_robust.health.checks import ethernet, infiniband
from slurm_robust.health.host import Host
from slurm_robust.health.isolate import Answer
from slurm_robust.health.memory import ProcessMemory
from slurm_robust.health.registry import CHECKS
from slurm_robust.health.report import Report
from slurm_robust.health.runner import failing_runs, inspect
from slurm_robust.health.traffic import carried
from slurm_robust.health.verdict import conclude, rule_of
from slurm_robust.model.findings import Finding, Outcome

# A site may silence a check while a job of weeks runs.
_REREAD_S = 300.0
_BUDGET_S = 15.0
_KERNEL = "kernel."


class ProbeRunner:
    """Runs the checks of one probe, with a memory of its own.

    Checks of the site are left out: they are written for root, and one that lacks a permission would look
    like a fault of the node. ``calls`` gathers, see :func:`~slurm_robust.health.runner.inspect`.
    """

    def __init__(
        self,
        probe: Probe,
        calls: Callable[..., dict[str, Answer]],
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
            Context.LIVE,
            host=self._host,
            memory=self._memory,
            now=time.time(),
            budget_s=_BUDGET_S,
            job_gone=False,
            checks=self._checks,
            calls=self._calls,
        )
        conclusion = conclude(report, self._config, failing_runs(report, self._memory))
        observation = sort(
            report, conclusion, self._checks, filter(None, (self._problem, *_unread(report.findings)))
        )
        return structs.replace(observation, nbytes=self._carried(report))

    def _carried(self, report: Report) -> int | None:
        """By what this run has read; None for parts that are not the network."""
        sources = (infiniband.SOURCE, ethernet.SOURCE)
        samples = (self._memory.fresh(source, report.at, report.boot_id) for source in sources)
        ports, interfaces = (one.facts if one and one.at == report.at else None for one in samples)
        return carried(ports, interfaces, self._config.network)

    def judged(self, findings: Sequence[Finding]) -> Observation:
        """Findings from elsewhere (the driver's events), judged by the site's rules."""
        wanted = [found for found in findings if rule_of(self._config, found.check).enabled is not False]
        report = Report(node="", at=time.time(), boot_id="", context=Context.LIVE, findings=tuple(wanted))
        return sort(report, conclude(report, self._config, {}), CHECKS)

    def _read(self) -> NodeConfig:
        self._read_at = time.monotonic()
        try:
            self._problem = ""
            return load(self._file)
        except ConfigError as error:
            self._problem = f"inspection: default limits are used: {error}"
            return NodeConfig()


def _unread(findings: Sequence[Finding]) -> tuple[str, ...]:
    """Why the kernel's log cannot be read; mostly ordinary users may not."""
    silent = [f.text for f in findings if f.check.startswith(_KERNEL) and f.outcome is Outcome.UNKNOWN]
    return tuple(f"inspection: {text}" for text in dict.fromkeys(silent))
