"""The version of the messages between controller, agents and clients, and what a peer of an older one gets.

A rolling upgrade mixes releases in one job: a controller that is started again, or that takes over, runs the
new code beside agents of the old one; an agent that is started again meets an older controller; and the
owner's commands are newer than both. Each side names its version in what it says first, and no side infers it
from silence.

A message may change in these ways only:

* A new field has a default, and by that default a peer means what peers without the field do. A peer that
  does not know a field passes over it.
* A new message gets the next :data:`PROTOCOL` and a line in :data:`SINCE`, and is sent to peers of that
  version only. A peer that does not know a message refuses it by name (:class:`.messages.Foreign`).
* A message, or a field without a default, is never removed, renamed or given another type.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import get_args

from slurm_robust.wire.messages import (
    FromController,
    Load,
    Order,
    Rehearse,
    TryRelease,
    UpdateReply,
)

PROTOCOL = 2
"""The version of this release. 0 is that of peers that do not name any."""

SINCE: Mapping[type[FromController], int] = MappingProxyType(
    {Load: 1, Rehearse: 1, TryRelease: 2, UpdateReply: 2}
)
"""The first version with each message; the others are in all.

:class:`.messages.Refused` goes to peers of all versions: who does not know it drops it.
"""


def knows(protocol: int, message: type[FromController]) -> bool:
    """Return whether a peer of version ``protocol`` knows this kind of message."""
    return protocol >= SINCE.get(message, 0)


def unknown_to(protocol: int) -> list[str]:
    """Name the orders of a controller that an agent of version ``protocol`` does not know."""
    orders = get_args(Order)
    return [
        str(message.__struct_config__.tag)
        for message in SINCE
        if message in orders and not knows(protocol, message)
    ]
