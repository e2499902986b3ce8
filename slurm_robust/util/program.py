"""Runs one program to its end. Its time, its output and every wait for it have a bound."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_robust.util import proc

_LOOK_S = 0.05
_READ_BYTES = 2**16
_PIPE_BYTES = 2**20
_KILL_S = 1.0  # a process on a busy node stops, and ends, when it gets a processor


class Ended(NamedTuple):
    """What became of the program."""

    code: int | None
    """Negative for a signal, as in ``subprocess``; None if its time was over and it was killed."""

    output: bytes
    """The end of what it printed."""

    errors: bytes = b""
    """The end of what it wrote to standard error."""


def run_program(
    command: Sequence[str],
    *,
    limit_s: float,
    max_bytes: int,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    merge: bool = False,
    own_session: bool = True,
    kill_s: float = _KILL_S,
) -> Ended:
    """Run ``command`` for ``limit_s`` seconds at most; then kill it, its descendants and its process group.

    The output is read until the program ends, not until the pipe closes: a process that it leaves behind may
    hold the pipe open. ``max_bytes``: kept of each stream. ``env`` replaces the environment. ``merge``:
    standard error is part of the output. ``own_session=False`` keeps the program in the caller's process
    group, for callers that are killed with their group. ``kill_s``: how long to wait for the end of a killed
    program. The program inherits the signals that this thread blocks. Raises ``OSError`` or ``ValueError`` if
    it cannot be started.
    """
    given = _in_memory(stdin) if stdin else subprocess.DEVNULL
    try:
        process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            start_new_session=own_session,
        )
    finally:
        if given != subprocess.DEVNULL:
            os.close(given)
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    kept = {stream.fileno(): bytearray() for stream in streams}
    try:
        code = _read_to_the_end(process, kept, time.monotonic() + limit_s, max_bytes)
    finally:
        if process.returncode is None:
            kill_tree(process.pid, kill_s)
            _wait(process, kill_s)  # one that hangs in the kernel is left behind
        for stream in streams:
            stream.close()
    return Ended(code, *(bytes(text[-max_bytes:]) for text in kept.values()))


def _in_memory(data: bytes) -> int:
    """Put ``data`` in a file for a program to read: no pipe, which a thread would have to feed."""
    fd = os.memfd_create("stdin")
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_to_the_end(
    process: subprocess.Popen[bytes], kept: Mapping[int, bytearray], until: float, max_bytes: int
) -> int | None:
    is_open = dict.fromkeys(kept, True)
    poller = select.poll()
    for fd in kept:
        poller.register(fd, select.POLLIN)

    def read(timeout_s: float, most: int) -> None:
        for fd, _ in poller.poll(1000 * timeout_s):
            part = os.read(fd, most)
            kept[fd].extend(part)
            if len(kept[fd]) > 2 * max_bytes:
                del kept[fd][:-max_bytes]
            if not part:
                is_open[fd] = False
                poller.unregister(fd)

    while (code := process.poll()) is None and (left := until - time.monotonic()) > 0:
        if any(is_open.values()):
            read(min(_LOOK_S, left), _READ_BYTES)
        else:
            _wait(process, left)
    if code is not None:
        read(0.0, _PIPE_BYTES)  # all that the pipes have; what was left behind may go on writing
    return code


def _wait(process: subprocess.Popen[Any], limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass


def kill_group(process: subprocess.Popen[Any]) -> None:
    """Send SIGKILL to the process's whole group, then reap the process (bounded, KILL cannot be refused)."""
    _send(os.killpg, process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                pass  # Unwritten input of a process that is gone.
    _wait(
        process, 5.0
    )  # Stuck in the kernel (dead NFS server): waiting longer would hang the caller as well.


def kill_tree(pid: int, stop_s: float = _KILL_S) -> None:
    """Send SIGKILL to a process that is not reaped yet, to its descendants and to its process group.

    Descendants may have sessions of their own. Waits ``stop_s`` seconds at most for them to stop.
    """
    for one in _stopped_tree(pid, time.monotonic() + stop_s):
        _send(os.kill, one, signal.SIGKILL)
    _send(os.killpg, pid, signal.SIGKILL)


def _stopped_tree(pid: int, until: float) -> frozenset[int]:
    """Stop a process and its descendants, if that is quick, since a running one could fork another."""
    stopped: frozenset[int] | None = None
    while True:
        table = proc.process_table()
        tree = [process for process in (table.get(pid), *proc.descendants(table, pid)) if process]
        running = [process.pid for process in tree if process.state not in proc.STOPPED | proc.DEAD]
        found = frozenset(process.pid for process in tree)
        # Once is not enough: one that stops while the table is read can have forked unseen by the reader.
        if found == stopped or time.monotonic() > until:
            return found
        stopped = found if not running else None
        for one in running:
            _send(os.kill, one, signal.SIGSTOP)


def _send(kill: Callable[[int, int], None], pid: int, number: signal.Signals) -> None:
    try:
        kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # it has ended meanwhile
