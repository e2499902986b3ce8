"""Stacks that agents sent, for the newest question."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.model.stacks import RankStacks
from slurm_robust.wire.messages import StacksTaken


class StackBook:
    """Questions are numbered, so that a late answer to an earlier one is known as such."""

    def __init__(self) -> None:
        self.number = 0
        self._answers: dict[str, tuple[RankStacks, ...]] = {}

    def begin(self) -> None:
        """Ask anew."""
        self.number += 1
        self._answers = {}

    def hear(self, answer: StacksTaken) -> None:
        """Take in an answer."""
        if answer.number == self.number:
            self._answers[answer.node] = answer.stacks

    def missing(self, nodes: Iterable[str]) -> list[str]:
        """Those of ``nodes`` that have not answered."""
        return [node for node in nodes if node not in self._answers]

    def complete(self, nodes: Iterable[str]) -> bool:
        """Whether all of ``nodes`` have answered."""
        return not self.missing(nodes)

    def all(self) -> tuple[RankStacks, ...]:
        """The stacks so far, by rank."""
        return tuple(sorted((s for its in self._answers.values() for s in its), key=lambda s: s.rank))
