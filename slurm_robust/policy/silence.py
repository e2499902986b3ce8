"""Is a node silent, or the network between? Pure.

One node that is silent while others speak is lost. If many fall silent together, there is one cause for all,
and a controller that hears no node at all may be cut off itself; then no node is convicted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import some_of

STALLED_S = 30.0
"""How long an agent may be silent while its node gives other signs of life: storage that hangs, memory that
is reclaimed or a port that is full of copies stall a process without anything being wrong with the node.
"""

FRESH_S = 30.0
"""How long an answer of slurmctld counts."""

TOGETHER = 1.5
"""Heartbeats between the last signs of life of nodes that fall silent together."""

MAX_WITNESSED = 64
"""More silent nodes have one cause, which is judged without witnesses for each."""

_CROWD_SHARE = 1 / 3
"""So large a share of a job's nodes does not fail together by chance."""


def counted(silent_s: float, sign_s: float) -> float:
    """Return the seconds of silence that count, of an agent that is silent for ``silent_s``.

    ``sign_s``: since its node gave any other sign of life.
    """
    return min(silent_s, sign_s) if silent_s <= STALLED_S else silent_s


EXCUSED_S, MAX_EXCUSED_S = 30.0, 150.0
"""After a cut TCP tries again after ever longer pauses, up to two minutes (RFC 6298), and so does storage:
training resumes some time after they do.
"""


def excused_s(cut_s: float) -> float:
    """Return how long no hang is reported after a cut network, or silent storage, of ``cut_s`` seconds."""
    return min(max(2 * cut_s, EXCUSED_S), MAX_EXCUSED_S)


SETTLED_S = 5.0
"""After training was held up heartbeats come first."""


class HeldUp:
    """When training was held up since it last moved, and how long it gets to go on.

    Held up again before it has moved, it gets no new time but what is left and what a longer cut would get:
    it may have hung, and a job that Slurm suspends every minute would never be found hanging. Times are
    monotonic seconds of one clock.
    """

    def __init__(self) -> None:
        self._times: list[tuple[float, float]] = []  # when each ended, and how long it was
        self._moved_at = self._until = self._newest_until = -math.inf

    def add(self, seconds: float, now: float, *, passed_s: float) -> None:
        """Excuse ``seconds`` until ``now``, of which the clock has counted ``passed_s``."""
        before_s = sum(lasted for _, lasted in self._times)
        more_s = excused_s(before_s + seconds)
        is_new = not self._times
        self._until = now + more_s if is_new else self._until + passed_s + more_s - excused_s(before_s)
        self._newest_until = now + excused_s(seconds)
        self._until = max(self._until, now + SETTLED_S)
        self._times.append((now, seconds))

    def see(self, moved_at: float) -> None:
        """Take in that the newest step, or begin or end of a phase, was at ``moved_at``."""
        self._moved_at = moved_at
        if self._times and moved_at > self._times[0][0]:
            self._times = [(ended, lasted) for ended, lasted in self._times if ended >= moved_at]

    @property
    def since_moved_s(self) -> float:
        """Seconds that training was held up since it last moved."""
        return sum(min(max(0.0, ended - self._moved_at), lasted) for ended, lasted in self._times)

    def is_excused(self, now: float) -> bool:
        """Return whether no hang is reported yet."""
        return now < self._until

    def excuses_links(self, now: float) -> bool:
        """Return whether silent links say nothing yet: without a step it is unknown if training moved."""
        return now < self._newest_until


def enough_waited(
    silent: Collection[str],
    waited_s: float,
    limit_s: float,
    *,
    standbys: int,
    given_up: bool,
    repeated_s: float = 0.0,
) -> str:
    """Say why the wait for nodes that fell silent together is over, "" while it is not.

    ``standbys``: that are heard; ``given_up``: Slurm itself has given up all of ``silent``; ``repeated_s``:
    seconds of training that going on without them repeats, since the newest copies are on them. To wait as
    long costs at most twice what was best.
    """
    if waited_s > limit_s:
        return f"not heard for {waited_s:.0f} s more (timings.unreachable_s)"
    if standbys >= len(silent) and waited_s >= repeated_s:
        return "there are standbys enough"
    return f"Slurm has given up {fold(silent)}" if given_up else ""


def is_settled(since_s: float | None, dead_s: float) -> bool:
    """Return whether nodes that were cut off had the time to come back: not all do in the same second.

    ``since_s``: since the last of them was heard again, None if none was.
    """
    return since_s is None or since_s > 2 * dead_s


class Silence(Record):
    """``nodes`` are silent."""

    nodes: tuple[str, ...]
    cause: str = ""
    """The cause of all of them together; "" if each speaks for itself."""


def judge(
    silent_s: Mapping[str, float],
    own: str,
    *,
    dead_s: float,
    apart_s: float,
    switches: Mapping[str, str],
    slurm_answers: bool | None,
) -> Silence | None:
    """Return the nodes that are silent, and whether that has one cause; None while no node is.

    ``silent_s``: seconds since each node of the job was heard, also of standbys; ``own``: the node on which
    this is judged; ``dead_s``: the silence that counts; ``apart_s``: how far apart nodes that fall silent
    together may have been heard last; ``switches``: leaf switch by node, if it is known;
    ``slurm_answers``: whether slurmctld answers us, None while that is not known.
    """
    if all(silence <= dead_s for silence in silent_s.values()):
        return None
    others = silent_s.keys() - {own}
    silent = {node for node, seconds in silent_s.items() if seconds > dead_s - apart_s}
    if own in silent and silent == silent_s.keys():
        # No network lies between us and our own agent: the agents have ended.
        return Silence(nodes=tuple(sorted(silent)))
    if others and silent == others:
        if len(others) > 1:
            cause = f"{own} hears no other node: {own} itself may be cut off"
        elif slurm_answers:
            cause = ""
        else:
            doubt = f"Slurm does not answer either: {own} itself may be cut off"
            asking = f"asking Slurm whether {own} itself is cut off"
            cause = f"{own} hears no other node; {doubt if slurm_answers is False else asking}"
        return Silence(nodes=tuple(sorted(silent)), cause=cause)
    leaf = _common_leaf(silent, others, switches)
    if len(silent) > 1 and (leaf or len(silent) >= _CROWD_SHARE * len(others)):
        behind = f" behind switch {leaf}" if leaf else ""
        return Silence(
            nodes=tuple(sorted(silent)),
            cause=f"{some_of(sorted(silent))}{behind} fell silent together: probably the network",
        )
    return Silence(nodes=tuple(sorted(node for node, silence in silent_s.items() if silence > dead_s)))


def _common_leaf(silent: set[str], others: set[str], switches: Mapping[str, str]) -> str:
    """Return the leaf switch that all silent nodes, and no other node, are behind."""
    leaves = {switches.get(node, "") for node in silent}
    behind = {node for node in others if switches.get(node, "") in leaves}
    return leaves.pop() if len(leaves) == 1 and behind == silent else ""
