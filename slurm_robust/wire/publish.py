"""Files that appear whole or not at all, and only once, also on NFS."""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def publish_once(path: Path, content: bytes) -> bool:
    """Create ``path`` (0600) with ``content``; False when it already exists. Raises ``OSError``.

    Written beside, fsynced, then linked: link(2) is the one operation that is exclusive and brings
    the whole content on NFS of any version.
    """
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(beside, path)
        except FileExistsError:
            # An NFS server whose first answer was lost refuses the repeated request: the link is ours.
            if os.stat(beside).st_nlink != 2:
                return False
        _sync_folder(path.parent)
        return True
    finally:
        beside.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
