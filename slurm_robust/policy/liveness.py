"""Is a node dead? Within a second, by unlike witnesses that all have to be silent. Pure.

An agent shows by beacons that its process lives. When they stop, the kernel of its node is probed, by the
controller and by other nodes. A stopped, starved or swapped-out agent has a kernel that answers; a cut
network shows in several nodes together. Any answer keeps a node from being called dead here; the patient
rules of :mod:`slurm_robust.policy.silence` go on beside this one.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count

QUICK_S = 0.8
"""Seconds without a sign of a node after which it may be called dead, unless the owner has chosen others."""

PATIENT_S = 3.0
"""The same in a job of :data:`MANY` GPU nodes or more without a standby that has rehearsed. A link that flaps
and the failover of a switch last 1 to 3 s (reported); LACP gives a silent partner up after 3 s (IEEE 802.1AX,
short timeout).
"""

MANY = 128
"""The more nodes, the more links that flap, and the more GPUs that wait for a restart without need."""

BEACONS_IN_VERDICT = 8
"""Beacons that a node would have sent in the shorter of these times, or in ``timings.verdict_s``."""

MISSED = 3
"""An agent is overdue after this many intervals without a beacon; then its kernel is probed."""

VOTES = 2
"""Observers that have to agree, if so many could be asked."""

OBSERVERS = 3
"""Other nodes that probe the same kernel: a broken path from the controller is no broken node."""

PROVEN_S = 180.0
"""How long a kernel that has answered a probe is expected to answer the next ones, too."""

PROVE_EVERY_S = 60.0
"""Seconds between two probes of a node that lives. They show which probes this site lets through."""

AGENTS_PER_SECOND = 10_000
"""Beacons that a controller takes in a second. With more agents each sends fewer."""

_ROUND_TRIPS, _SLACK_S = 3.0, 0.2


def beacon_interval(asked_s: float | None, agents: int) -> float:
    """Return the seconds between two beacons of an agent, 0 for none. ``asked_s``: ``timings.verdict_s``."""
    quickest_s = QUICK_S if asked_s is None else asked_s
    return max(quickest_s / BEACONS_IN_VERDICT, agents / AGENTS_PER_SECOND) if quickest_s else 0.0


def overdue_s(interval_s: float) -> float:
    """Return the seconds without a beacon after which an agent is overdue."""
    return MISSED * interval_s


def verdict_s(asked_s: float | None, interval_s: float, gpu_nodes: int, *, has_rehearsed: bool) -> float:
    """Return the seconds without a beacon after which a node may be called dead.

    ``asked_s``: ``timings.verdict_s``, None if the owner has chosen none. ``gpu_nodes``: that hold ranks.
    ``has_rehearsed``: a standby has, so that a replacement costs seconds.
    """
    quickest_s = BEACONS_IN_VERDICT * interval_s
    is_patient = asked_s is None and gpu_nodes >= MANY and not has_rehearsed
    return max(quickest_s, PATIENT_S) if is_patient else quickest_s


def probing_s(interval_s: float, answer_s: float) -> float:
    """Return how long to probe a kernel whose last answer took ``answer_s`` seconds."""
    until_verdict_s = BEACONS_IN_VERDICT * interval_s - overdue_s(interval_s)
    return max(until_verdict_s, _ROUND_TRIPS * answer_s + _SLACK_S)


class Probing(Record):
    """Probes of the kernel of one node that is suspected to be dead."""

    number: int
    began: float
    """Monotonic time."""
    for_s: float
    """How long it is probed."""
    controls: dict[str, str] = {}
    """Observers, which were asked to probe it, too, and the node that lives which each probes beside it."""
    over: bool = False
    """Whether the controller's own probes are over, and were sent."""
    unanswered: tuple[str, ...] = ()
    """Observers that have got an answer of their control, and none of the suspect."""
    answered: bool = False
    """Whether any probe has got an answer."""

    @property
    def is_unanimous(self) -> bool:
        """Whether no probe got an answer, and observers agree."""
        votes = min(VOTES, len(self.controls)) or math.inf
        return self.over and not self.answered and len(self.unanswered) >= votes


def choose_observers(
    node: str, others: Collection[str], own: str, leaves: Mapping[str, str]
) -> dict[str, str]:
    """Choose which of ``others``, all of them heard, probe ``node`` too, each with its control.

    Behind other switches than ``node`` and the controller first. The agent on ``own``, the controller's node,
    sees what the controller sees. A control is a node that lives: who does not reach it proves nothing.
    """
    near = {leaves.get(node, ""), leaves.get(own, "")}
    ranked = sorted(set(others) - {own, node}, key=lambda other: (leaves.get(other, "") in near, other))
    chosen = ranked[:OBSERVERS]
    controls = [*ranked[::-1], own]
    return {observer: next(control for control in controls if control != observer) for observer in chosen}


def describe(node: str, silent_s: float, interval_s: float, probing: Probing, kinds: str) -> str:
    """Say why ``node`` is called dead, with the numbers. ``kinds``: of probes that it answered before."""
    text = (
        f"{node} is dead: no beacon for {silent_s:.2f} s (one is sent every {interval_s:.2f} s), and its "
        f"kernel answered no probe ({kinds}) for {probing.for_s:.2f} s"
    )
    if probing.unanswered:
        seen = count(len(probing.unanswered), "other node")
        text += f", nor those of {seen} ({fold(probing.unanswered)})"
    return text
