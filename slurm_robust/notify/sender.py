"""Sends messages in threads, one for each message: a channel that hangs delays no other."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import NamedTuple

from slurm_robust.notify.channels import Channel, ChannelFailed
from slurm_robust.notify.courier import Failure, Order
from slurm_robust.notify.message import Message
from slurm_robust.util.text import one_line
from slurm_robust.util.wakeup import Inbox


class Result(NamedTuple):
    """What became of a message."""

    channel: str
    failure: Failure | None
    """None: it was sent."""


class Sender:
    """The channels of a job, each with its time limit in seconds, by name."""

    def __init__(self, channels: Mapping[str, tuple[Channel, float]]) -> None:
        self._channels = dict(channels)
        self.results: Inbox[Result] = Inbox()
        """One for each order."""

    def send(self, order: Order) -> None:
        """Begin to send."""
        name = f"srobust-{order.channel}"
        threading.Thread(target=self._send, args=(order,), name=name, daemon=True).start()

    def _send(self, order: Order) -> None:
        channel, timeout_s = self._channels[order.channel]
        self.results.put(Result(order.channel, attempt(channel, order.message, timeout_s)))


def attempt(channel: Channel, message: Message, timeout_s: float) -> Failure | None:
    """Send one message; None if it was sent. Raises nothing."""
    try:
        channel.send(message, timeout_s)
    except ChannelFailed as error:
        return Failure(
            text=one_line(str(error)),
            fix=error.fix,
            retry_after_s=error.retry_after_s,
            permanent=error.permanent,
            unsure=error.unsure,
        )
    except Exception as error:  # noqa: BLE001  # a defect of a channel costs its messages, not those of others
        # Its text may hold anything, a secret too.
        return Failure(text=f"{type(error).__name__} in the channel itself", unsure=True)
    return None
