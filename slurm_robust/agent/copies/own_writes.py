"""What the ranks of this node put on storage themselves, because they have no room in memory. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from slurm_robust.wire.messages import Progress


class OwnWrites:
    """The newest step that is to go to storage: whose parts the ranks write, and which are not there yet."""

    def __init__(self, ranks: Collection[int] = ()) -> None:
        """``ranks``: all of this node in the generation."""
        self._ranks = ranks
        self._step = -1
        self._waiting: frozenset[int] = frozenset()
        self.keepless: frozenset[int] = frozenset()
        """The ranks that write that step themselves."""

    def ask(self, step: int, keepless: Iterable[int]) -> None:
        """Take the order for ``step``; a repeated order changes nothing."""
        if step > self._step:
            self._step, self.keepless = step, frozenset(keepless)
            self._waiting = self.keepless

    def see(self, progress: Iterable[Progress]) -> None:
        """Take in what the ranks of this node have published."""
        self._waiting -= {p.rank for p in progress if p.checkpoint >= self._step}

    @property
    def are_all(self) -> bool:
        """Whether the agent has nothing to write of the newest step."""
        return bool(self.keepless) and self.keepless.issuperset(self._ranks)

    def flushed(self, by_agent: int) -> int:
        """Return the newest step that this node has put on storage, or is over, -1 for none.

        ``by_agent``: the same of what the agent writes.
        """
        if self.are_all:
            return -1 if self._waiting else self._step
        return -1 if self._waiting and by_agent >= self._step else by_agent
