"""The node's checks that the job's user can run, once: a part of the quick test."""

from __future__ import annotations

import time

from slurm_robust.config.nodefile import load
from slurm_robust.diagnostics.part import Measurement, TestPart
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.runner import inspect
from slurm_robust.nodes.verdict import conclude


def run(part: TestPart) -> Measurement:
    """See the module."""
    config = load()
    report = inspect(config, CheckContext.LIVE, memory=None, now=time.time(), budget_s=part.limit_s * 0.8)
    found = conclude(report, config, {})
    if not found.fit:
        return Measurement(outcome=Outcome.FAIL, text=found.reason)
    return Measurement(outcome=Outcome.PASS, text=f"{len(report.findings)} findings")
