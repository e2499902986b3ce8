"""A clock that moves only when a test moves it or something sleeps by it."""

from __future__ import annotations

from collections.abc import Callable


class FakeClock:
    """Satisfies the clocks of this package: ``monotonic``, ``time`` and ``sleep``.

    ``sleep`` returns at once and moves the clock. ``on_advance`` functions run after every move, so
    that a simulated world can follow.
    """

    def __init__(self, start: float = 1_000_000.0) -> None:
        self.now = start
        self.on_advance: list[Callable[[float], None]] = []

    def monotonic(self) -> float:
        """Seconds."""
        return self.now

    def time(self) -> float:
        """The same number, as wall clock."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Advance by ``seconds``."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self.now += seconds
        for function in tuple(self.on_advance):  # which may take themselves off the list
            function(self.now)
