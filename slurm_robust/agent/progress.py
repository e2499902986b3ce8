"""Reads the step records of this node's workers, and notices what the controller waits for."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.agent.rankenv import record_path
from slurm_robust.model.progress import SnapshotTimes, most
from slurm_robust.wire.messages import Progress
from slurm_robust.worker.step_record import RecordError, StepRecord


class StepWatch:
    """The step records of one generation at a time."""

    def __init__(self) -> None:
        self._records: list[StepRecord] = []
        self._reported: list[tuple[bool, bool, bool]] = []
        self._requested = -1
        self._announce = 0
        self.stride = self.local_stride = 0
        """What the workers were told; 0 without workers."""

    def create(
        self,
        folder: Path,
        generation: int,
        ranks: tuple[int, ...],
        announce: int = 0,
        stride: int = 1,
        local_stride: int = 1,
    ) -> None:
        """Make the records of a new generation.

        ``announce`` is a step that is news when it is done, multiples of ``stride`` go to peers, and
        snapshots are taken of multiples of ``local_stride``. Raises ``OSError``, say when memory is full.
        """
        self.forget()
        self._announce = announce
        for rank in ranks:
            path = record_path(folder, rank)
            self._records.append(StepRecord.create(path, generation=generation, rank=rank))
        self.set_stride(stride, local_stride)

    def forget(self) -> None:
        """Forget the records: the generation is over."""
        for record in self._records:
            record.close()
        self._records, self._reported, self._requested = [], [], -1
        self.stride = self.local_stride = 0

    def path_of(self, rank: int) -> Path | None:
        """Return the file of one rank's record; None if this generation has no such rank here."""
        return next((record.path for record in self._records if record.rank == rank), None)

    def request_checkpoint(self, step: int, hold_s: float = 0.0) -> None:
        """Ask all workers for a checkpoint at ``step``, and to begin no step after it for ``hold_s``."""
        if step != self._requested:  # reports on an earlier request say nothing about this one
            self._reported = [(first, announced, False) for first, announced, _ in self._reported]
        self._requested = step
        for record in self._records:
            record.request_checkpoint(step, hold_s)

    def set_stride(self, stride: int, local: int) -> bool:
        """Let all workers know which snapshots to take, and which go to peers; False if they do."""
        if not self._records or (stride, local) == (self.stride, self.local_stride):
            return False
        for record in self._records:
            record.set_stride(stride, local)
        self.stride, self.local_stride = stride, local
        return True

    def ask_flush(self, step: int) -> None:
        """Have all workers keep the snapshot of ``step``; -1 for none."""
        for record in self._records:
            record.set_flush(step)

    def read(self, now: float) -> tuple[Progress, ...]:
        """Return what all ranks have done; a damaged record's rank is left out."""
        found = []
        for record in self._records:
            try:
                found.append(record.progress(now))
            except RecordError:
                continue
        return tuple(found)

    @property
    def start_phases(self) -> dict[str, float]:
        """Seconds of the phases of the workers' start that are over, each of the rank that took longest."""
        return most(record.start_phases for record in self._records)

    @property
    def spent(self) -> dict[str, float]:
        """Seconds that phases and checkpoints have taken, each on the rank on which it was most."""
        return most(record.spent for record in self._records)

    @property
    def snapshots(self) -> SnapshotTimes | None:
        """What snapshots take on the ranks on which they take most, None if that is not known (yet)."""
        try:
            return SnapshotTimes.worst(record.snapshots for record in self._records)
        except RecordError:
            return None

    @property
    def keepless(self) -> frozenset[int]:
        """The ranks that have no room in memory for snapshots: they write to storage themselves."""
        return frozenset(record.rank for record in self._records if record.buffers == 0)

    @property
    def all_keep(self) -> bool:
        """Whether every rank is known to have room in memory for snapshots."""
        return bool(self._records) and all(record.buffers for record in self._records)

    def has_news(self, now: float) -> bool:
        """Return whether a rank has, since the last call, done what the controller waits for.

        That is its first step, the step to be announced, or the requested checkpoint.
        """
        news = [
            (p.step >= 0, self._announced(p), 0 <= self._requested <= p.checkpoint) for p in self.read(now)
        ]
        before, self._reported = self._reported, news
        return news != (before or [(False, False, False)] * len(news))

    @property
    def has_stepped(self) -> bool:
        """Whether every rank was seen to have made a step."""
        return bool(self._reported) and all(first for first, _, _ in self._reported)

    def _announced(self, progress: Progress) -> bool:
        # A count of optimizer steps says nothing about the numbers of the script's steps.
        return progress.step >= (self._announce if progress.reported else 0)

    @property
    def expects_news(self) -> bool:
        """Whether something is waited for; else it is enough to read the records for each heartbeat."""
        if not self._records:
            return False
        checkpoint = self._requested >= 0 and not all(done for _, _, done in self._reported)
        return not self._reported or self.waiting_for_steps or checkpoint

    @property
    def waiting_for_steps(self) -> bool:
        """Whether a rank has not done the step that is waited for: worth reading often."""
        return bool(self._records) and not all(first and announced for first, announced, _ in self._reported)
