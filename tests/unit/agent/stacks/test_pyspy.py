from __future__ import annotations

import stat
import sys
import time
from pathlib import Path

import pytest

from slurm_robust.agent.stacks import pyspy
from slurm_robust.agent.stacks.pyspy import CannotTake
from slurm_robust.model.stacks import Frame, ThreadStack
from tests.unit.agent.stacks.handler_programs import HANG, program
from tests.waiting import wait_for

# Of py-spy 0.4.3 with --native, shortened.
NATIVE = b"""[
  {"pid": 5, "thread_id": 140706635365248, "thread_name": "MainThread", "os_thread_id": 5, "active": false,
   "owns_gil": false, "process_info": null, "frames": [
    {"name": "0x7f505bea3e96", "filename": "/lib/libc.so.6", "module": "/lib/libc.so.6",
     "short_filename": "libc.so.6", "line": 0, "locals": null, "is_entry": true, "is_shim_entry": true},
    {"name": "_ctypes_callproc", "filename": "Modules/_ctypes/callproc.c", "module": "/py/_ctypes.so",
     "short_filename": "callproc.c", "line": 1262, "locals": null, "is_entry": true, "is_shim_entry": true},
    {"name": "deep", "filename": "/home/u/train.py", "module": null, "short_filename": "train.py",
     "line": 5, "locals": null, "is_entry": false, "is_shim_entry": false}]},
  {"pid": 5, "thread_id": 139852250166976, "thread_name": null, "os_thread_id": 9, "active": true,
   "owns_gil": true, "process_info": null, "frames": []}
]"""
REFUSED = """Error: Failed to get process executable name. Check that the process is running.

Caused by:
    0: Permission denied (os error 13)
    1: Permission denied (os error 13)

Stack backtrace:
   0: <E as anyhow::context::ext::StdError>::ext_context
"""


def soon() -> float:
    return time.monotonic() + 5


def script(folder: Path, text: str) -> str:
    file = folder / "py-spy"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(file)


def test_threads_are_parsed() -> None:
    native = Frame(function="_ctypes_callproc", file="/py/_ctypes.so", line=1262)
    own = Frame(function="deep", file="/home/u/train.py", line=5)
    assert pyspy.parse(NATIVE, 5) == (
        ThreadStack(name="MainThread", is_main=True, frames=(native, own)),
        ThreadStack(frames=()),
    )


def test_without_ids_the_last_thread_is_the_main_one() -> None:
    """As of a process of Python 3.10 that py-spy does not stop; recorded with thread names."""
    entries = ",".join(
        f'{{"pid": 5, "thread_id": {number}, "thread_name": "{name}", "os_thread_id": null, "active": true,'
        ' "owns_gil": false, "frames": []}'
        for number, name in ((140624299939520, "Thread-1 (other)"), (140624309451648, "MainThread"))
    )
    threads = pyspy.parse(f"[{entries}]".encode(), 5)
    assert [(thread.name, thread.is_main) for thread in threads] == [
        ("Thread-1 (other)", False),
        ("MainThread", True),
    ]


@pytest.mark.parametrize(
    "output", [b"", b"[", b"{}", b"Process 5: python", NATIVE[:-40], b'[{"pid": 5}]', b'["\xff"]']
)
def test_anything_else_is_refused(output: bytes) -> None:
    with pytest.raises(CannotTake):
        pyspy.parse(output, 5)


def test_a_refusal_is_told_without_the_backtrace(tmp_path: Path) -> None:
    refuses = script(tmp_path, f"cat >&2 <<'END'\n{REFUSED}END\nexit 1")
    with pytest.raises(CannotTake) as raised:
        pyspy.take(refuses, 1, soon())
    assert str(raised.value).endswith(
        "running.; 0: Permission denied (os error 13); 1: Permission denied (os error 13)"
    )


def test_a_stack_that_changed_under_its_hands_is_copied_again(tmp_path: Path) -> None:
    fails_once = script(
        tmp_path,
        f"if mkdir {tmp_path}/tried 2>/dev/null; then\n"
        f"echo 'Error: Failed to get stack traces' >&2; exit 1; fi\ncat <<'END'\n{NATIVE.decode()}\nEND",
    )
    assert len(pyspy.take(fails_once, 5, soon())) == 2


def test_a_pyspy_that_hangs_is_given_up_and_leaves_nothing(tmp_path: Path) -> None:
    hangs = script(tmp_path, f"echo $$ >{tmp_path}/pid; exec sleep 1000")
    began = time.monotonic()
    with pytest.raises(CannotTake, match="in time"):
        pyspy.take(hangs, 1, began + 0.3)
    assert time.monotonic() - began < 60
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_missing_pyspy_is_reported() -> None:
    with pytest.raises(CannotTake, match="No such file"):
        pyspy.take("/nowhere/py-spy", 1, soon())


def test_pyspy_is_found_beside_the_interpreter() -> None:
    assert pyspy.find_pyspy() == str(Path(sys.executable).with_name("py-spy"))


def test_a_running_process_is_read_without_a_pause(tmp_path: Path) -> None:
    with program("import sys\n" + HANG, tmp_path) as worker:
        (thread,) = pyspy.take(pyspy.find_pyspy(), worker.pid, soon())
        assert [frame.function for frame in thread.frames] == ["hangs", "<module>"]
        assert worker.goes_on()


@pytest.mark.slow
def test_a_native_sample_that_is_cut_short_leaves_the_process_running(tmp_path: Path) -> None:
    with program("import sys\n" + HANG, tmp_path) as worker:
        for milliseconds in range(10, 150, 10):
            try:
                deadline = time.monotonic() + milliseconds / 1000
                pyspy.take(pyspy.find_pyspy(), worker.pid, deadline, native=True)
            except CannotTake:
                pass
            wait_for(lambda: worker.state() == "S", message="it sleeps in its read again")
        assert worker.goes_on()
