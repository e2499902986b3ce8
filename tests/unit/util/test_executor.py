from __future__ import annotations

import select
import threading

import pytest

from slurm_robust.util.executor import SerialExecutor


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
        release.wait(30)
        return "late"

    executor.submit(hang)
    assert executor.results() == []
    executor.close(timeout_s=0.01)
    release.set()
