"""One sample round of all ranks' stacks at a time, for the policy or a person on call."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model.stacks import RankStacks
from slurm_robust.wire.messages import ShowStacks, StacksShown, StacksTaken

RESEND_S = 1.0
TRAVEL_S = 1.0
"""Time for orders and answers, beyond the time that taking stacks may take."""

FRESH_S = 2.0
"""A person who asks again within this time is shown the same round: a script must not keep all nodes busy."""

MAX_NODES = 8
"""Nodes whose stacks go into one message: a node's may be megabytes, and heartbeats wait meanwhile."""

KEEP_S = 60.0
"""Stacks of ten thousand ranks are hundreds of megabytes, and have been read by then."""


class StackBook:
    """The newest sample round. Rounds are numbered, so that a late answer to an earlier one is recognised.

    Agents carry out one order after the other, so a second round would come too late to count as answered.
    Hence a request during a round gets that round. Times are monotonic.
    """

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        """How long taking stacks may take."""
        self.number = 0
        self.generation = 0
        self.nodes: tuple[str, ...] = ()
        self.native: tuple[int, ...] = ()
        self._answers: dict[str, StacksTaken] = {}
        self._since = self._sent = -FRESH_S

    @property
    def limit_s(self) -> float:
        """How long to wait for answers, in seconds."""
        return self.budget_s + TRAVEL_S

    def ask(self, generation: int, nodes: Sequence[str], now: float, native: tuple[int, ...] = ()) -> None:
        """Begin a round of ``generation``, unless one is under way; ``native``: as in the order."""
        if generation == self.generation and not self.over(now):
            return
        self.number += 1
        self.generation, self.nodes, self.native = generation, tuple(nodes), native
        self._answers = {}
        self._since, self._sent = now, now - RESEND_S

    def due(self, now: float) -> list[str]:
        """Return the nodes that must get the order now, for the first time or again.

        Called on every tick.
        """
        if now - self._since > self.limit_s + KEEP_S:
            self.nodes, self._answers = (), {}
        if self.over(now) or now - self._sent < RESEND_S:
            return []
        self._sent = now
        return self.missing()

    def hear(self, answer: StacksTaken) -> None:
        """Take in an answer."""
        if answer.number == self.number and answer.node in self.nodes:
            self._answers[answer.node] = answer

    def missing(self) -> list[str]:
        """Return the nodes that have not answered."""
        return [node for node in self.nodes if node not in self._answers]

    def over(self, now: float) -> bool:
        """Return whether all have answered or have had their time."""
        return now - self._since >= self.limit_s or not self.missing()

    def all(self) -> tuple[RankStacks, ...]:
        """Return the stacks so far, by rank."""
        stacks = (stack for answer in self._answers.values() for stack in answer.stacks)
        return tuple(sorted(stacks, key=lambda stack: stack.rank))

    def knows(self, wish: ShowStacks) -> bool:
        """Return whether a person has seen the beginning of this round."""
        return bool(self.nodes) and wish.number == self.number

    def show(self, wish: ShowStacks, generation: int, nodes: Sequence[str], now: float) -> StacksShown:
        """Return the next part for a person.

        Each request says what has come already, so no list of people is kept. ``generation`` runs now on
        ``nodes``; 0 for none.
        """
        after = wish.after if self.knows(wish) else 0
        if not self.knows(wish) and (generation != self.generation or now - self._since >= FRESH_S):
            self.ask(generation, nodes, now)
        answers = tuple(self._answers.values())
        some = answers[after : after + MAX_NODES]
        # A generation that has ended will not answer any more.
        at_end = self.over(now) or generation != self.generation
        return StacksShown(
            number=self.number,
            generation=self.generation,
            nodes=self.nodes,
            stacks=some,
            over=at_end and after + len(some) >= len(answers),
            limit_s=self.limit_s,
        )
