"""Runs one program: its time, its output and every wait for it have a bound."""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

_LOOK_S = 0.05
_PIPE = 2**20
_GRACE_S = 1.0  # for the end of a program that was killed


class Ended(NamedTuple):
    """What became of the program."""

    code: int | None
    """Negative for a signal, as in ``subprocess``; None where its time was over and it was killed."""

    output: bytes
    """The end of what it printed."""


def run_bounded(
    command: Sequence[str],
    *,
    limit_s: float,
    most_bytes: int,
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    given: IO[bytes] | None = None,
    errors: bool = True,
    own_session: bool = True,
) -> Ended:
    """Run ``command`` for ``limit_s`` seconds at most; then kill it, its descendants and its process group.

    The output is read until the program ends, not until the pipe closes: a process that it leaves behind may
    hold the pipe open. ``given``: standard input, empty by default. ``errors``: read standard error as well.
    ``own_session=False`` keeps the program in the caller's process group, for callers that are killed with
    their group. Raises ``OSError`` or ``ValueError`` if the program cannot be started.
    """
    process = subprocess.Popen(
        list(command),
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL if given is None else given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if errors else subprocess.DEVNULL,
        start_new_session=own_session,
    )
    assert process.stdout is not None
    with process.stdout as output:
        try:
            return _awaited(process, output.fileno(), limit_s, most_bytes)
        finally:
            if process.returncode is None:
                _kill(process)


def _awaited(process: subprocess.Popen[bytes], output: int, limit_s: float, most: int) -> Ended:
    until, said, is_open = time.monotonic() + limit_s, b"", True
    while (code := process.poll()) is None and (left := until - time.monotonic()) > 0:
        if not is_open:
            _wait(process, left)
        elif select.select([output], [], [], min(_LOOK_S, left))[0]:
            part = os.read(output, 65536)
            said, is_open = (said + part)[-most:], bool(part)
    if code is not None and is_open and select.select([output], [], [], 0)[0]:
        # All that the pipe has; what was left behind may go on writing.
        said = (said + os.read(output, _PIPE))[-most:]
    return Ended(code, said)


def _kill(process: subprocess.Popen[bytes]) -> None:
    from slurm_robust.util.child import kill_tree  # seldom needed, and a prolog counts its modules

    kill_tree(process.pid)
    _wait(process, _GRACE_S)  # one that hangs in the kernel is left behind


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        pass
