"""The same for many things at once, without waiting for what hangs."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AT_MOST = 16
_PER_CPU = 2


def together(
    job: Callable[[T], R], things: Sequence[T], *, deadline: float, otherwise: Callable[[T], R]
) -> tuple[R, ...]:
    """What ``job`` gives for each of ``things``, a few per CPU at a time, the first ones first.

    From ``deadline`` (monotonic seconds) on, what ``otherwise`` gives for those that have no result.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(things)):
        waiting.put(index)
    results: dict[int, R] = {}

    def work() -> None:
        while time.monotonic() < deadline:
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            results[index] = job(things[index])

    threads: list[threading.Thread] = []
    for _ in things[: min(_AT_MOST, _PER_CPU * len(os.sched_getaffinity(0)))]:
        # A daemon: starting a program from storage that does not answer hangs in the kernel.
        thread = threading.Thread(target=work, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            break  # no more are allowed; those that there are do all the work
        threads.append(thread)
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    found = dict(results)
    return tuple(found[i] if i in found else otherwise(thing) for i, thing in enumerate(things))
