"""One sample round of all ranks' stacks at a time, for the policy or a person on call."""

from __future__ import annotations

from slurm_robust.engine.asked_agents import AskedAgents
from slurm_robust.engine.clock import Now
from slurm_robust.engine.context import Context
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import RankStacks
from slurm_robust.wire.messages import ShowStacks, StacksShown, StacksTaken, TakeStacks

FRESH_S = 2.0
"""A person who asks again within this time is shown the same round: a script must not keep all nodes busy."""

MAX_NODES = 8
"""Nodes whose stacks go into one message: a node's may be megabytes, and heartbeats wait meanwhile."""


class StackRound(Record):
    """What a round has brought."""

    stacks: tuple[RankStacks, ...]
    """By rank."""
    missing: tuple[str, ...]
    """Nodes that have not answered."""
    limit_s: float
    """How long they had, in seconds."""


class StackBook:
    """The newest sample round.

    Agents carry out one order after the other, so a second round would miss its time. A request during a
    round gets that round, and a person's request begins none before the policy has had its own.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._number = 0
        self._generation = 0
        self._asked: AskedAgents[StacksTaken] = AskedAgents({}, context.started - FRESH_S)
        self._is_awaited = False  # by the policy

    def ask(self, now: Now, native: tuple[int, ...] = ()) -> None:
        """Begin a round for the policy, unless one is under way; ``native``: as in the order."""
        self._is_awaited = True
        self._begin(now, native)

    def _begin(self, now: Now, native: tuple[int, ...] = ()) -> None:
        context = self._context
        if context.world.generation == self._generation and not self._asked.is_over(now):
            return
        self._asked.forget()
        self._generation, self._number = context.world.generation, context.number_question()
        order = TakeStacks(
            epoch=context.state.epoch,
            number=self._number,
            generation=self._generation,
            budget_s=context.config.detect.stacks_s,
            native=native,
        )
        self._asked = context.ask_agents(dict.fromkeys(context.world.slots, order), now)

    def taken(self, now: Now) -> StackRound | None:
        """Return the round when all have answered or have had their time; None before."""
        if not self._asked.is_over(now):
            return None
        self._is_awaited = False
        missing = tuple(self._asked.missing())
        return StackRound(stacks=self.all(), missing=missing, limit_s=self._asked.limit_s)

    def all(self) -> tuple[RankStacks, ...]:
        """Return the stacks so far, by rank."""
        stacks = (stack for answer in self._asked.answers.values() for stack in answer.stacks)
        return tuple(sorted(stacks, key=lambda stack: stack.rank))

    def knows(self, wish: ShowStacks) -> bool:
        """Return whether a person has seen the beginning of this round."""
        return bool(self._asked.nodes) and wish.number == self._number

    def show(self, wish: ShowStacks, now: Now) -> StacksShown:
        """Return the next part for a person.

        Each request says what has come already, so no list of people is kept.
        """
        world = self._context.world
        generation = world.generation if world.running else 0
        after = wish.after if self.knows(wish) else 0
        fresh_s = FRESH_S + (self._asked.limit_s if self._is_awaited else 0.0)
        is_fresh = generation == self._generation and now.mono - self._asked.since < fresh_s
        if not self.knows(wish) and not is_fresh:
            self._begin(now)
        answers = tuple(self._asked.answers.values())
        some = answers[after : after + MAX_NODES]
        # A generation that has ended will not answer any more.
        at_end = self._asked.is_over(now) or generation != self._generation
        return StacksShown(
            number=self._number,
            generation=self._generation,
            nodes=self._asked.nodes,
            stacks=some,
            over=at_end and after + len(some) >= len(answers),
            limit_s=self._asked.limit_s,
        )
