"""Removes what jobs that are gone left in the node's shared memory: copies of checkpoints, above all.

What is removed belongs to users, in a folder that all may write to. So a child does it with the rights of the
owner: whatever it can be led to by links and races, the owner might have done himself. The child executes no
program: one would run in slurmd's control group as a process that the owner may trace.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks.environment import slurm_environment
from slurm_robust.model.nodefolders import PREFIX, SHARED_MEMORY, parse_folder_name
from slurm_robust.model.record import Record
from slurm_robust.util.isolate import call

MAX_NAMES = 300_000
"""At most this many names of /dev/shm are read: the kernel allows a user to make millions."""

MAX_FOLDERS = 100
"""Per user in one go: no user can keep a hook busy, or take the place of others."""

MAX_ASKED = 50
"""Jobs that Slurm is asked about in one go; users take turns."""

MAX_JOB = 2**31 - 1
"""Slurm's commands refuse higher numbers."""

# As text: re compiles it when it is first needed, which on most nodes is never.
_RUN = rb"[0-9]{1,12}"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FEW_NAMES = 1000
_LISTING_SHARE = 0.3


class AgentFolder(Record):
    """A folder that agents made."""

    name: str
    """Below the shared memory."""

    uid: int
    """Its owner."""

    gid: int
    job: int
    """The job's id, by the folder's name."""

    has_copies: bool
    """Whether the job may go on from what is in it after a requeue."""


class Swept(Record):
    """What came of a sweep."""

    removed: tuple[str, ...] = ()
    """Names of the folders that are gone now."""

    failed: dict[str, str] = {}
    """Why others are not, by name."""


class _Listing(Record):
    folders: tuple[AgentFolder, ...] = ()
    cut: str = ""
    """Why there may be more."""


def sweep_gone(config: NodeConfig, job: int, node: str, limit_s: float, shm: Path = SHARED_MEMORY) -> Swept:
    """Remove copies of jobs that are over or run without this node, for the prolog of ``job``.

    Slurm is asked only if there are any, and without its answer nothing is removed.
    """
    deadline = time.monotonic() + limit_s
    if not job:
        return Swept()
    listing = _listing(shm, lambda folder: folder.has_copies and folder.job != job, limit_s * _LISTING_SHARE)
    gone = _not_needed(config, listing.folders, job, node, limit_s / 2) if listing.folders else []
    return _remove(shm, gone, deadline, listing.cut)


def sweep_job(
    config: NodeConfig, environ: Mapping[str, str], limit_s: float, shm: Path = SHARED_MEMORY
) -> Swept:
    """Remove what the ended job left, for the epilog. Its copies stay if it comes back, or may."""
    deadline = time.monotonic() + limit_s
    job, uid = number(environ, "SLURM_JOB_ID"), number(environ, "SLURM_JOB_UID")
    listing = _listing(shm, lambda folder: (folder.job, folder.uid) == (job, uid), limit_s * _LISTING_SHARE)
    copies = [folder for folder in listing.folders if folder.has_copies]
    gone = [folder for folder in listing.folders if not folder.has_copies]
    if copies and not _comes_back(config, environ, shm, copies[0], limit_s / 3):
        gone += copies
    return _remove(shm, gone, deadline, listing.cut)


def number(environ: Mapping[str, str], name: str) -> int:
    """Return a variable of Slurm's that holds a positive number; 0 for anything else."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0


def _listing(shm: Path, is_wanted: Callable[[AgentFolder], bool], limit_s: float) -> _Listing:
    if _has_nothing_of_ours(shm):
        return _Listing()
    # In a child: the user may have mounted a file system that never answers on their folder.
    task = partial(_list, shm, is_wanted, time.monotonic() + limit_s / 2)
    answer = call({"list": lambda: msgspec.msgpack.encode(task())}, {"list": limit_s}, limit_s)["list"]
    if answer.value is None:
        return _Listing(cut=answer.error)
    return msgspec.msgpack.decode(answer.value, type=_Listing)


def _has_nothing_of_ours(shm: Path) -> bool:
    """Return True, as on most nodes; False also if that is not known after a few names."""
    try:
        with os.scandir(shm) as entries:
            names = [entry.name for entry in islice(entries, _FEW_NAMES)]
    except OSError:
        return True
    return len(names) < _FEW_NAMES and not any(name.startswith(PREFIX) for name in names)


def _list(shm: Path, is_wanted: Callable[[AgentFolder], bool], end: float) -> _Listing:
    """List at most :data:`MAX_FOLDERS` of each owner. Never root's, links, or what others own."""
    found: dict[int, list[AgentFolder]] = {}
    cut = ""
    with os.scandir(shm) as entries:
        device = os.stat(shm).st_dev
        for seen, entry in enumerate(entries):
            if seen == MAX_NAMES or time.monotonic() > end:
                cut = f"too many names: only {seen} were read"
                break
            folder = _folder(entry) if entry.name.startswith(PREFIX) else None
            if folder is None or not is_wanted(folder):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue  # It went in between.
            own = found.setdefault(status.st_uid, [])
            if status.st_dev == device and status.st_uid == folder.uid != 0 and len(own) < MAX_FOLDERS:
                own.append(msgspec.structs.replace(folder, gid=status.st_gid))
    return _Listing(folders=tuple(_in_turns(found)), cut=cut)


def _folder(entry: os.DirEntry[str]) -> AgentFolder | None:
    """Return what the name says; None if agents give no such name, or it is not a folder."""
    named = parse_folder_name(entry.name)
    if named is None or named.job_id > MAX_JOB or not entry.is_dir(follow_symlinks=False):
        return None
    return AgentFolder(name=entry.name, uid=named.uid, gid=0, job=named.job_id, has_copies=named.has_copies)


def _in_turns(found: Mapping[int, Sequence[AgentFolder]]) -> Iterator[AgentFolder]:
    """Yield the first of each user, then the second of each: a user with many does not hinder others."""
    for turn in zip_longest(*found.values()):
        yield from filter(None, turn)


def _not_needed(
    config: NodeConfig, folders: Sequence[AgentFolder], job: int, node: str, limit_s: float
) -> list[AgentFolder]:
    """Return those of jobs that Slurm says need them no more."""
    # Here, because on most nodes there is nothing to ask about.
    from slurm_robust.slurm.squeue import QueuedJob, queued_job

    end = time.monotonic() + limit_s
    slurm = slurm_environment(config, os.environ.get)

    def ask(one: int) -> QueuedJob | None:
        left_s = min(config.hooks.slurm_s, end - time.monotonic())
        return queued_job(one, environ=slurm, timeout_s=left_s) if left_s > 0 else None

    # An answer that does not know the job whose prolog this is says nothing about others either.
    if (own := ask(job)) is None or not own.state:
        return []
    # A question for each job: Slurm answers it faster than one for a list, and no number spoils the others.
    known = {one: ask(one) for one in islice(dict.fromkeys(folder.job for folder in folders), MAX_ASKED)}

    def is_needed(folder: AgentFolder) -> bool:
        seen = known.get(folder.job)
        if seen is None or seen.has_ended:
            return seen is None
        # A job that runs without this node cannot reach them, and has gone on from what it could reach:
        # should it ever come back to this node, it restores something newer.
        return seen.state != "RUNNING" or not node or not seen.nodes or node in seen.nodes

    return [folder for folder in folders if not is_needed(folder)]


def _comes_back(
    config: NodeConfig, environ: Mapping[str, str], shm: Path, copies: AgentFolder, limit_s: float
) -> bool:
    """Return whether the job comes back. Slurm calls it COMPLETING now, whether over or requeued.

    But a requeue has raised the number of its restarts already, and the agent has left the number with
    which this run began.
    """
    task = partial(_as_owner, copies, partial(_run_of, shm / copies.name))
    began = call({"run": task}, {"run": limit_s}, limit_s)["run"].value
    if not began:
        return True
    count: int | None
    if environ.get("SLURM_JOB_RESTART_COUNT", "").isdigit():
        count = int(environ["SLURM_JOB_RESTART_COUNT"])
    else:
        from slurm_robust.slurm.squeue import restart_count

        slurm = slurm_environment(config, os.environ.get)
        count = restart_count(copies.job, environ=slurm, timeout_s=min(config.hooks.slurm_s, limit_s))
    return count is None or count > int(began)


def _run_of(folder: Path) -> bytes:
    """Return the number that the agent left; empty if it is not a number."""
    fd = os.open(folder / "run", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    text = os.read(fd, 12)
    return text if re.fullmatch(_RUN, text) else b""


def _remove(shm: Path, folders: Sequence[AgentFolder], deadline: float, cut: str) -> Swept:
    left_s = max(0.0, deadline - time.monotonic())
    tasks = {
        folder.name: partial(_as_owner, folder, partial(_delete, shm / folder.name)) for folder in folders
    }
    answers = call(tasks, dict.fromkeys(tasks, left_s), left_s) if tasks else {}
    failed = {name: answer.error for name, answer in answers.items() if answer.value is None}
    removed = tuple(name for name in answers if name not in failed)
    return Swept(removed=removed, failed=failed | ({str(shm): cut} if cut else {}))


def _as_owner(folder: AgentFolder, task: Callable[[], bytes]) -> bytes:
    """Become the owner, in a child: there is no way back, and the owner's other processes cannot trace it."""
    os.setgroups([])
    os.setresgid(folder.gid, folder.gid, folder.gid)
    os.setresuid(folder.uid, folder.uid, folder.uid)
    # The kernel gives these files to root while a process that has changed its owner cannot be traced.
    if os.stat("/proc/self/stat").st_uid != 0:
        raise RuntimeError("users could trace this process: set the sysctl fs.suid_dumpable to 0 or 2")
    return task()


def _delete(path: Path) -> bytes:
    """Delete the folder with all that is in it. Raises ``OSError`` for what the owner may not remove."""
    top = os.open(path, _OPEN_FOLDER)
    moved = 0
    while names := _some_names(top):
        for name, is_folder in names:
            if is_folder:
                moved = _flatten(top, name, moved)
            else:
                os.unlink(name, dir_fd=top)
    os.rmdir(path)
    if os.path.lexists(path):
        raise RuntimeError("made again while it was removed")
    return b"gone"


def _flatten(top: int, name: str, moved: int) -> int:
    """Remove a folder in ``top``; its own folders move up beside it, so that no depth is too much."""
    inner = os.open(name, _OPEN_FOLDER, dir_fd=top)
    try:
        if os.fstat(inner).st_dev != os.fstat(top).st_dev:
            raise RuntimeError(f"{name}: another file system is mounted there")
        while names := _some_names(inner):
            for below, is_folder in names:
                if is_folder:
                    moved += 1
                    os.rename(below, f".sweep-{os.getpid()}-{moved}", src_dir_fd=inner, dst_dir_fd=top)
                else:
                    os.unlink(below, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
    return moved


def _some_names(folder: int) -> list[tuple[str, bool]]:
    """Return the names in an open folder, and whether they are folders: as many as memory and time allow."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _FEW_NAMES)]
