"""A real training of gloo ranks that hang in every way at once: each is found, and all go on afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import pytest

from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.model.stacks import ProcessKind, RankStacks
from slurm_robust.worker.spawning import Exited
from tests.unit.agent.stacks.handler_programs import state_of
from tests.unit.agent.stacks.hanging_workers import (
    NAMES_LOADERS,
    RECORDS_GLOO,
    WITHOUT_CAPABILITIES,
    Training,
    functions,
    process,
    take_as,
    take_as_nobody,
)
from tests.users import as_root
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

WAYS = ("in_collective", "in_c", "in_lock", "in_loader", "stopped")
COLLECTIVE, C, LOCK, LOADER, STOPPED = range(len(WAYS))
BUDGET_S = 30.0


class Captured(NamedTuple):
    """What was seen of the hung training, and what became of it."""

    by_pyspy: tuple[RankStacks, ...]
    by_signal: tuple[RankStacks, ...]
    by_nobody: tuple[RankStacks, ...]
    native: tuple[RankStacks, ...]
    took_s: float
    states: tuple[str, ...]
    exited: dict[int, Exited]
    output: tuple[str, ...]
    errors: tuple[str, ...]


@pytest.fixture(scope="module")
def captured() -> Iterator[Captured]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with closing(Training(WAYS, port)) as training:
        yield capture(training)


def capture(training: Training) -> Captured:
    wait_for(lambda: all(is_there(stacks) for stacks in take(training)), 60, "all ranks hang")
    began = time.monotonic()
    by_pyspy = take(training)
    took_s = time.monotonic() - began
    native = wait_for(lambda: take_native(training), 90, "py-spy has looked up the names in time")
    is_root = os.getuid() == 0
    by_signal = take_as(WITHOUT_CAPABILITIES, training, BUDGET_S) if is_root else ()
    by_nobody = take_as_nobody(training, BUDGET_S) if is_root else ()
    states = tuple(state_of(pid) for pid in training.pids.values())
    os.kill(training.pids[STOPPED], signal.SIGCONT)
    exited = training.release()
    output, errors = (
        tuple(training.output(rank, stream) for rank in training.pids) for stream in ("out", "err")
    )
    return Captured(by_pyspy, by_signal, by_nobody, native, took_s, states, exited, output, errors)


def take(training: Training) -> tuple[RankStacks, ...]:
    return StackTaker().take(training.pids, node="n1", budget_s=BUDGET_S)


def take_native(training: Training) -> tuple[RankStacks, ...]:
    """Of two ranks; nothing as long as only the calls of the interpreter are there."""
    workers = {rank: training.pids[rank] for rank in (COLLECTIVE, STOPPED)}
    taken = StackTaker().take(workers, node="n1", budget_s=2 * BUDGET_S, native=workers)
    return taken if functions(process(taken[0]))[0] != "all_reduce" else ()


def is_there(stacks: RankStacks) -> bool:
    """Whether the rank has come to its place."""
    calls = functions(process(stacks))
    if stacks.rank == COLLECTIVE:
        return "all_reduce" in calls and (
            not RECORDS_GLOO or any(c.sequence == 2 for c in stacks.collectives)
        )
    if stacks.rank == STOPPED:
        return process(stacks).state == "T"
    if stacks.rank == LOADER:
        return any("pass_gate" in functions(p) for p in stacks.processes if p.kind is ProcessKind.LOADER)
    return WAYS[stacks.rank] in calls


def check_places(stacks: tuple[RankStacks, ...]) -> None:
    """The places that both ways to look must show."""
    assert [s.rank for s in stacks] == list(range(len(WAYS)))
    assert functions(process(stacks[COLLECTIVE]))[0] == "all_reduce"
    assert functions(process(stacks[C]))[:2] == ["in_c", "<module>"]
    assert functions(process(stacks[LOCK]))[:2] == ["in_lock", "<module>"]
    other = next(t for t in process(stacks[LOCK]).threads if not t.is_main)
    assert other.frames[0].function == "pass_gate"
    frame = next(t for t in process(stacks[C]).threads if t.is_main).frames[0]
    assert frame.file.endswith("tests/unit/agent/stacks/hanging_training.py")
    assert frame.line > 0


def check_loader(stacks: tuple[RankStacks, ...]) -> None:
    assert functions(process(stacks[LOADER], ProcessKind.LOADER))[:2] == ["pass_gate", "__getitem__"]


def check_collectives(stacks: tuple[RankStacks, ...]) -> None:
    """Whoever has skipped the second collective is behind, also while it holds the interpreter."""
    newest = {s.rank: (s.collectives[0].sequence, s.collectives[0].state) for s in stacks if s.collectives}
    done = (1, "completed")
    expected = {COLLECTIVE: (2, "scheduled"), C: done, LOCK: done, LOADER: done}
    assert newest == (expected if RECORDS_GLOO else {})
    assert {c.operation for s in stacks for c in s.collectives} <= {"gloo:all_reduce"}


def test_pyspy_finds_each_place(captured: Captured) -> None:
    check_places(captured.by_pyspy)
    check_loader(captured.by_pyspy)
    assert {(s.source, s.node) for s in captured.by_pyspy} == {("py-spy", "n1")}


def test_pyspy_reads_a_stopped_worker(captured: Captured) -> None:
    stopped = process(captured.by_pyspy[STOPPED])
    assert (stopped.state, functions(stopped)[0]) == ("T", "stopped")


def test_the_flight_recorder_answers_whoever_holds_the_interpreter(captured: Captured) -> None:
    check_collectives(captured.by_pyspy)


def test_pyspy_takes_much_less_than_its_budget(captured: Captured) -> None:
    assert max(s.took_s for s in captured.by_pyspy) <= captured.took_s < BUDGET_S / 2


def test_native_frames_show_what_waits_below_python(captured: Captured) -> None:
    in_collective, stopped = (process(stacks) for stacks in captured.native)
    calls = functions(in_collective)
    assert "c10d::Work::wait" in calls[: calls.index("all_reduce")]
    assert (stopped.state, functions(stopped)[0]) == ("T", "stopped")


@as_root
def test_where_tracing_is_forbidden_the_handlers_tell(captured: Captured) -> None:
    check_places(captured.by_signal)
    if multiprocessing.get_start_method() == "fork":
        check_loader(captured.by_signal)
    else:  # from Python 3.14 on a loader is no fork of its worker
        assert "it has no handler" in process(captured.by_signal[LOADER], ProcessKind.LOADER).error
    check_collectives(captured.by_signal)
    sources = {s.rank: s.source for s in captured.by_signal}
    assert sources == {COLLECTIVE: "signal", C: "signal", LOCK: "signal", LOADER: "signal", STOPPED: ""}


@as_root
def test_a_stopped_worker_is_not_asked_but_known(captured: Captured) -> None:
    stopped = process(captured.by_signal[STOPPED])
    assert (stopped.state, stopped.threads) == ("T", ())
    assert "Permission denied" in stopped.error


@as_root
def test_who_may_nothing_says_so(captured: Captured) -> None:
    assert {s.source for s in captured.by_nobody} == {""}
    loaders = [p.state for p in captured.by_nobody[LOADER].processes if p.kind is ProcessKind.LOADER]
    assert loaders == (["S"] if NAMES_LOADERS else [])  # a nameless one is known by its stack alone
    assert all(p.error for s in captured.by_nobody for p in s.processes)


def test_nobody_was_stopped_or_continued_and_all_go_on(captured: Captured) -> None:
    assert captured.states == ("S", "S", "S", "S", "T")
    assert {rank: exited.code for rank, exited in captured.exited.items()} == dict.fromkeys(range(5), 0)
    assert captured.output == ("done\n",) * 5
    assert captured.errors == ("",) * 5
