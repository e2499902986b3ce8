"""Stack samples on the controller's order: taken beside the agent's loop, sent when they are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Protocol

from slurm_robust.model.stacks import RankStacks
from slurm_robust.util.executor import SerialExecutor
from slurm_robust.wire.messages import StacksTaken, TakeStacks


class StackTaking(Protocol):
    """Takes stacks on this machine: :class:`slurm_robust.agent.stacks.StackTaker`."""

    def take(
        self, workers: Mapping[int, int], *, node: str, budget_s: float, native: Collection[int] = ()
    ) -> tuple[RankStacks, ...]:
        """What each worker (rank to pid) and its helpers do, within ``budget_s``. Changes nothing.

        Of the ranks ``native`` with the calls in libraries.
        """
        ...


class StackOrders:
    """The newest order and its answer. A repeated order is answered again, not carried out again."""

    def __init__(self, taker: StackTaking, node: str) -> None:
        self._taker = taker
        self._node = node
        self._thread: SerialExecutor[StacksTaken] = SerialExecutor("srobust-stacks")
        self._number = (0, 0)  # epoch and number of the newest order
        self._answer: StacksTaken | None = None

    def fileno(self) -> int:
        """Readable when :meth:`finished` has something."""
        return self._thread.fileno()

    def order(self, order: TakeStacks, workers: Mapping[int, int]) -> StacksTaken | None:
        """Begin with ``order``; its answer if it is there already."""
        number = (order.epoch, order.number)
        if number == self._number:
            return self._answer
        self._number, self._answer = number, None
        self._thread.submit(partial(self._take, order, dict(workers)))
        return None

    def finished(self) -> list[StacksTaken]:
        """Answers that have come since the last call; only that to the newest order is worth sending."""
        found = [a for a in self._thread.results() if a.number == self._number[1]]
        for answer in found:
            self._answer = answer
        return found

    def close(self) -> None:
        """Let the thread end."""
        self._thread.close()

    def _take(self, order: TakeStacks, workers: dict[int, int]) -> StacksTaken:
        stacks = self._taker.take(workers, node=self._node, budget_s=order.budget_s, native=order.native)
        return StacksTaken(node=self._node, generation=order.generation, number=order.number, stacks=stacks)
