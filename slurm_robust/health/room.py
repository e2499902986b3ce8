"""Which of this node's own file systems have no room left; none is asked that may hang."""

from __future__ import annotations

import os
from collections.abc import Iterable

from slurm_robust.health.host import Host
from slurm_robust.health.mountinfo import NEVER_WRITABLE, Mounted, holding, mounted

# Ext4 and XFS refuse a large write while single blocks are still free.
NO_ROOM_B = 2**20


def without_room(host: Host, paths: Iterable[str], least_b: int = NO_ROOM_B) -> tuple[str, ...]:
    """Mount points of those that hold ``paths`` (absolute) and have less than ``least_b`` bytes or no inode.

    Only disks and memory of this node count: others have the same trouble with what they share.
    """
    try:
        mounts = mounted(host)
    except OSError:
        return ()
    entries = (holding(path, mounts) for path in paths)
    own = dict.fromkeys(entry.path for entry in entries if entry is not None and _is_own(entry))
    return tuple(path for path in own if _is_full(host, path, least_b))


def _is_own(entry: Mounted) -> bool:
    is_written = not entry.readonly and entry.kind not in NEVER_WRITABLE
    return is_written and (entry.is_on_disk or entry.kind == "tmpfs")


def _is_full(host: Host, path: str, least_b: int) -> bool:
    try:
        found = os.statvfs(host.path(path))
    except OSError:
        return False
    # What the kernel makes up has no blocks, and some file systems no fixed number of inodes.
    has_no_inode = found.f_files > 0 and found.f_favail == 0
    return found.f_blocks > 0 and (found.f_bavail * found.f_frsize < least_b or has_no_inode)
