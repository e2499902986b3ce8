"""Mounts: what is mounted, what should be, and which of the node's own file systems are full.

Read from ``/proc/self/mountinfo`` and ``/etc/fstab``. Only :func:`without_room` asks a file system, and
none that may hang.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from slurm_robust.kernel.host import Host
from slurm_robust.model.record import Record

NETWORK = frozenset((
    "nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "pvfs2", "orangefs", "glusterfs",
    "afs", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ocfs2", "gfs2", "cvmfs", "fuse",
))  # fmt: skip
"""Kinds of file systems that something beyond this kernel has to answer for; also ``fuse.*``."""

NEVER_WRITABLE = frozenset(("iso9660", "squashfs", "erofs", "cramfs", "romfs", "udf", "cvmfs", "fuse.cvmfs2"))
"""Kinds that are read-only whether their line in ``/etc/fstab`` says so or not."""

# What the kernel makes up itself; no user's data are there.
_PSEUDO = frozenset((
    "swap", "none", "proc", "sysfs", "devpts", "devtmpfs", "securityfs", "debugfs", "tracefs", "configfs",
    "hugetlbfs", "mqueue", "efivarfs", "bpf", "cgroup", "cgroup2", "pstore", "rpc_pipefs", "binfmt_misc",
    "fusectl", "autofs",
))  # fmt: skip


class Mounted(Record):
    """One mount."""

    path: str
    kind: str
    source: str
    readonly: bool
    owner: int = 0
    """User id of who made it, as FUSE tells; 0 for all others."""

    @property
    def is_network(self) -> bool:
        """Whether it may hang for a reason outside of this node."""
        return is_network(self.kind)

    @property
    def is_on_disk(self) -> bool:
        """Whether it is a file system of this node's disks. Images behind loop devices are meant to be so."""
        has_device = self.source.startswith("/dev/") and not self.source.startswith("/dev/loop")
        return not self.is_network and (has_device or self.kind == "zfs" or self.path == "/")


class Declared(Record, omit_defaults=True):
    """A line of ``/etc/fstab``: to be mounted at boot."""

    kind: str = ""
    readonly: bool = False
    optional: bool = False
    """``nofail``, on this node's disk."""


def is_network(kind: str) -> bool:
    """Return whether a kind of file system needs another machine or process to answer."""
    return kind in NETWORK or kind.startswith("fuse.")


def mounted(host: Host) -> tuple[Mounted, ...]:
    """Return all mounts of this mount namespace, in the order in which they were made. Raises ``OSError``."""
    lines = host.read("/proc/self/mountinfo", 2**22).splitlines()
    return tuple(entry for line in lines if (entry := parse(line)))


def parse(line: str) -> Mounted | None:
    """Parse one line of the table; None for anything else."""
    # 36 35 98:0 / /mnt rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    left, _, right = line.partition(" - ")
    front, back = left.split(" "), right.split(" ")
    if len(front) < 6 or len(back) < 3:
        return None
    options = {*front[5].split(","), *(of_all := back[2].split(","))}
    owner = next((option[8:] for option in of_all if option.startswith("user_id=")), "0")
    return Mounted(
        path=_plain(front[4]),
        kind=back[0],
        source=_plain(back[1]),
        readonly="ro" in options,
        owner=int(owner) if owner.isdecimal() else 0,
    )


def declared(host: Host) -> dict[str, Declared]:
    """Return what is mounted at boot, by path. What is only mounted on use or by hand is left out."""
    found: dict[str, Declared] = {}
    for line in host.read_or("/etc/fstab").splitlines():
        fields = line.split()
        if line.lstrip().startswith("#") or len(fields) < 3:
            continue
        path, kind = _plain(fields[1]), fields[2]
        options = set(fields[3].split(",")) if len(fields) > 3 else set()
        is_bind = bool(options & {"bind", "rbind"})
        if not path.startswith("/") or (kind in _PSEUDO and not is_bind):
            continue
        if options & {"noauto", "x-systemd.automount"}:
            continue
        found[without_end(path)] = Declared(
            kind=kind, readonly="ro" in options, optional="nofail" in options and not is_network(kind)
        )
    return found


def automatic(mounts: Sequence[Mounted]) -> frozenset[str]:
    """Mount points at or below one of the automounter, which come and go with their use."""
    roots = [entry.path for entry in mounts if entry.kind == "autofs"]
    return frozenset(entry.path for entry in mounts if any(is_below(entry.path, root) for root in roots))


def holding(path: str, mounts: Sequence[Mounted]) -> Mounted | None:
    """Return the mount in which a path lies, by its text alone: no link is followed."""
    best: Mounted | None = None
    for entry in mounts:
        # If two are at the same place, the later one hides the other.
        if is_below(path, entry.path) and (best is None or len(entry.path) >= len(best.path)):
            best = entry
    return best


def is_below(path: str, folder: str) -> bool:
    """Return whether a path is a folder or in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns is for this path."""
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _plain(text: str) -> str:
    """Decode blanks and such, which are written as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def without_end(path: str) -> str:
    """Return the path without slashes at its end, as the kernel writes it."""
    return path.rstrip("/") or "/"


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
