"""The quick test: is a node fit for training now? What its parts say of each node. Pure.

Silence neither convicts a node nor clears it: only a node that has passed everything has passed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import TestResult
from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold

TESTS = ("health", "gemm", "memory")
"""Its parts, by their names as programs of the diagnostics."""


class QuickAnswer(Record):
    """What the quick test says of one node."""

    node: str
    outcome: Outcome
    """UNKNOWN if the node gave no answer, or not to everything."""
    text: str = ""


def quick_answers(nodes: Sequence[str], results: Iterable[TestResult]) -> tuple[QuickAnswer, ...]:
    """Judge what ``results`` of :data:`TESTS` say of each of ``nodes``. Pure."""
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


def format_quick(event: ev.QuickTested) -> str:
    """Return what became of each node, worst first."""
    parts = [f"{node} failed: {why}" for node, why in event.failed.items()]
    parts += [f"{node} gave no answer ({why}) and is not used" for node, why in event.silent.items()]
    parts += [f"{fold(event.passed)} passed and may be used"] if event.passed else []
    return f"{'; '.join(parts) or 'no node'} ({event.took_s:.1f} s)"
