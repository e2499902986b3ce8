"""Reads what a job recorded about this node, for its epilog. The file is the user's: data, never an order.

A child that has become the job's user reads it, so links, races and root squash give no one more than the
user has anyway; the child is left behind when storage does not answer. What is read counts only if it is
about this node and this job, and all that follows from it is a test.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec import structs

from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import MAX_EVIDENCE, MAX_TEXT, Suspect
from slurm_robust.model.record import UNREADABLE, Record
from slurm_robust.util.isolate import call
from slurm_robust.util.text import ascii_line

READ_S = 3.0
MAX_BYTES = 64 * 1024
OLDEST_S = 60 * 86400.0
"""For a job whose begin Slurm does not tell: no job is believed to run for longer."""

CLOCKS_S = 300.0
"""By how much the clocks of two nodes may differ."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_FIELD = re.compile(r"\{([a-z_]+)\}")
_OF_LINKS = {
    errno.ELOOP: "it is a link, which is not followed",
    errno.ENOTDIR: "it is not a folder, or a link, which is not followed",
}
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Ignored(Record):
    """A file was there that does not count."""

    why: str


class EndedJob(Record):
    """The job as Slurm describes it to its epilog."""

    job_id: int
    uid: int
    gid: int
    user: str
    work_dir: str
    started: float | None = None
    """Seconds since 1970; None on 22.05."""


def read_suspect(
    config: NodeConfig, environ: Mapping[str, str], node: str, now: float
) -> Suspect | Ignored | None:
    """Return what the ended job recorded about ``node``; None if it recorded nothing. Raises nothing.

    ``environ`` is that of the epilog, ``now`` seconds since 1970. Takes :data:`READ_S` at most.
    """
    job = job_of(environ)
    if not config.suspects.enabled or job is None or not _NODE.fullmatch(node):
        return None
    path = ("suspects", f"{node}.json")
    task = partial(read_as_user, job, config.suspects.job_dirs, path, MAX_BYTES)
    answer = call({"suspect": task}, {"suspect": READ_S}, READ_S)["suspect"]
    if answer.value is None:
        return Ignored(why=ascii_line(answer.error, MAX_TEXT))
    return judge(answer.value, job, node, now) if answer.value else None


def job_of(environ: Mapping[str, str]) -> EndedJob | None:
    """Return the job of an epilog; None outside of one, and for jobs of root, whose word needs no check."""
    numbers = [environ.get(f"SLURM_JOB_{name}", "") for name in ("ID", "UID")]
    if not all(re.fullmatch(r"[0-9]{1,10}", number) for number in numbers) or int(numbers[1]) == 0:
        return None
    gid = environ.get("SLURM_JOB_GID", "")
    started = environ.get("SLURM_JOB_START_TIME", "")
    return EndedJob(
        job_id=int(numbers[0]),
        uid=int(numbers[1]),
        gid=int(gid) if re.fullmatch(r"[1-9][0-9]{0,9}", gid) else int(numbers[1]),
        user=environ.get("SLURM_JOB_USER", ""),
        work_dir=environ.get("SLURM_JOB_WORK_DIR", ""),
        started=float(started) if re.fullmatch(r"[0-9]{1,12}", started) else None,
    )


def judge(data: bytes, job: EndedJob, node: str, now: float) -> Suspect | Ignored:
    """Return the content with texts of one line of printable ASCII each, if it counts. Pure."""
    try:
        said = msgspec.json.decode(data, type=Suspect)
    except UNREADABLE as error:
        return Ignored(why=ascii_line(f"not the record of a suspect: {error}", MAX_TEXT))
    if said.node != node:
        return Ignored(why="about another node")
    if said.job_id != job.job_id:
        return Ignored(why="of another job")
    earliest = now - OLDEST_S if job.started is None else job.started - CLOCKS_S
    if not earliest <= said.t <= now + CLOCKS_S:
        return Ignored(why="not from the time of this run of the job")
    return structs.replace(
        said,
        reason=ascii_line(said.reason, MAX_TEXT),
        symptom=ascii_line(said.symptom, MAX_TEXT),
        evidence=tuple(ascii_line(line, MAX_TEXT) for line in said.evidence[:MAX_EVIDENCE]),
    )


# -- in the child -----------------------------------------------------------------------------------------


def read_as_user(job: EndedJob, templates: tuple[str, ...], path: tuple[str, ...], most: int) -> bytes:
    """Return the content of a file in the job's directory, the first that there is; nothing without one.

    ``path``: its folders there and its name; ``most``: bytes. Changes the rights of this process for good.
    Raises ``RuntimeError``.
    """
    become(job)
    below = (str(job.job_id), *path[:-1])
    for folder in places(templates, job):
        try:
            data = _read(folder, below, path[-1], job.uid, most)
        except FileNotFoundError:
            continue
        except OSError as error:
            at = folder if error.filename == folder else f"{error.filename} below {folder}"
            why = _OF_LINKS.get(error.errno or 0, error.strerror)
            raise RuntimeError(f"{at} cannot be read: {why}") from error
        if not data:
            raise RuntimeError("empty")
        return data
    return b""


def places(templates: tuple[str, ...], job: EndedJob) -> tuple[str, ...]:
    """Return the folders in which the job's directory may be. What is filled in is not expanded again."""
    values = {"work_dir": job.work_dir, "user": job.user, "uid": str(job.uid), "job_id": str(job.job_id)}
    found = []
    for template in templates:
        names = set(_FIELD.findall(template))
        if "home" in names and "home" not in values:
            values["home"] = _home(job.uid)
        if all(values.get(name) for name in names):
            path = _FIELD.sub(lambda match: values[match[1]], template)
            if path.startswith("/") and "\0" not in path:
                found.append(path)
    return tuple(found)


def become(job: EndedJob) -> None:
    """Take the rights of the job's user, for good."""
    os.setgroups(_groups(job))
    os.setresgid(job.gid, job.gid, job.gid)
    os.setresuid(job.uid, job.uid, job.uid)


def _groups(job: EndedJob) -> list[int]:
    """Return the user's own groups, for project folders; never root's."""
    try:
        return [g for g in os.getgrouplist(pwd.getpwuid(job.uid).pw_name, job.gid) if g != 0]
    except KeyError:
        return [job.gid]


def _home(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        return ""


def _read(folder: str, below: tuple[str, ...], name: str, uid: int, most: int) -> bytes:
    """Read ``folder/below.../name``, following no link below ``folder``. Raises OSError, RuntimeError."""
    fd = open_below(folder, below, uid)
    try:
        # Neither a pipe nor a device is waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        file = os.open(name, flags, dir_fd=fd)
    finally:
        os.close(fd)
    try:
        return _content(file, uid, most)
    finally:
        os.close(file)


def open_below(folder: str, below: tuple[str, ...], uid: int) -> int:
    """Open the folder ``folder/below...``, of which no part below ``folder`` is a link or another user's.

    Raises ``OSError``, ``RuntimeError``.
    """
    fd = os.open(folder, _FOLDER)
    for part in below:
        try:
            following = open_own(part, fd, uid)
        finally:
            os.close(fd)
        fd = following
    return fd


def open_own(name: str, within: int, uid: int) -> int:
    """Open the user's own folder of that name, no link. Raises ``OSError``, ``RuntimeError``."""
    fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=within)
    if os.fstat(fd).st_uid == uid:
        return fd
    os.close(fd)
    raise RuntimeError(f"{name} is not a folder of the job's user")


def _content(file: int, uid: int, most: int) -> bytes:
    before = os.fstat(file)
    if not stat.S_ISREG(before.st_mode):
        raise RuntimeError("not a regular file")
    if before.st_uid != uid:
        raise RuntimeError("not the job user's own file")
    if before.st_nlink != 1:
        raise RuntimeError("it has a second name")
    if before.st_size > most:
        raise RuntimeError(f"larger than {most} bytes")
    data = b""
    while len(data) <= most and (chunk := os.read(file, most + 1 - len(data))):
        data += chunk
    after = os.fstat(file)
    same = all(
        getattr(before, field) == getattr(after, field)
        for field in ("st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink")
    )
    if not same or len(data) != before.st_size:
        raise RuntimeError("it changed while it was read")
    return data
