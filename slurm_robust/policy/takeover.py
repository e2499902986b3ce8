"""Is the controller's host dead, and who starts another controller? Pure.

Agents that hear no controller probe the kernel of its host. If that is silent, too, they vote by a file in
the job directory, and probe the kernels of the other voters: an agent that reaches most of them is not cut
off itself. Slurm's word on the host is one more vote, and the only other one if no other voter lives. No vote
convicts a node: the next controller judges the host like any other node, and epochs keep the old one from
doing harm if it lives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from slurm_robust.model.probes import ProbeTarget
from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold

VOTERS = 7
"""Nodes that are asked: enough for some to live, few enough for storage."""

CANDIDATES = 28
"""In a large job only the first nodes, as Slurm lists them, read the journal to learn whether they vote."""

PROBE_S = 1.0
"""How long a kernel is probed, in seconds."""

ASK_EVERY_S = 10.0
"""Seconds between two questions to Slurm about a host that answers."""

AGAIN_S = 1.0
"""Seconds between two rounds of a voter."""

FRESH_S = 20.0
"""Votes that were cast this far apart belong to one silence."""

TURN_S = 12.0
"""What a voter leaves to each one before it: the start of a controller on a busy machine."""

UNANSWERED_S = 180.0
"""Seconds for a host that answers to bring its controller back; its supervisor waits for a minute at most."""

MAX_CONTROLLERS = 3
"""Controllers that one agent starts."""


class Vote(Record):
    """A node that finds the host of the controller ``epoch`` dead, and the address for probes of the node."""

    node: str
    epoch: int
    place: ProbeTarget
    silent_s: float
    reason: str


def voters(
    slots: Sequence[str], spares: Sequence[str], aside: Collection[str], unfit: Collection[str]
) -> tuple[str, ...]:
    """Return the voters in the order in which they take over; never the host itself, which is ``unfit``."""
    nodes = (*slots, *(spare for spare in spares if spare not in aside), *aside)
    return tuple(node for node in dict.fromkeys(nodes) if node not in unfit)[:VOTERS]


def quorum(voting: int) -> int:
    """Return how many of the ``voting`` nodes must agree: a majority, and at least two."""
    return max(2, voting // 2 + 1)


def suffices(agreeing: int, living: int) -> bool:
    """Return whether Slurm's word and the votes of ``agreeing`` nodes are enough.

    Slurm is one witness beside the voters that live by its own word, ``living`` of them.
    """
    return agreeing + 1 >= quorum(living + 1)


def is_lost(silent_s: float, *, answers: bool, is_down: bool = False) -> bool:
    """Return whether a host counts as lost whose controller is silent.

    ``answers``: its kernel does; ``is_down``: Slurm has given it up, since it has rebooted, say.
    """
    return not answers or is_down or silent_s > UNANSWERED_S


def patience_s(own: str, agreeing: Sequence[str]) -> float:
    """Return how long ``own`` leaves it to those before it; ``agreeing``: in the order of voters."""
    return TURN_S * agreeing.index(own)


def describe(host: str, silent_s: float, *, answers: bool, agreeing: Sequence[str], slurm: str) -> str:
    """Say why another controller is started, with the numbers."""
    kernel = "though its kernel answers" if answers else "nor does its kernel answer any probe"
    found = f"{kernel}, as {fold(agreeing)} found"
    text = f"the controller on {host} has not answered for {silent_s:.0f} s, {found}"
    return f"{text}; Slurm says: {slurm}" if slurm else text
