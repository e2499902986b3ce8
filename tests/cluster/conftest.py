"""A cluster test that fails shows what its jobs said: on another day it may not fail again."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.cluster.protected_job import MADE

LAST_CHARACTERS = 12_000


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the log of each job of this test to the report of its failure."""
    report = yield
    if report.failed:
        report.sections += [(f"log of job {job.id}", job.log[-LAST_CHARACTERS:]) for job in MADE]
    if call.when == "teardown":
        MADE.clear()
    return report
