"""A cluster test that fails shows what its jobs said: on another day it may not fail again."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.cluster.protected_job import MADE

LAST_CHARACTERS = 12_000
RECORD = "SROBUST_RECORD_JOURNALS"
"""A folder that gets the journal of each job of the tests that pass; CONTRIBUTING says what for."""


def record_jobs(folder: Path) -> None:
    """Copy what other releases must be able to read."""
    for job in MADE:
        for name in ("journal.jsonl", "job.json"):
            target = folder / str(job.id) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(job.folder / name, target)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the log of each job of this test to the report of its failure."""
    report = yield
    if report.failed:
        report.sections += [(f"log of job {job.id}", job.log[-LAST_CHARACTERS:]) for job in MADE]
    if call.when == "call" and report.passed and (folder := os.environ.get(RECORD)):
        record_jobs(Path(folder) / item.name)
    if call.when == "teardown":
        MADE.clear()
    return report
