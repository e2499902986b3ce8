"""Takes stacks."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.stacks import RankStacks


class StackTaker:
    """Takes the stacks of workers and their helpers."""

    def take(self, workers: Mapping[int, int], *, node: str, budget_s: float) -> tuple[RankStacks, ...]:
        """What each worker (rank to pid) does, within ``budget_s`` seconds."""
        return tuple(RankStacks(rank=rank, node=node) for rank in workers)
