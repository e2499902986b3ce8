"""The network between the nodes of a simulated job: it delays, loses and repeats messages, and can break."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

from slurm_robust.testing.sim.timeline import Timeline


class Network:
    """Carries bytes from node to node; what one node sends to another arrives in order, as by TCP.

    Nodes of one *island* reach each other; all are on island 0 until :meth:`part` moves some.
    """

    def __init__(
        self,
        timeline: Timeline,
        chance: Random,
        *,
        delay_s: tuple[float, float] = (0.0005, 0.01),
        loss: float = 0.0,
        duplicates: float = 0.0,
    ) -> None:
        """``loss`` and ``duplicates``: the share of messages that are lost, and that arrive twice."""
        self.delay_s, self.loss, self.duplicates = delay_s, loss, duplicates
        self.sent = 0
        """How many messages were sent."""
        self.lost: set[int] = set()
        """Which of them are lost, by their numbers: the first is 1."""
        self.late: dict[int, float] = {}
        """By how many seconds some of them come later."""
        self.on_sent: Callable[[bytes], None] = lambda data: None
        """Told of each."""
        self._timeline, self._chance = timeline, chance
        self._islands: dict[str, int] = {}
        self._cut: set[frozenset[str]] = set()
        self._count = 0
        self._arrived: dict[tuple[str, str], float] = defaultdict(float)  # when the newest message arrives

    def part(self, *nodes: str) -> None:
        """Make an island of ``nodes``: they reach each other, and no other node."""
        self._count += 1
        self._islands.update(dict.fromkeys(nodes, self._count))

    def cut(self, one: str, other: str) -> None:
        """Cut these two off each other, and from no other node."""
        self._cut.add(frozenset((one, other)))

    def heal(self, *nodes: str) -> None:
        """Bring ``nodes`` (all, without any) back to the others."""
        for node in nodes or tuple(self._islands):
            self._islands.pop(node, None)
        self._cut = {pair for pair in self._cut if nodes and not pair.intersection(nodes)}

    def passes(self, source: str, target: str) -> bool:
        """Return whether the two nodes reach each other now."""
        if source == target:
            return True
        is_cut = bool(self._cut) and frozenset((source, target)) in self._cut
        return not is_cut and self._islands.get(source, 0) == self._islands.get(target, 0)

    @property
    def is_calm(self) -> bool:
        """Whether all nodes reach each other, and every message arrives once and soon."""
        return not (self._islands or self._cut or self.loss or self.duplicates) and self.delay_s[1] < 0.05

    def send(self, source: str, target: str, data: bytes, arrive: Callable[[bytes], None]) -> None:
        """Have ``data`` arrive at ``target`` after a while, or never."""
        chance, now = self._chance, self._timeline.now + self.late.get(self.sent + 1, 0.0)
        self.sent += 1
        self.on_sent(data)
        if not self.passes(source, target) or self.sent in self.lost:
            return
        if source != target and chance.random() < self.loss:
            return
        times = 2 if chance.random() < self.duplicates else 1
        for _ in range(times):
            at = max(self._arrived[source, target], now + chance.uniform(*self.delay_s))
            self._arrived[source, target] = at
            self._timeline.after(at - self._timeline.now, lambda: self._deliver(source, target, data, arrive))

    def _deliver(self, source: str, target: str, data: bytes, arrive: Callable[[bytes], None]) -> None:
        if self.passes(source, target):
            arrive(data)
