"""Files and folders that count only if they are this user's own, in folders that others may write to.

In folders that others may write to (shared submit folders, /tmp, scratch) another user can put a folder, a
link or a pipe in the place of ours. What is opened here is neither followed nor waited for.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotOurs(PermissionError):
    """A file or folder is another user's, or not what it should be: the message names it and the fix."""

    def __init__(self, path: Path | str, what: str) -> None:
        super().__init__(errno.EPERM, f"{path} {what}", str(path))

    def __str__(self) -> str:
        return str(self.strerror)


def open_ours(path: Path | str, owner: int | None = None) -> int:
    """Open a plain file of ``owner`` (this user) to read; its descriptor.

    Raises :class:`NotOurs` for anything else, or ``OSError``.
    """
    try:
        file = open_plain(path, os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise NotOurs(path, "is a link: remove it") from None
        raise
    try:
        _check_owner(path, os.fstat(file), owner)
    except BaseException:
        os.close(file)
        raise
    return file


def open_plain(path: Path | str, flags: int = 0) -> int:
    """Open a plain file of any user to read, without waiting for the other end of a pipe; its descriptor.

    Raises :class:`NotOurs` for anything else, or ``OSError``.
    """
    file = os.open(path, _FLAGS | flags)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotOurs(path, "is not a plain file: remove it")
    return file


def only_we_write(file: int) -> bool:
    """Return whether an open file is this user's own and only this user may change it."""
    info = os.fstat(file)
    return info.st_uid == os.geteuid() and not info.st_mode & _OTHERS_WRITE


def read_ours(path: Path | str, limit: int = -1) -> bytes:
    """Read what :func:`open_ours` opens, up to ``limit`` bytes."""
    with os.fdopen(open_ours(path), "rb") as file:
        return file.read(limit)


def check_own_folder(path: Path | str) -> None:
    """Raise :class:`NotOurs` unless this is a folder of this user that no other user can write to.

    Raises ``OSError`` if there is none.
    """
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise NotOurs(path, "is not a folder: remove it")
    _check_owner(path, info)
    if info.st_mode & _OTHERS_WRITE:
        raise NotOurs(
            path, f"can be written by others (mode {stat.S_IMODE(info.st_mode):o}): chmod 700 {path}"
        )


def make_own_folder(path: Path | str) -> None:
    """Make the folder (0700), or take the one of this user that is there. Raises ``OSError``.

    :class:`NotOurs` is among the errors: another user may have put a trap in its place.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    # Also what we made: lists for access that a folder inherits can override the mode.
    info = os.lstat(path)
    if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and info.st_mode & _OTHERS:
        os.chmod(path, 0o700)
    check_own_folder(path)


def stands_for_many(uid: int) -> str:
    """Return what to tell people if ``uid`` stands for all owners that this node does not know; else ""."""
    if uid != _overflow():
        return ""
    return (
        f" (uid {uid} is shown for every owner that this node cannot tell: an NFS server squashes root or "
        "maps no users, or this is a container with a user namespace; use storage that shows your uid)"
    )


def _overflow() -> int:
    try:
        return int(Path("/proc/sys/fs/overflowuid").read_text())
    except (OSError, ValueError):
        return 65534


def _remedy(owner: int) -> str:
    if os.geteuid() == 0 and owner != 0:
        return f"run the command as that user, with 'sudo -u #{owner}'"
    return "remove it, or use another place"


def _check_owner(path: Path | str, info: os.stat_result, owner: int | None = None) -> None:
    expected = os.geteuid() if owner is None else owner
    if info.st_uid != expected:
        raise NotOurs(
            path,
            f"belongs to uid {info.st_uid}, not to uid {expected}: {_remedy(info.st_uid)}"
            + stands_for_many(info.st_uid),
        )
