"""The owner of the job's folder: no other user may put another one in its place while the job runs.

Agents and controllers that start later take their orders from that folder, and all write to it by its path. A
user who may rename it, or a folder above it, can have them run anything as the job's user. So each folder
from the job's up to the one in which the job was submitted must be this user's or root's; and if all users
may write to one, it must have the sticky bit, with which only owners rename. What is higher up, the site has
arranged.

A group that may write to a folder is only warned of: it is made of people whom an administrator has chosen,
and who may exchange what is there, mostly the job's script, whatever we do about the job's own folder.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.model.job import JOBS_FOLDER
from slurm_robust.model.record import Record
from slurm_robust.util.ours import make_own_folder, stands_for_many
from slurm_robust.util.trust import group_name, is_private, user_name

_ROOT_MODE = 0o755


class PathOwner(Record):
    """What is known of a folder on the way to the job's, or of a link there."""

    path: Path
    owner: int
    mode: int
    group: int = 0
    is_private: bool = False
    """The folder's group is the user's own, with no other user in it."""
    is_job: bool = False
    """It is the job's."""


class Exchangeable(Record):
    """Who could replace the job's folder, and what to do about it."""

    text: str
    fix: str
    is_job: bool
    is_chosen: bool = False
    """Only people whom the owner or the site has let in, above the job's own folder."""


def judge(folder: PathOwner, uid: int) -> Exchangeable | None:
    """Return whether others than ``uid`` and root could replace a folder in this one. Pure."""
    elsewhere = (
        "submit from a folder of your own, or give one: --job-dir DIR, or job_dir in the configuration"
    )
    if folder.owner not in (0, uid):
        text = f"{folder.path} belongs to {user_name(folder.owner)}, who could replace the job's folder"
        text += stands_for_many(folder.owner)
        return Exchangeable(text=text, fix=elsewhere, is_job=folder.is_job)
    if stat.S_ISLNK(folder.mode) or folder.mode & stat.S_ISVTX:
        return None
    if folder.mode & stat.S_IWOTH:
        who = "everybody"
    elif folder.mode & stat.S_IWGRP and not folder.is_private:
        who = f"group {group_name(folder.group)}"
    else:
        return None
    mode = f"{stat.S_IMODE(folder.mode):04o}"
    text = f"{who} may write to {folder.path} (mode {mode}), and so replace the job's folder"
    by_mode = (
        f"chmod +t {folder.path} (others may write there as before, but rename only what is theirs), or "
    )
    return Exchangeable(
        text=text,
        fix=(by_mode if folder.owner == uid else "") + elsewhere,
        is_job=folder.is_job,
        is_chosen=not folder.mode & stat.S_IWOTH and not folder.is_job,
    )


def folders(job: Path, submitted: Path) -> Iterator[PathOwner]:
    """Yield the job's folder and those above it up to ``submitted`` that exist. Raises ``OSError``.

    As they are named, and the targets of links. If ``job`` is not below ``submitted``: up to two above it.
    """
    seen: set[Path] = set()
    named = Path(os.path.abspath(job)), Path(os.path.abspath(submitted))
    real = Path(os.path.realpath(job)), Path(os.path.realpath(submitted))
    for path, top in (named, real):
        upper = top if path.is_relative_to(top) else path.parent.parent
        for number, folder in enumerate((path, *path.parents)):
            if folder not in seen and (found := _facts(folder, is_job=number == 0)) is not None:
                yield found
            seen.add(folder)
            if folder == upper:
                break


def make(job: Path) -> None:
    """Make the job's folder (0700), and what lacks above it (0755 at most). Raises ``OSError``."""
    for folder in reversed(job.parents):
        if not folder.exists():
            folder.mkdir(mode=_ROOT_MODE, exist_ok=True)
    make_own_folder(job)


def mend(job: Path) -> None:
    """Close what is the user's own and was left open, by an umask of 002 say. Raises ``OSError``.

    The job's folder to all others. The one of all jobs gets the sticky bit if others may write to it: they
    go on making folders there, and exchange only their own. A folder that the user has named stays as it is.
    """
    for folder, others, closed in ((job, 0o077, 0o700), (job.parent, 0o022, None)):
        if folder != job and folder.name != JOBS_FOLDER:
            continue
        try:
            info = os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            continue
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and mode & others:
            folder.chmod(mode | stat.S_ISVTX if closed is None else closed)


def _facts(path: Path, *, is_job: bool) -> PathOwner | None:
    try:
        info = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return PathOwner(
        path=path,
        owner=info.st_uid,
        mode=info.st_mode,
        group=info.st_gid,
        is_private=bool(info.st_mode & stat.S_IWGRP) and is_private(path, info.st_gid, {os.geteuid()}),
        is_job=is_job,
    )
