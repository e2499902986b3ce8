"""The test of a suspect, and the next job's prolog beside it.

After a job Slurm gives the node to no other job before the epilog has ended. A node that a running job gives
back is idle immediately, so the next prolog may come while the epilog still tests the node. It waits for the
outcome.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.1


def _lock(state: Path) -> Path:
    return state / "suspect.lock"


@contextmanager
def under_test(state: Path) -> Iterator[None]:
    """Show that the node is being tested. If that cannot be shown, it is tested anyway."""
    fd = -1
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(_lock(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pass
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def wait_for_test(state: Path, timeout_s: float) -> bool:
    """Wait until the node is not being tested, ``timeout_s`` at most; False if it was not."""
    try:
        fd = os.open(_lock(state), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    deadline, waited = time.monotonic() + timeout_s, False
    try:
        while not _is_free(fd) and time.monotonic() < deadline:
            waited = True
            time.sleep(POLL_S)
    finally:
        os.close(fd)
    return waited


def _is_free(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # no locks on this file system
    return True
