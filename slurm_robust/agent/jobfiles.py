"""What an agent reads and makes in the job's folder; shared storage may hold each of these up for minutes."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.wire.epochs import EpochRecord, newest_epoch

_TAIL_BYTES = 16 * 1024
_LINE_CHARS = 500


class EpochLooked(Record):
    """Result of a look at the job's epochs; ``failed`` when the job directory could not be read."""

    newest: EpochRecord | None
    failed: bool = False


def make_log_folders(job: JobDirectory, generation: int, ranks: tuple[int, ...]) -> None:
    """Make the folders in which these workers are about to write. Raises ``OSError``."""
    for folder in {job.worker_log(generation, rank, "out").parent for rank in ranks}:
        folder.mkdir(parents=True, exist_ok=True)


def look_up(epochs: Path) -> EpochLooked:
    """Who controls the job, by the folder of its epochs."""
    try:
        return EpochLooked(newest=newest_epoch(epochs))
    except Exception:  # noqa: BLE001 - who looks must be told, or would not look again
        return EpochLooked(newest=None, failed=True)


def read_tail(paths: tuple[Path, ...], lines: int = 20) -> tuple[str, ...]:
    """The last ``lines`` lines of the first file that has any, from at most 16 KiB. Raises ``OSError``."""
    for path in paths:
        try:
            with path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL_BYTES))
                text = file.read(_TAIL_BYTES).decode(errors="replace")
        except FileNotFoundError:
            continue
        found = [line.rstrip()[:_LINE_CHARS] for line in text.splitlines()]
        if any(found):
            return tuple(found[-lines:])
    return ()
