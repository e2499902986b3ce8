"""The workers of one generation on this node, by rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import structs

from slurm_robust.model.exits import WorkerError, WorkerExit


@dataclass
class Worker:
    """One rank. Without ``pid`` its start was ordered but not confirmed."""

    rank: int
    pid: int | None = None
    ended: float = 0.0  # monotonic seconds, when there is an exit
    exit: WorkerExit | None = None

    def bury_unstarted(self, reason: str, now: float) -> None:
        """It could not be started."""
        error = WorkerError(type="LaunchError", message=reason)
        self.ended, self.exit = now, WorkerExit(rank=self.rank, code=1, error=error)


class Workers(dict[int, Worker]):
    """All that were ordered, also those that have ended."""

    @classmethod
    def ordered(cls, ranks: Iterable[int]) -> Workers:
        """Of a launch that was just ordered."""
        return cls({rank: Worker(rank) for rank in ranks})

    @property
    def living(self) -> list[Worker]:
        """Those that have not ended."""
        return [worker for worker in self.values() if worker.exit is None]

    @property
    def are_starting(self) -> bool:
        """Whether the start of any is not confirmed."""
        return any(worker.pid is None for worker in self.living)

    @property
    def pids(self) -> tuple[int, ...]:
        """Of all that were started."""
        return tuple(worker.pid for worker in self.values() if worker.pid is not None)

    @property
    def last_end(self) -> float:
        """When the last one ended, if all have."""
        return max(worker.ended for worker in self.values())

    def exits(self, now: float) -> tuple[WorkerExit, ...]:
        """How they ended, with their age at ``now``."""
        return tuple(
            structs.replace(worker.exit, age_s=max(0.0, now - worker.ended))
            for worker in self.values()
            if worker.exit is not None
        )
