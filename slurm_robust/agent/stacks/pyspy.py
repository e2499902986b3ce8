"""Stacks by py-spy: it reads the memory of a process without stopping it.

Measured in docs/stacks.md#taking-stacks: with ``--nonblocking`` py-spy uses no ptrace at all, so the
process goes on whatever happens to py-spy. It also reads processes that are stopped or wait in the kernel.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
from pathlib import Path

import msgspec

from slurm_robust.model.nodefolders import within_release
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame, ThreadStack
from slurm_robust.util.program import run_program

_ERROR_CHARS = 200
# A stack that is copied while it changes cannot be read: about one in a hundred of a process that computes.
_CHANGED = "Failed to get stack traces"
_TRIES = 3
_KILL_S = 0.1
_MAX_BYTES = 2**26


class CannotTake(Exception):
    """No stacks of this process: the message says why."""


class _Frame(Record):
    name: str
    filename: str
    line: int = 0
    module: str | None = None


class _Thread(Record):
    frames: tuple[_Frame, ...]
    thread_name: str | None = None
    os_thread_id: int | None = None


# Made while there is one thread; see Record.
_output = msgspec.json.Decoder(tuple[_Thread, ...])


def find_pyspy() -> str:
    """Find the program, that of this environment if it has one; "" when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def take(program: str, pid: int, deadline: float, *, native: bool = False) -> tuple[ThreadStack, ...]:
    """Take the stacks of all threads of process ``pid``, at the latest at ``deadline`` (monotonic seconds).

    ``native``: with the calls in libraries, for which py-spy stops the process a few tenths of a second.
    Raises :class:`CannotTake`.
    """
    mode = "--native" if native else "--nonblocking"
    command = (program, "dump", "--json", "--full-filenames", mode, "--pid", str(pid))
    for _ in range(_TRIES - 1):
        try:
            return parse(_run(command, deadline), pid)
        except CannotTake as error:
            if _CHANGED not in str(error):
                raise
    return parse(_run(command, deadline), pid)


def parse(output: bytes, pid: int) -> tuple[ThreadStack, ...]:
    """Parse the threads in the output of ``py-spy dump --json``. Raises :class:`CannotTake`."""
    try:
        threads = _output.decode(output)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CannotTake(f"py-spy: {error}") from None
    # A process of Python 3.10 that is not stopped gets no ids; the interpreter's first thread is listed last.
    known = any(thread.os_thread_id is not None for thread in threads)
    return tuple(
        ThreadStack(
            name=thread.thread_name or "",
            is_main=thread.os_thread_id == pid if known else number == len(threads),
            frames=tuple(
                Frame(
                    function=frame.name, file=frame.module or within_release(frame.filename), line=frame.line
                )
                for frame in thread.frames
                if not frame.name.startswith("0x")
            ),
        )
        for number, thread in enumerate(threads, start=1)
    )


def _run(command: tuple[str, ...], deadline: float) -> bytes:
    try:
        done = run_program(
            command,
            limit_s=deadline - time.monotonic(),
            max_bytes=_MAX_BYTES,
            own_session=False,
            kill_s=_KILL_S,  # it may hang in the kernel beside the process that it reads
        )
    except OSError as error:
        raise CannotTake(f"{command[0]}: {error.strerror}") from None
    if done.code is None:
        raise CannotTake("py-spy did not end in time")
    if done.code != 0:
        raise CannotTake(f"py-spy: {_reason(done.errors.decode(errors='replace'))}")
    return done.output


def _reason(message: str) -> str:
    """Return the causes in an error of py-spy, without its backtrace and its advice to use sudo."""
    lines = [line.strip() for line in re.split("Stack backtrace:|: Try running", message)[0].splitlines()]
    return "; ".join(line for line in lines if line and line != "Caused by:")[:_ERROR_CHARS]
