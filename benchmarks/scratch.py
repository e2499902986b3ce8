"""Folders in shared memory that go with the run that made them, whatever ends it.

A signal ends a run as an exception, so that the run removes what it made. One that was killed cannot: the
next run does it. The kernel knows which folders are in use: each is locked as long as its run lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "srobust-benchmark-"
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TRIES = 20


def cleanly(main: Callable[[], int]) -> int:
    """Run ``main``. A signal ends it as ``KeyboardInterrupt``: one line, and 128 and the signal's number."""
    for number in _ENDS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, _end)
    try:
        return main()
    except KeyboardInterrupt as end:
        number = signal.Signals(end.args[0])
        print(f"ended by {number.name}", file=sys.stderr)
        return 128 + number


@contextmanager
def deferred() -> Iterator[None]:
    """Signals that end a run wait for the end of the block. Start nothing in it that shall get signals."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def scratch(name: str, base: Path = SHARED_MEMORY) -> Iterator[Path]:
    """An empty folder; first, those of runs that were killed are removed. Raises ``OSError``."""
    remove_dead(base)
    made: tuple[Path, int] | None = None
    try:
        with deferred():
            made = _make(name, base)
        yield made[0]
    finally:
        with deferred():
            if made is not None:
                shutil.rmtree(made[0], ignore_errors=True)
                os.close(made[1])


def _make(name: str, base: Path) -> tuple[Path, int]:
    for _ in range(_TRIES):
        path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{name}-", dir=base))
        try:
            return path, _lock(path)
        except (BlockingIOError, FileNotFoundError):
            pass  # until it is locked, another run takes it for one that a killed run has left
    raise OSError(f"other runs remove each new folder in {base}")


def remove_dead(base: Path) -> None:
    """Remove what runs of this user left that were killed."""
    for path in base.glob(f"{PREFIX}*"):
        try:
            lock = _lock(path)
        except OSError:
            continue  # its run lives, or it is gone, or another user's
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock(path: Path) -> int:
    """Lock a folder of this user until what it returns is closed or this process ends. Raises ``OSError``."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(lock)
        if found.st_uid != os.getuid():
            raise PermissionError(f"{path} is of another user")  # anybody may make such a name
        if not os.path.samestat(found, path.lstat()):
            raise FileNotFoundError(path)
    except OSError:
        os.close(lock)
        raise
    return lock


def _end(number: int, _frame: object) -> None:
    for one in _ENDS:
        signal.signal(one, signal.SIG_IGN)  # a second one must not end what the first one has begun
    raise KeyboardInterrupt(number)
