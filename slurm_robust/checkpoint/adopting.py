"""Checkpoints of an earlier job in the folder of a new one, without a copy if storage has hard links.

Files of checkpoints never change once they have their names, so both jobs may hold the same ones, and either
may remove its own.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.checkpoint.store import CheckpointStore
from slurm_robust.model.copies import CheckpointId
from slurm_robust.util.files import sync

_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


def adopt(source: CheckpointStore, target: CheckpointStore, refs: Iterable[CheckpointId]) -> int:
    """Put ``refs`` of one store into another one, whole or not at all; how many bytes had to be copied.

    What is there already stays. New folders are closed to others (0700). Raises ``OSError``.
    """
    copied = 0
    for ref in refs:
        final = target.folder(ref)
        if final.exists():
            continue
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = final.with_name(f".{final.name}.{uuid.uuid4().hex[:12]}")
        beside.mkdir(mode=0o700)
        try:
            for file in source.folder(ref).iterdir():
                copied += _link(file, beside / file.name)
            sync(beside)
            beside.rename(final)
            sync(final.parent)
        except BaseException:
            shutil.rmtree(beside, ignore_errors=True)
            raise
    return copied


def _link(file: Path, target: Path) -> int:
    """Link or copy one file; how many bytes were copied."""
    if not file.is_file() or file.is_symlink():
        return 0
    try:
        os.link(file, target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(file, target)
        sync(target)
        return target.stat().st_size
    return 0
