"""The few system calls that Python 3.10 does not offer. Linux only, root only."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x4_0000
MNT_DETACH = 0x2

_PR_SET_NAME = 15


def _libc() -> ctypes.CDLL:
    # Opened on use: nothing runs at import. dlopen of a loaded library costs microseconds.
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process (for CLONE_NEWPID: its future children) into new namespaces. Raises ``OSError``."""
    _check(_libc().unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind ``fd``. Raises ``OSError``."""
    _check(_libc().setns(ctypes.c_int(fd), ctypes.c_int(kind)), "setns")


def mount(source: str, target: str, kind: str | None, flags: int = 0, options: str = "") -> None:
    """Call mount(2). Raises ``OSError`` that names source and target."""
    result = _libc().mount(
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _check(result, f"mount {source} on {target}")


def unmount(target: str) -> None:
    """Detach what is mounted on ``target``, also while in use. Raises ``OSError``."""
    _check(_libc().umount2(target.encode(), ctypes.c_int(MNT_DETACH)), f"unmount {target}")


def set_comm(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show for this process (15 bytes)."""
    _check(_libc().prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0), "prctl(PR_SET_NAME)")


@dataclass(frozen=True)
class MountSpec:
    """One mount to be made."""

    target: str
    source: str = ""
    """For a bind; empty for a tmpfs."""

    read_only: bool = False
    options: str = ""


def reaped() -> Iterator[int]:
    """Yield the children that have ended, until none is left."""
    with suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            yield pid


def fork_into_pid_namespace() -> int:
    """Call ``os.fork`` so that the child is PID 1 of a new PID namespace and a child of this process.

    The caller's own namespace for later children stays as it was.
    """
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(CLONE_NEWPID)
        child = os.fork()
        if child != 0:
            setns(own, CLONE_NEWPID)
        return child
    finally:
        os.close(own)


def apply_mounts(mounts: tuple[MountSpec, ...]) -> None:
    """Make all mounts in their order. Sources are what they were before the first one.

    Must run in a mount namespace of its own with private propagation. Raises ``OSError``.
    """
    sources: list[int] = []
    for item in mounts:
        # Held open, since an earlier mount may hide the path of a later source.
        sources.append(os.open(item.source, os.O_PATH | os.O_CLOEXEC) if item.source else -1)
    try:
        for item, fd in zip(mounts, sources, strict=True):
            _apply(item, fd)
    finally:
        for fd in sources:
            if fd >= 0:
                os.close(fd)


def _apply(item: MountSpec, fd: int) -> None:
    if fd < 0:
        mount("tmpfs", item.target, "tmpfs", MS_NOSUID | MS_NODEV, item.options)
        return
    source = f"/proc/self/fd/{fd}"
    if not os.path.exists(item.target):
        # Only ever on a tmpfs of ours: the plan puts one above every target that may be missing.
        if os.path.isdir(source):
            os.makedirs(item.target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(item.target), exist_ok=True)
            os.close(os.open(item.target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    mount(source, item.target, None, MS_BIND | MS_REC)
    if item.read_only:
        mount("none", item.target, None, MS_BIND | MS_REMOUNT | MS_RDONLY)
