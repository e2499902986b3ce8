"""Whether root may run what lies at a path: who could decide what is found there."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grp import struct_group

_MAX_LINKS = 40
"""As the kernel has it."""

_ACL = "system.posix_acl_access"

ROOT = (0,)
_PACKAGES = ("site-packages", "dist-packages")


def distrust(path: str, owners: Collection[int] = ROOT) -> str:
    """Return why others than ``owners`` decide what is found at the absolute ``path``; "" if they do not.

    Every folder is checked, and every link with every folder on the way to its target: the owner of a link in
    the middle can turn it, however well what it leads to now is kept.
    """
    parts = [part for part in path.split("/") if part]
    here, links = "/", 0
    try:
        while True:
            found = os.lstat(here)
            if why := _open_to_others(here, found, owners):
                return why
            if stat.S_ISLNK(found.st_mode):
                links += 1
                if links > _MAX_LINKS:
                    return f"{path} leads through too many links"
                target = os.readlink(here)
                parts = [part for part in target.split("/") if part] + parts
                here = "/" if target.startswith("/") else os.path.dirname(here)
            if not parts:
                return ""
            part = parts.pop(0)
            here = os.path.dirname(here) if part == ".." else os.path.join(here, part)
    except OSError as error:
        return f"{here}: {error.strerror}"


def distrust_folder(folder: str) -> str:
    """Return the same for all that a folder holds; "" also if there is no such folder.

    Python's own folder holds those of installed packages, of which a virtual environment uses none: a folder
    of packages counts if it is named itself.
    """
    if not os.path.isdir(folder):
        return ""
    if why := distrust(folder):
        return why
    # No link is followed on the way down; each is checked itself.
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _PACKAGES]
        for path in (os.path.join(place, name) for name in (*folders, *files)):
            try:
                found = os.lstat(path)
            except FileNotFoundError:
                continue  # it has just gone
            is_link = stat.S_ISLNK(found.st_mode)
            if why := distrust(path) if is_link else _open_to_others(path, found, ROOT):
                return why
    return ""


def _open_to_others(path: str, found: os.stat_result, owners: Collection[int]) -> str:
    if found.st_uid not in owners:
        return f"{path} does not belong to root, but to uid {found.st_uid}"
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return ""  # Links have no mode; in a folder like /tmp no user can replace what is another's.
    if found.st_mode & stat.S_IWOTH:
        return f"{path} can be written by others"
    if found.st_mode & stat.S_IWGRP and not is_private(path, found.st_gid, owners):
        return f"{path} can be written by group {group_name(found.st_gid)}"
    return ""


def is_private(path: str | os.PathLike[str], group: int, owners: Collection[int]) -> bool:
    """Return whether what the mode of ``path`` lets its group do, it lets only ``owners`` do.

    So it is if the group has the name of one of them and no other member: many sites give each user such
    a group, and an umask of 002. With an access list, the group's bits are a limit for all in the list.
    """
    names = set()
    for owner in owners:
        try:
            names.add(pwd.getpwuid(owner).pw_name)
        except KeyError:
            pass
    found = _group(group)
    if found is None or found.gr_name not in names or not names.issuperset(found.gr_mem):
        return False
    return not _has_list(path)


def group_name(group: int) -> str:
    """Return its name, or its number."""
    found = _group(group)
    return f"gid {group}" if found is None else found.gr_name


def _group(group: int) -> struct_group | None:
    """Return what the system knows of a group; a directory service may be asked."""
    import grp  # hooks hardly ever meet what a group may write to

    try:
        return grp.getgrgid(group)
    except KeyError:
        return None


def user_name(uid: int) -> str:
    """Name and number, or the number alone."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _has_list(path: str | os.PathLike[str]) -> bool:
    try:
        return bool(os.getxattr(path, _ACL))
    except OSError:
        return False  # none, or none of this kind on this file system
