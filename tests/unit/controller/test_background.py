"""Work away from the loop: results come back to it, nothing waits for what hangs, threads are used again."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable

import pytest

from slurm_robust.controller.loop import Background

LIMIT_S = 20.0


def drained(background: Background, done: Callable[[], bool]) -> None:
    """Drain as the loop does, until ``done``."""
    while not done():
        readable, _, _ = select.select([background.fileno()], [], [], LIMIT_S)
        assert readable, "nothing came back"
        background.drain()


def unexpected(error: BaseException, trace: str) -> None:
    raise AssertionError("nothing fails here") from error


def test_results_are_called_in_the_loops_own_thread() -> None:
    background = Background()
    worked: list[str] = []
    told: list[str] = []

    def work() -> Callable[[], None]:
        worked.append(threading.current_thread().name)
        return lambda: told.append(threading.current_thread().name)

    background.run(work, unexpected)
    drained(background, lambda: bool(told))
    assert worked == ["srobust-background"]
    assert told == [threading.current_thread().name]


def test_work_that_hangs_holds_up_nothing_else() -> None:
    background = Background()
    release, begun = threading.Event(), threading.Event()
    told: list[str] = []

    def hang() -> Callable[[], None]:
        begun.set()
        release.wait(LIMIT_S)
        return lambda: told.append("late")

    background.run(hang, unexpected)
    assert begun.wait(LIMIT_S)
    for _ in range(3):
        background.run(lambda: lambda: told.append("soon"), unexpected)
    drained(background, lambda: len(told) == 3)
    assert told == ["soon"] * 3
    release.set()
    drained(background, lambda: len(told) == 4)
    assert told[-1] == "late"


def test_one_thread_does_what_comes_one_after_the_other() -> None:
    background = Background()
    idents: list[int] = []

    def work() -> Callable[[], None]:
        ident = threading.get_ident()
        return lambda: idents.append(ident)

    for number in range(1, 6):
        background.run(work, unexpected)
        drained(background, lambda number=number: len(idents) == number)
    assert len(set(idents)) == 1


@pytest.mark.parametrize("kind", [ValueError, SystemExit, KeyboardInterrupt, MemoryError])
def test_any_exception_of_the_work_is_reported_and_its_thread_goes_on(kind: type[BaseException]) -> None:
    background = Background()
    told: list[tuple[BaseException, str]] = []
    names: list[str] = []

    def fail() -> Callable[[], None]:
        raise kind("no")

    def work() -> Callable[[], None]:
        return lambda: names.append("done")

    background.run(fail, lambda error, trace: told.append((error, trace)))
    drained(background, lambda: bool(told))
    background.run(work, unexpected)
    drained(background, lambda: bool(names))
    ((error, trace),) = told
    assert type(error) is kind
    assert 'raise kind("no")' in trace
