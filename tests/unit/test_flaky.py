"""A test that fails is run once more with fresh fixtures; the plug-in is ``tests/flaky.py``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., pytest.RunResult]

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

FIXTURES = """
import itertools, pytest
sandboxes = itertools.count(1)

@pytest.fixture(scope="session")
def pool():
    number = next(sandboxes)
    yield number
    print(f"sandbox {number} is down")

@pytest.fixture(scope="module")
def sandbox(pool):
    return pool
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the body of a test module with the plug-in, in a pytest of its own."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeini("[pytest]\nmarkers = cluster: uses a sandbox\n")
    pytester.makeconftest(FIXTURES)

    def run(body: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import pytest\n\n{body}")
        return pytester.runpytest_subprocess("-p", "tests.flaky", "-p", "no:cacheprovider", *options)

    return run


FLAKY = """
@pytest.mark.cluster
def test_before(sandbox):
    assert sandbox == 1

@pytest.mark.cluster
def test_late(sandbox):
    assert sandbox == 2, "slurmctld was late"

@pytest.mark.cluster
def test_behind(sandbox):
    assert sandbox == 2
"""


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["here", "xdist"])
def test_what_passes_in_a_fresh_sandbox_is_named_and_the_run_is_green(
    run: Run, workers: tuple[str, ...]
) -> None:
    result = run(FLAKY, *workers)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 3, "rerun": 1}
    result.stdout.fnmatch_lines(
        ["E*slurmctld was late*", "flaky: *::test_late (failed once, passed with fresh fixtures)"]
    )


def test_what_fails_in_a_fresh_sandbox_too_is_a_failure(run: Run) -> None:
    result = run("@pytest.mark.cluster\ndef test_broken(sandbox):\n    assert not sandbox\n")
    assert result.ret == 1
    assert result.parseoutcomes() == {"failed": 1, "rerun": 1}
    result.stdout.no_fnmatch_line("flaky: *")


def test_a_sandbox_that_does_not_boot_is_tried_again(run: Run) -> None:
    body = """
@pytest.fixture
def usual(sandbox):
    assert sandbox == 2, "does not boot"

@pytest.mark.cluster
def test_usual(usual):
    pass
"""
    result = run(body)
    assert result.ret == 0
    assert result.parseoutcomes() == {"passed": 1, "rerun": 1}


def test_each_run_has_the_whole_time(run: Run) -> None:
    body = """
import threading
@pytest.mark.cluster
@pytest.mark.timeout(0.5)
def test_hangs(sandbox):
    threading.Event().wait(60)
"""
    result = run(body)
    assert result.ret == 1
    assert result.parseoutcomes() == {"failed": 1, "rerun": 1}
    assert result.duration < 30


def test_a_test_without_a_sandbox_has_a_second_run_too(run: Run) -> None:
    body = """
runs = itertools.count(1)

def test_late():
    assert next(runs) == 2, "a thread was late"

def test_broken():
    assert False
"""
    result = run(f"import itertools\n{body}")
    assert result.ret == 1
    assert result.parseoutcomes() == {"passed": 1, "failed": 1, "rerun": 2}
    result.stdout.fnmatch_lines(["flaky: *::test_late (failed once, passed with fresh fixtures)"])
    result.stdout.no_fnmatch_line("flaky: *::test_broken *")
