from __future__ import annotations

import resource
import select
import threading
import time

import pytest

from slurm_robust.util.threads import BackgroundCall, Executor, map_until, start_thread
from tests.users import NOBODY, as_root, run_as


def collect(executor: Executor[str], count: int) -> list[str]:
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
    executor: Executor[str] = Executor("test")

    def fail() -> str:
        raise kind("the server is gone")

    executor.submit(lambda: "a")
    executor.submit(fail)
    executor.submit(lambda: "b")
    assert collect(executor, 2) == ["a", "b"]
    executor.close()
    assert (f"{kind.__name__}: the server is gone" in capsys.readouterr().err) == is_printed


def test_work_that_hangs_holds_up_nobody() -> None:
    executor: Executor[str] = Executor("test")
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

    found = map_until(time.monotonic() + 20, job, [1, 2, 3], otherwise=late)
    assert found == ("1 is done", "2 is done", "3 is done")


def test_what_hangs_is_not_waited_for_and_holds_nobody_up() -> None:
    never = threading.Event()

    def job(thing: int) -> str:
        if thing == 0:
            never.wait()
        return f"{thing} is done"

    began = time.monotonic()
    found = map_until(began + 0.2, job, range(100), otherwise=late)
    assert 0.2 <= time.monotonic() - began < 60
    assert found == ("0 is late", *(f"{thing} is done" for thing in range(1, 100)))
    never.set()


def test_nothing_is_begun_after_the_deadline() -> None:
    begun: list[int] = []
    assert map_until(time.monotonic(), begun.append, [1], otherwise=lambda _: None) == (None,)
    assert begun == []


def test_nothing_to_do_takes_no_time() -> None:
    assert map_until(0.0, late, [], otherwise=late) == ()


@as_root
def test_no_more_threads_means_no_results_but_no_error() -> None:
    def without_threads() -> tuple[str, ...]:
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        return map_until(time.monotonic() + 60, str, [1, 2], otherwise=lambda thing: "not done")

    assert run_as(NOBODY, without_threads) == "('not done', 'not done')"


def test_a_call_gives_its_result_or_raises_its_error() -> None:
    assert BackgroundCall("test", lambda: threading.current_thread().name).result(60) == "srobust-test"

    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        BackgroundCall("test", fail).result(60)


def test_a_call_that_hangs_is_waited_for_no_longer_than_asked() -> None:
    release = threading.Event()
    call = BackgroundCall("test", lambda: release.wait(60))
    with pytest.raises(TimeoutError):
        call.result(0.01)
    assert not call.done
    assert not call.wait(0.0)
    release.set()
    assert call.wait(60)
    assert call.done
    assert call.result(0.0)


def test_what_a_thread_raises_goes_to_its_handler() -> None:
    failed: list[BaseException] = []

    def fail() -> None:
        raise SystemExit(3)

    thread = start_thread("test", fail, failed.append)
    thread.join(60)
    assert thread.daemon
    assert [type(error) for error in failed] == [SystemExit]
