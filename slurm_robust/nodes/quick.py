"""The quick test: is a node fit for a training now? Takes seconds, as the job's user, with no training there.

It convicts nobody by silence and clears nobody by it: only a node that has passed everything has passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from slurm_robust.config.nodefile import load
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import Context
from slurm_robust.nodes.runner import inspect
from slurm_robust.nodes.verdict import conclude

TESTS = ("health", "gemm", "memory")
"""Its parts, by their names as programs of the diagnostics; ``health`` is :func:`check_health`."""


class QuickAnswer(Record):
    """What the quick test says of one node."""

    node: str
    outcome: Outcome
    """UNKNOWN where the node gave no answer, or not to everything."""
    text: str = ""


def check_health(budget_s: float, host: Host = Host()) -> tuple[Outcome, str]:  # noqa: B008 - a path
    """All checks that a job's user can run on this node, once, and what is wrong."""
    config = load()
    report = inspect(config, Context.LIVE, host=host, memory=None, now=time.time(), budget_s=budget_s)
    found = conclude(report, config, {})
    if not found.fit:
        return Outcome.FAIL, found.reason
    return Outcome.PASS, f"{len(report.findings)} findings"


def quick_answers(nodes: Sequence[str], results: Iterable[TestResult]) -> tuple[QuickAnswer, ...]:
    """What ``results`` of :data:`TESTS` say of each of ``nodes``. Pure."""
    results = tuple(results)
    return tuple(_answer(node, [result for result in results if result.node == node]) for node in nodes)


def _answer(node: str, results: Sequence[TestResult]) -> QuickAnswer:
    failed = [r for r in results if r.outcome is Outcome.FAIL]
    if failed:
        text = "; ".join(f"{r.test}: {r.text}" for r in failed)
        return QuickAnswer(node=node, outcome=Outcome.FAIL, text=text)
    passed = {r.test for r in results if r.outcome is Outcome.PASS}
    if missing := [test for test in TESTS if test not in passed]:
        said = {r.test: r.text for r in results}
        text = "; ".join(f"{test}: {said.get(test) or 'no answer'}" for test in missing)
        return QuickAnswer(node=node, outcome=Outcome.UNKNOWN, text=text)
    return QuickAnswer(node=node, outcome=Outcome.PASS, text=f"passed {', '.join(TESTS)}")
