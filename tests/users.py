"""Tests as an ordinary user, whom modes of files and folders stop."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534


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
