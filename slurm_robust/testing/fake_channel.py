"""A channel that keeps what it is given, for tests of what sends messages."""

from __future__ import annotations

import threading
from collections import deque

from slurm_robust.notify.channels import ChannelFailed
from slurm_robust.notify.message import Message

HANGS = "hangs"


class FakeChannel:
    """Sends to :attr:`messages`. ``plan`` says what becomes of the next messages; then all arrive.

    An item is an error to raise, or :data:`HANGS`: the channel takes its time limit, then fails.
    """

    def __init__(self, *plan: ChannelFailed | str) -> None:
        self.plan = deque(plan)
        self.messages: list[Message] = []
        self.released = threading.Event()
        """Set it to end a hang before its time."""

    def send(self, message: Message, timeout_s: float) -> None:
        """Keep the message, or do what is planned."""
        planned = self.plan.popleft() if self.plan else None
        if planned is None:
            self.messages.append(message)
            return
        if isinstance(planned, ChannelFailed):
            raise planned
        self.released.wait(timeout_s)
        raise ChannelFailed(f"no answer within {timeout_s:g} s", fix="end what hangs", unsure=True)
