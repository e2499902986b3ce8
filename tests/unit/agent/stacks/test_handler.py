from __future__ import annotations

import time
from pathlib import Path

import pytest

from slurm_robust.agent.stacks import handler
from slurm_robust.agent.stacks.pyspy import CannotTake
from slurm_robust.model.stacks import Frame
from tests.unit.agent.stacks.handler_programs import HANG, PREPARE, program
from tests.waiting import wait_for

PYTHON_3_11 = """\
Thread 0x00007f1b2f7fe6c0 (most recent call first):
  File "/lib/threading.py", line 327 in wait
  File "/lib/threading.py", line 1038 in run

Current thread 0x00007f1b4a4ad740 (most recent call first):
  File "/home/u/gr\\xf6\\u03b2e \\U0001f600.py", line 7 in <module>
"""
PYTHON_3_14 = """\
Thread 0x00007f1b2f7fe6c0 [pt_data_pin] (most recent call first):
  File "/lib/threading.py", line 327 in wait

Thread 0x00007f1b4a4ad740 [python3] (most recent call first):
  <no Python frame>
"""
CUT = "".join(f"Thread 0x{i:016x} (most recent call first):\n  File ???, line ??? in f\n\n" for i in range(3))


def soon() -> float:
    return time.monotonic() + 5


def test_threads_are_parsed_and_the_last_is_the_main_one() -> None:
    other, main = handler.parse(PYTHON_3_11)
    assert [frame.function for frame in other.frames] == ["wait", "run"]
    assert (other.is_main, main.is_main) == (False, True)
    assert main.frames == (Frame(function="<module>", file="/home/u/gröβe \U0001f600.py", line=7),)


def test_names_of_threads_are_taken_where_python_writes_them() -> None:
    other, main = handler.parse(PYTHON_3_14)
    assert (other.name, main.name, main.frames) == ("pt_data_pin", "python3", ())


def test_no_thread_is_the_main_one_where_faulthandler_has_stopped_writing() -> None:
    threads = handler.parse(CUT + "...\n")
    assert [thread.is_main for thread in threads] == [False] * 3
    assert threads[0].frames == (Frame(function="f"),)


@pytest.mark.parametrize(
    "text", ["", "Fatal Python error: Aborted\n\n", '  File "a", line 1 in f\n', "\0\xff"]
)
def test_other_text_has_no_threads(text: str) -> None:
    assert handler.parse(text) == ()


def test_a_process_tells_its_stacks_as_often_as_it_is_asked(tmp_path: Path) -> None:
    with program(PREPARE + HANG.replace("hangs", "hängt"), tmp_path) as worker:
        for _ in range(3):
            (thread,) = handler.take(worker.pid, None, soon())
            assert [frame.function for frame in thread.frames] == ["hängt", "<module>"]
            assert thread.is_main
        assert worker.goes_on()


def test_a_thread_of_its_own_is_told_too(tmp_path: Path) -> None:
    thread = (
        "def waits():\n    threading.Event().wait()\nthreading.Thread(target=waits, daemon=True).start()\n"
    )
    with program(PREPARE + thread + HANG, tmp_path) as worker:
        threads = handler.take(worker.pid, None, soon())
    assert [(t.is_main, t.frames[-1].function) for t in threads] == [
        (False, "_bootstrap"),
        (True, "<module>"),
    ]


@pytest.mark.parametrize(
    "without",
    [
        pytest.param("import sys\n", id="never had one"),
        pytest.param(PREPARE + "os.closerange(3, 100)\n", id="closed its file"),
        pytest.param(
            PREPARE + "import faulthandler; faulthandler.unregister(dump.DUMP_SIGNAL)\n", id="took it away"
        ),
        pytest.param(
            PREPARE + f"os.execv(sys.executable, [sys.executable, '-c', '''import sys\n{HANG}'''])\n",
            id="called exec",
        ),
    ],
)
def test_no_signal_reaches_a_process_without_the_handler(without: str, tmp_path: Path) -> None:
    with program(without + HANG, tmp_path) as worker:
        with pytest.raises(CannotTake, match="no handler"):
            handler.take(worker.pid, worker.file, soon())
        assert worker.goes_on()


def test_a_process_that_blocks_the_signal_costs_the_budget_and_is_asked_once(tmp_path: Path) -> None:
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [dump.DUMP_SIGNAL])\n"
    with program(PREPARE + block + HANG, tmp_path) as worker:
        with pytest.raises(CannotTake, match="not handled in time"):
            handler.take(worker.pid, None, time.monotonic() + 0.05)
        with pytest.raises(CannotTake, match="not taken an earlier"):
            handler.take(worker.pid, None, soon())
        assert worker.goes_on()


def test_threads_that_block_the_signal_leave_it_to_the_others(tmp_path: Path) -> None:
    block = (
        "def blocks():\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "    threading.Event().wait()\n"
        "threading.Thread(target=blocks, daemon=True).start()\n"
    )
    with program(PREPARE + block + HANG, tmp_path) as worker:
        names = {t.frames[-2].function for t in handler.take(worker.pid, None, soon()) if not t.is_main}
        assert names == {"_bootstrap_inner"}
        assert worker.goes_on()


def test_a_process_that_has_ended_cannot_be_taken(tmp_path: Path) -> None:
    with program(PREPARE + HANG, tmp_path) as worker:
        assert worker.goes_on()
    wait_for(lambda: not Path(f"/proc/{worker.pid}").exists())
    with pytest.raises(CannotTake, match="No such file"):
        handler.take(worker.pid, None, soon())
