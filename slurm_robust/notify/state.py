"""``notified.json``: what was told, on storage beside the journal."""

from __future__ import annotations

import msgspec

from slurm_robust.jobdir.place import check_in_place
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.notice import NOTIFIED, Notified
from slurm_robust.model.record import UNREADABLE
from slurm_robust.util.files import write_atomically
from slurm_robust.util.ours import read_ours

_MAX_BYTES = 16 << 20


def load(directory: JobDirectory, run_id: str) -> Notified | None:
    """Return what earlier processes have written of this run; None if nothing. Raises ``OSError``."""
    try:
        found = NOTIFIED.decode(read_ours(directory.notified, _MAX_BYTES))
    except (FileNotFoundError, *UNREADABLE):
        return None
    return found if found.run_id == run_id else None


def save(directory: JobDirectory, notified: Notified) -> None:
    """Write it, durably. Raises ``FolderGone``, ``OSError``."""
    check_in_place(directory.path, notified.run_id)
    write_atomically(directory.notified, msgspec.json.encode(notified), durable=True, mode=0o600)
