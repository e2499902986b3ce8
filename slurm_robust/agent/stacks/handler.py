"""Stacks by the signal handler in the worker, if no other process may read its memory.

:mod:`slurm_robust.worker.dump` has installed it, with :mod:`faulthandler`: C code that runs although another
thread holds the interpreter, in the worker and in the processes that it has forked.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.agent.stacks.pyspy import CannotTake
from slurm_robust.model.nodefolders import within_release
from slurm_robust.model.stacks import Frame, ThreadStack
from slurm_robust.worker.dump import DUMP_SIGNAL, STACKS_SUFFIX

# The handler takes about a millisecond.
_POLL_S = 0.002

_OUR_BIT = 1 << (DUMP_SIGNAL - 1)

_THREAD = re.compile(
    r"(?:Current thread|Thread) 0x[0-9a-f]+ (?:\[(?P<name>.*)\] +)?\(most recent call first\):"
)
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")


def take(pid: int, known: Path | None, deadline: float) -> tuple[ThreadStack, ...]:
    """Take the stacks of all threads of process ``pid``, at the latest at ``deadline`` (monotonic seconds).

    ``known`` is the file that it writes to, in case the kernel does not show which file it has open. A worker
    and its forks share it, so they are asked one after the other. Raises :class:`CannotTake`; the signal goes
    to no process that it could kill.
    """
    try:
        return parse(_ask(pid, known, deadline))
    except OSError as error:
        raise CannotTake(f"the handler of signal {DUMP_SIGNAL}: {error.strerror}") from None


def parse(text: str) -> tuple[ThreadStack, ...]:
    """Parse the threads in what faulthandler has written; lines of others are left out."""
    threads: list[tuple[str, list[Frame]]] = []
    cut = False
    for line in text.splitlines():
        if found := _THREAD.fullmatch(line):
            threads.append((found["name"] or "", []))
        elif threads and (found := _FRAME.fullmatch(line)):
            number = int(found["line"]) if found["line"].isdecimal() else 0
            file, function = _unescaped(found["file"] or ""), _unescaped(found["function"])
            threads[-1][1].append(Frame(function=function, file=within_release(file), line=number))
        cut = cut or line == "..."
    # Newest thread first; the main one is the last, unless faulthandler has stopped at its hundredth.
    last = -1 if cut else len(threads) - 1
    return tuple(
        ThreadStack(name=name, is_main=index == last, frames=tuple(frames))
        for index, (name, frames) in enumerate(threads)
    )


def _ask(pid: int, known: Path | None, deadline: float) -> str:
    file = stacks_file(pid, known)
    if file is None:
        raise CannotTake(f"it has no handler of signal {DUMP_SIGNAL}")
    if _is_pending(pid):
        raise CannotTake(f"it has not taken an earlier signal {DUMP_SIGNAL}")
    os.truncate(file, 0)
    blocking = _blocking_threads(pid)
    os.kill(pid, DUMP_SIGNAL)
    pause = threading.Event()
    # A thread blocks the signal while it runs the handler, so the handler has ended when no thread blocks it
    # any more.
    while _is_pending(pid) or _blocking_threads(pid) - blocking:
        if time.monotonic() > deadline:
            raise CannotTake(f"signal {DUMP_SIGNAL} was not handled in time")
        pause.wait(_POLL_S)
    return file.read_text(errors="replace")


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(next(filter(None, found.groups())), 16)), text)


def stacks_file(pid: int, known: Path | None) -> Path | None:
    """Return the file to which the handler of ``DUMP_SIGNAL`` in ``pid`` writes; None if there is none.

    A process that has the file open has the handler, unless it has called exec, which closes it. If the
    kernel hides its files, ``known`` is believed. Raises ``OSError`` when it has ended.
    """
    folder = f"/proc/{pid}/fd"
    try:
        files: Iterable[str] = [os.readlink(f"{folder}/{entry}") for entry in os.listdir(folder)]
    except PermissionError:
        files = [] if known is None else [str(known)]
    ours = next((file for file in files if file.endswith(STACKS_SUFFIX)), None)
    handled = _signals(f"/proc/{pid}/status", "SigCgt")
    return Path(ours) if ours is not None and handled and Path(ours).exists() else None


def _is_pending(pid: int) -> bool:
    """Return whether ``DUMP_SIGNAL`` waits for a thread of ``pid`` to take it. Raises ``OSError``."""
    return _signals(f"/proc/{pid}/status", "ShdPnd")


def _blocking_threads(pid: int) -> frozenset[str]:
    """Return the threads of ``pid`` that block ``DUMP_SIGNAL``: always, or while they run its handler."""
    folder = f"/proc/{pid}/task"
    found = set()
    for thread in os.listdir(folder):
        try:
            if _signals(f"{folder}/{thread}/status", "SigBlk"):
                found.add(thread)
        except OSError:
            continue  # that thread has ended
    return frozenset(found)


def _signals(status: str, field: str) -> bool:
    prefix = f"{field}:"
    for line in Path(status).read_text(errors="replace").splitlines():
        if line.startswith(prefix):
            return bool(int(line.removeprefix(prefix), 16) & _OUR_BIT)
    return False
