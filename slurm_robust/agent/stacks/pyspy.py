"""Stacks by py-spy: it reads the memory of a process without stopping it.

Measured in docs/taking-stacks.md: with ``--nonblocking`` py-spy uses no ptrace at all, so whatever happens to
it, the process goes on, and it reads stopped processes and those in the kernel as well as others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Frame, ThreadStack

_ERROR_CHARS = 200
# A stack that is copied while it changes cannot be read: about one in a hundred of a process that computes.
_CHANGED = "Failed to get stack traces"
_TRIES = 3
# From KILL to the end of a process that does not hang in the kernel.
_REAP_S = 0.1


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
    """The program, of this environment if it has one; "" when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def take(program: str, pid: int, deadline: float, *, native: bool = False) -> tuple[ThreadStack, ...]:
    """All threads of process ``pid``, at the latest at ``deadline`` (monotonic seconds).

    With ``native`` also the calls in libraries, for which py-spy stops the process a few tenths of a second.
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
    """The threads in the output of ``py-spy dump --json``. Raises :class:`CannotTake` when it is not that."""
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
            frames=tuple(_frame(frame) for frame in thread.frames if not frame.name.startswith("0x")),
        )
        for number, thread in enumerate(threads, start=1)
    )


def _frame(frame: _Frame) -> Frame:
    return Frame(function=frame.name, file=frame.module or frame.filename, line=frame.line)


def _run(command: tuple[str, ...], deadline: float) -> bytes:
    # Not pipes: nobody has to read while the program runs, and it may be given up at any time. Nor files of
    # a disk, which may be full.
    with _memory("stdout") as out, _memory("stderr") as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            raise CannotTake(f"{command[0]}: {error.strerror}") from None
        try:
            code = process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            _give_up(process)
            raise CannotTake("py-spy did not end in time") from None
        out.seek(0)
        err.seek(0)
        if code != 0:
            raise CannotTake(f"py-spy: {_reason(err.read().decode(errors='replace'))}")
        return out.read()


def _memory(name: str) -> BinaryIO:
    return open(os.memfd_create(name), "w+b")


def _give_up(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    try:
        process.wait(_REAP_S)
    except subprocess.TimeoutExpired:
        pass  # it hangs in the kernel beside the process that it reads; subprocess collects it when it ends


def _reason(message: str) -> str:
    """The causes in an error of py-spy, without its backtrace and its advice to use sudo."""
    lines = [line.strip() for line in re.split("Stack backtrace:|: Try running", message)[0].splitlines()]
    return "; ".join(line for line in lines if line and line != "Caused by:")[:_ERROR_CHARS]
