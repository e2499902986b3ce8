"""What wakes the loop, and how often it turns: at once for news, in a burst as often as its work allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

LONGEST_S = 0.25
"""For what only time brings."""

REST_S = 0.1
"""Between two ticks of a large job: a thousand heartbeats a second are no thousand reasons to look at all."""

LONG_FACTOR = 2.0
"""With ten thousand nodes a tick takes longer than that; all of them together take a third of the time."""

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
        took = ended - begun
        self._rest_until = ended + min(REST_FACTOR * took, max(REST_S, LONG_FACTOR * took))
