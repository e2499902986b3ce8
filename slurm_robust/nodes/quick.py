"""The quick test: is a node fit for a training now? Takes seconds, as the job's user, with no training there.

It convicts nobody by silence and clears nobody by it: only a node that has passed everything has passed.
"""

from __future__ import annotations

import time

from slurm_robust.config.nodefile import load
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.check import Context
from slurm_robust.nodes.runner import inspect
from slurm_robust.nodes.verdict import conclude


def check_health(budget_s: float, host: Host = Host()) -> tuple[Outcome, str]:  # noqa: B008 - a path
    """All checks that a job's user can run on this node, once, and what is wrong."""
    config = load()
    report = inspect(config, Context.LIVE, host=host, memory=None, now=time.time(), budget_s=budget_s)
    found = conclude(report, config, {})
    if not found.fit:
        return Outcome.FAIL, found.reason
    return Outcome.PASS, f"{len(report.findings)} findings"
