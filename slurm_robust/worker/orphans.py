"""Ends what ranks leave in sessions of their own: it would outlive each restart, and hold a GPU or a port.

The zygote adopts every descendant whose parent ends (:func:`slurm_robust.util.process.adopt_orphans`), so
what remains of dead ranks are its children, whatever session or group they are in.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection
from contextlib import suppress

from slurm_robust.util.proc import process_table

MAX_S = 2.0
"""A process that is in the kernel for longer is left; the next call finds it again."""

_PAUSE_S = 0.005


def end_orphans(kept: Collection[int] = ()) -> tuple[int, ...]:
    """Kill all adopted children of this process, and what these leave behind; returns their process ids.

    Left are ``kept`` (children of imports) and what is in this process's own group. Takes a few
    milliseconds, :data:`MAX_S` at most.
    """
    ended: dict[int, None] = {}
    until = time.monotonic() + MAX_S
    while True:
        found = _orphans(kept)
        for pid in found:
            ended[pid] = None
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if not found or time.monotonic() > until:
            return tuple(ended)
        time.sleep(_PAUSE_S)  # waitpid has no time limit, and kernels before 5.3 have no pidfd_open


def children() -> frozenset[int]:
    """Return the process ids of this process's children, of adopted ones, too."""
    mine = os.getpid()
    return frozenset(process.pid for process in process_table().values() if process.parent == mine)


def _orphans(kept: Collection[int]) -> list[int]:
    group, found = os.getpgrp(), []
    for pid in children():
        with suppress(ProcessLookupError):
            if pid not in kept and os.getpgid(pid) != group:
                found.append(pid)
    return found
