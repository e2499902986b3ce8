"""Waiting for a condition instead of sleeping."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Short enough that no test notices, long enough that a waiting test leaves the CPU to what it waits for.
LOOK_EVERY_S = 0.01


def wait_for(condition: Callable[[], T], timeout: float = 10.0, message: str = "") -> T:
    """Return the first true value of ``condition()``; AssertionError with ``message`` after ``timeout`` s."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s: {message or condition}")
        pause.wait(LOOK_EVERY_S)
