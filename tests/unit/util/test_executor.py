from __future__ import annotations

import os
import resource
import select
import threading
import time

import pytest

from slurm_robust.util.executor import SerialExecutor, together
from tests.users import NOBODY, run_as


def collect(executor: SerialExecutor[str], count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        assert select.select([executor.fileno()], [], [], 10)[0]
        found.extend(executor.results())
    return found


@pytest.mark.parametrize(
    ("kind", "is_printed"), [(OSError, False), (ValueError, True), (MemoryError, True), (SystemExit, True)]
)
def test_results_come_in_order_and_failures_are_dropped(
    kind: type[BaseException], is_printed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    executor: SerialExecutor[str] = SerialExecutor("test")

    def fail() -> str:
        raise kind("the server is gone")

    executor.submit(lambda: "a")
    executor.submit(fail)
    executor.submit(lambda: "b")
    assert collect(executor, 2) == ["a", "b"]
    executor.close()
    assert (f"{kind.__name__}: the server is gone" in capsys.readouterr().err) == is_printed


def test_work_that_hangs_holds_up_nobody() -> None:
    executor: SerialExecutor[str] = SerialExecutor("test")
    release = threading.Event()

    def hang() -> str:
        release.wait(60)
        return "late"

    executor.submit(hang)
    assert executor.results() == []
    executor.close(timeout_s=0.01)
    release.set()


def late(thing: int) -> str:
    return f"{thing} is late"


def test_results_are_in_order_whoever_is_first() -> None:
    last_done = threading.Event()

    def job(thing: int) -> str:
        if thing == 3:
            last_done.set()
        else:
            assert last_done.wait(60)
        return f"{thing} is done"

    found = together(job, [1, 2, 3], deadline=time.monotonic() + 20, otherwise=late)
    assert found == ("1 is done", "2 is done", "3 is done")


def test_what_hangs_is_not_waited_for_and_holds_nobody_up() -> None:
    never = threading.Event()

    def job(thing: int) -> str:
        if thing == 0:
            never.wait()
        return f"{thing} is done"

    began = time.monotonic()
    found = together(job, range(100), deadline=began + 0.2, otherwise=late)
    assert 0.2 <= time.monotonic() - began < 60
    assert found == ("0 is late", *(f"{thing} is done" for thing in range(1, 100)))
    never.set()


def test_nothing_is_begun_after_the_deadline() -> None:
    begun: list[int] = []
    assert together(begun.append, [1], deadline=time.monotonic(), otherwise=lambda _: None) == (None,)
    assert begun == []


def test_nothing_to_do_takes_no_time() -> None:
    assert together(late, [], deadline=0.0, otherwise=late) == ()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without processes")
def test_no_more_threads_means_no_results_but_no_error() -> None:
    def without_threads() -> tuple[str, ...]:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return together(str, [1, 2], deadline=time.monotonic() + 60, otherwise=lambda thing: "not done")

    assert run_as(NOBODY, without_threads) == "('not done', 'not done')"
