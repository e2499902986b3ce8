"""Whatever a check reads hangs: the run keeps its budget, and nothing that was not read has passed."""

from __future__ import annotations

import signal
import time
from typing import NoReturn

import msgspec
import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome
from slurm_robust.nodes.check import AnyCheck, CheckContext
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.nodes.runner import inspect
from slurm_robust.nodes.verdict import Report

SOURCES = sorted({check.source.name for check in CHECKS})


def hang(host: Host, config: NodeConfig) -> NoReturn:
    while True:
        signal.pause()


def hanging(*sources: str, **limits: float) -> list[AnyCheck]:
    """The checks of these sources, none of which ends."""
    return [
        msgspec.structs.replace(check, source=msgspec.structs.replace(check.source, gather=hang, **limits))
        for check in CHECKS
        if check.source.name in sources
    ]


def run(checks: list[AnyCheck], budget_s: float) -> Report:
    return inspect(
        NodeConfig(), CheckContext.DEEP, memory=None, now=1e9, budget_s=budget_s, job_gone=True, checks=checks
    )


@pytest.mark.parametrize("source", SOURCES)
def test_the_budget_is_kept_whichever_source_hangs(source: str) -> None:
    begun = time.monotonic()
    report = run(hanging(source), 0.2)
    assert time.monotonic() - begun < 60.0
    assert {found.outcome for found in report.findings} == {Outcome.UNKNOWN}
    assert set(report.left_out) == {found.check for found in report.findings}


def test_no_source_that_does_not_end_keeps_jobs_away_by_that_alone() -> None:
    """Storage from which modules come late, or a node that is busy, holds up any of them."""
    report = run(hanging(*SOURCES, timeout_s=0.1), 60.0)
    assert not report.left_out
    assert [found for found in report.findings if found.suggestion.keeps_jobs_away] == []


@pytest.mark.slow
def test_the_budget_is_kept_when_all_hang() -> None:
    begun = time.monotonic()
    report = run(hanging(*SOURCES), 1.0)
    assert time.monotonic() - begun < 60.0
    assert len(report.findings) == len(
        {check.name for check in CHECKS if CheckContext.DEEP in check.contexts}
    )
    assert {found.outcome for found in report.findings} == {Outcome.UNKNOWN}
