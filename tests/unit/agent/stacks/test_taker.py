"""What a taker does about processes that are not there, not Python, or not to be read."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.model.stacks import ProcessKind, RankStacks
from slurm_robust.util.proc import descendants, process_table, read_process
from tests.unit.agent.stacks.handler_programs import HANG, PREPARE, program, state_of
from tests.unit.agent.stacks.hanging_workers import functions, process
from tests.waiting import wait_for

BUDGET_S = 30.0

# A parent waits in the kernel for a child of vfork(2), in state D; here the child has memory of its own.
IN_THE_KERNEL = """
import ctypes, sys
def suspended():
    if ctypes.CDLL(None).syscall(56, 0x4000 | 17, 0, 0, 0, 0) == 0:
        hangs()
def hangs():
    sys.stdin.read()
print("up", flush=True)
suspended()
print("went on", flush=True)
"""
# Its child is a data loader by its name.
DEAF = """
import ctypes, multiprocessing
def load():
    ctypes.CDLL(None).prctl(15, b"pt_data_worker", 0, 0, 0)
    named.set()
    multiprocessing.parent_process().join()
context = multiprocessing.get_context("fork")
named = context.Event()
context.Process(target=load, daemon=True).start()
named.wait()
signal.pthread_sigmask(signal.SIG_BLOCK, [dump.DUMP_SIGNAL])
"""
# Until its parent is killed, as all children here: nobody else ends them.
WRITE = """
import multiprocessing
def write():
    multiprocessing.parent_process().join()
"""
WRITER = """
import multiprocessing, sys, threading
sys.path.insert(0, sys.argv[1].rpartition("/")[0])
from my_checkpointing import write
multiprocessing.get_context("spawn").Process(target=write, daemon=True).start()
"""


def take_one(pid: int, taker: StackTaker | None = None, budget_s: float = BUDGET_S) -> RankStacks:
    (stacks,) = (taker or StackTaker()).take({3: pid}, node="n1", budget_s=budget_s)
    assert (stacks.rank, stacks.node) == (3, "n1")
    return stacks


def test_without_workers_there_are_no_stacks() -> None:
    assert StackTaker().take({}, node="n1", budget_s=1) == ()


def test_a_worker_that_has_ended_is_reported() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    zombie = process(take_one(ended.pid))
    ended.wait()
    gone = process(take_one(ended.pid))
    assert (zombie.state, gone.state) == ("Z", "")
    assert zombie.error == gone.error == "the process has ended"


def test_a_program_other_than_python_is_reported() -> None:
    with subprocess.Popen(["sleep", "1000"]) as sleeper:
        wait_for(lambda: state_of(sleeper.pid) == "S", message="it sleeps")
        stacks = take_one(sleeper.pid)
        state = state_of(sleeper.pid)
        sleeper.kill()
    assert (stacks.source, process(stacks).threads) == ("", ())
    assert "py-spy" in process(stacks).error
    assert "no handler" in process(stacks).error
    assert state == "S"


def test_a_program_of_its_own_is_read_too(tmp_path: Path) -> None:
    with program("import sys\n" + HANG, tmp_path) as worker:
        stacks = take_one(worker.pid)
        assert worker.goes_on()
    assert (stacks.source, functions(process(stacks))) == ("py-spy", ["hangs", "<module>"])


def test_a_stopped_process_stays_stopped(tmp_path: Path) -> None:
    with program(PREPARE + HANG, tmp_path) as worker:
        os.kill(worker.pid, signal.SIGSTOP)
        wait_for(lambda: worker.state() == "T")
        stacks = take_one(worker.pid)
        assert (process(stacks).state, worker.state()) == ("T", "T")
        os.kill(worker.pid, signal.SIGCONT)
        assert worker.goes_on()
    assert functions(process(stacks)) == ["hangs", "<module>"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="clone(2) has another number")
def test_a_process_in_the_kernel_is_read(tmp_path: Path) -> None:
    with program(IN_THE_KERNEL, tmp_path) as worker:
        wait_for(lambda: worker.state() == "D")
        stacks = take_one(worker.pid)
        (child,) = descendants(process_table(), worker.pid)
        os.kill(child.pid, signal.SIGKILL)
        assert worker.line() == "went on"
    assert (process(stacks).state, functions(process(stacks))) == ("D", ["suspended", "<module>"])


def test_children_that_write_checkpoints_are_shown_and_others_not(tmp_path: Path) -> None:
    (tmp_path / "my_checkpointing.py").write_text(WRITE)
    with program(WRITER + HANG, tmp_path) as worker:

        def looks() -> RankStacks | None:
            stacks = take_one(worker.pid)
            kinds = {p.kind for p in stacks.processes}
            return stacks if ProcessKind.WRITER in kinds else None

        stacks = wait_for(looks, message="the writer writes")
        children = descendants(process_table(), worker.pid)
    assert stacks is not None
    assert functions(process(stacks, ProcessKind.WRITER))[-1] == "<module>"
    assert len(children) == 2  # the resource tracker of multiprocessing is the other one
    assert {p.kind for p in stacks.processes} == {ProcessKind.WORKER, ProcessKind.WRITER}


@pytest.mark.slow
def test_a_pyspy_that_hangs_leaves_time_for_the_handler(tmp_path: Path) -> None:
    hanging = tmp_path / "py-spy"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o700)
    with program(PREPARE + HANG, tmp_path) as worker:
        began = time.monotonic()
        stacks = take_one(worker.pid, StackTaker(program=str(hanging)), budget_s=6.0)
        assert time.monotonic() - began < 6.0
        assert worker.goes_on()
    assert (stacks.source, functions(process(stacks))) == ("signal", ["hangs", "<module>"])
    assert not [child for child in descendants(process_table(), os.getpid()) if child.name == "sleep"]


def test_a_worker_that_answers_nothing_leaves_time_for_its_children(tmp_path: Path) -> None:
    """Neither by its memory nor by the signal."""
    refusing = tmp_path / "py-spy"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o700)
    with program(PREPARE + DEAF + HANG, tmp_path) as worker:
        stacks = take_one(worker.pid, StackTaker(program=str(refusing)), budget_s=3.0)
        assert worker.goes_on()
    assert "not handled in time" in process(stacks).error
    assert "load" in functions(process(stacks, ProcessKind.LOADER))


def test_without_time_only_the_state_is_taken(tmp_path: Path) -> None:
    with program("import sys\n" + HANG, tmp_path) as worker:
        stacks = take_one(worker.pid, budget_s=0.0)
        assert worker.goes_on()
    assert (stacks.source, process(stacks).state) == ("", "S")


def test_a_wait_for_a_processor_counts_as_its_use() -> None:
    spin = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\nwhile True: pass"
    spinning = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]

    def waited_s() -> float:
        used = read_process(spinning[0].pid)
        counted = process(take_one(spinning[0].pid, budget_s=0.0)).cpu_s
        assert used is not None
        assert counted is not None
        return counted - used.cpu_s

    try:
        wait_for(lambda: waited_s() > 0.2, message="one keeps the other waiting")
    finally:
        for one in spinning:
            one.kill()
            one.wait()


def test_descendants_are_children_and_theirs() -> None:
    shell = f"{sys.executable} -c 'import sys; print(); sys.stdin.read()'; true"
    with subprocess.Popen(shell, shell=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        table = process_table()
        assert child.pid in {p.pid for p in descendants(table, os.getpid())}
        assert child.pid not in {p.pid for p in descendants(table, child.pid)}
        assert descendants(table, child.pid)[0].parent == child.pid
        child.communicate()


def test_a_name_with_brackets_and_blanks_is_read(tmp_path: Path) -> None:
    odd = tmp_path / "a) R (b"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([odd, "1000"]) as sleeper:
        wait_for(lambda: (found := read_process(sleeper.pid)) is not None and found.name == "a) R (b")
        found = read_process(sleeper.pid)
        sleeper.kill()
    assert found is not None
    assert found.parent == os.getpid()
