"""A pytest plug-in: a test that fails is run once more with fresh fixtures, and named if it passes.

Real processes on a busy machine are late now and then, those of Slurm and our own; a defect fails in both
runs. ``-p no:tests.flaky`` leaves the second run out.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

import pytest
from _pytest.runner import runtestprotocol
from _pytest.terminal import TerminalReporter

RERUN = "rerun"
_AGAIN = pytest.StashKey[bool]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test. After a failure end all fixtures, hence all sandboxes, and run it once more."""
    if _AGAIN in item.stash:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    again = any(report.failed for report in reports) and not item.session.shouldstop
    if again:
        reports = [report for report in reports if report.failed]
        reports[-1].sections += _end_fixtures(item)
        for report in reports:
            report.outcome = RERUN  # type: ignore[assignment]  # pytest takes any word for one of its own
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    if again:
        item.stash[_AGAIN] = True
        # By way of the hook, so that pytest-timeout gives the second run its whole time.
        item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
    return True


def _end_fixtures(item: pytest.Item) -> list[tuple[str, str]]:
    """End the fixtures of all scopes; what went wrong, as sections of a report."""
    call = pytest.CallInfo.from_call(lambda: item.session._setupstate.teardown_exact(None), "teardown")
    return [("End of the fixtures", str(call.excinfo.getrepr()))] if call.excinfo else []


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, str] | None:
    """How a first run that failed is shown."""
    return (RERUN, "R", "RERUN") if report.outcome == RERUN else None


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: TerminalReporter) -> Generator[None]:
    """Why tests failed at first, and which of them are flaky, which is the last to be read."""
    reports: Mapping[str, list[pytest.TestReport]] = terminalreporter.stats
    reruns = reports.get(RERUN, [])
    if reruns:
        terminalreporter.section("first runs that failed")
        for report in reruns:
            terminalreporter.section(f"{report.nodeid} ({report.when})", sep="_")
            terminalreporter._outrep_summary(report)  # with what the test has added to its report
    yield
    failed = {report.nodeid for kind in ("failed", "error") for report in reports.get(kind, [])}
    flaky = dict.fromkeys(report.nodeid for report in reruns if report.nodeid not in failed)
    if flaky:
        terminalreporter.section(f"{len(flaky)} flaky", yellow=True)
    for name in flaky:
        terminalreporter.line(f"flaky: {name} (failed once, passed with fresh fixtures)", yellow=True)
