"""Tests as an ordinary user, whom modes of files and folders stop."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

NOBODY = 65534

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test-unit")


def run_as(uid: int, do: Callable[[], object]) -> str:
    """What ``do`` returned or raised, as text, in a child that is this user and nobody else. For root."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.umask(0o022)
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            said = str(do())
        except BaseException as error:  # noqa: BLE001 - the child ends here, whatever it is
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@contextmanager
def as_another_user() -> Iterator[None]:
    """Root may look everywhere, so as root this block runs as nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
