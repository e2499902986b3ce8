"""What wakes the loop, and how often it turns: at once for news, in a burst as often as its work allows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

LONGEST_S = 0.25
"""For what only time brings."""

REST_S = 0.1
"""Between two ticks of a large job: a thousand heartbeats a second are no thousand reasons to look at all."""

REST_FACTOR = 9.0
"""A tick that took less is followed by so many times as long a rest: a small job answers in milliseconds."""


class Turns:
    """Waits for news; after a tick no sooner than its rest is over, while more news may queue.

    ``sources`` have news to read; ``urgent`` is a descriptor that no rest holds up.
    """

    def __init__(
        self,
        sources: Sequence[zmq.Socket[bytes] | int],
        urgent: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._news, self._urgent = zmq.Poller(), zmq.Poller()
        for source in (*sources, urgent):
            self._news.register(source, zmq.POLLIN)
        self._urgent.register(urgent, zmq.POLLIN)
        self._rest_until = 0.0

    def wait(self) -> None:
        """Return when it is time for the next turn."""
        self._news.poll(int(1000 * LONGEST_S))
        if (rest_s := self.rest_s) > 0:
            self._urgent.poll(int(1000 * rest_s) + 1)

    @property
    def rest_s(self) -> float:
        """Seconds of rest that are left."""
        return self._rest_until - self._clock()

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Around the work that looks at everything."""
        begun = self._clock()
        yield
        ended = self._clock()
        self._rest_until = ended + min(REST_S, REST_FACTOR * (ended - begun))


class Signals:
    """Signals as readable bytes, so that they come into the loop like everything else."""

    WATCHED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)

    def __enter__(self) -> Signals:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._old_fd = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, lambda *_: None) for number in self.WATCHED}
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Readable when a signal came."""
        return self._read

    def taken(self) -> list[int]:
        """Numbers of the signals that came since the last call."""
        try:
            return [n for n in os.read(self._read, 256) if n in self.WATCHED]
        except BlockingIOError:
            return []
