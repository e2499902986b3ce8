"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Short enough that no test notices, long enough that a waiting test leaves the CPU to what it waits for. A
# condition that costs more, as one that asks Slurm, is evaluated a tenth of the time at most.
LOOK_EVERY_S = 0.01
LOOK_SELDOM_S = 0.5

# A limit of a test is there for what hangs: a machine with much else to do is slow, and not red. A test that
# proves that something comes soon compares it with what would come late.
HANG_S = 60.0
# How much slower than the limits of the product a machine of tests may be.
BUSY = 10


def wait_for(condition: Callable[[], T], timeout: float = HANG_S, message: str = "") -> T:
    """Return the first true value of ``condition()``; AssertionError with ``message`` after ``timeout`` s."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        began = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {message or condition}")
        pause.wait(max(LOOK_EVERY_S, min(9 * (now - began), LOOK_SELDOM_S)))
