"""Removes what jobs that are gone left in the node's shared memory: copies of checkpoints, above all.

What is removed belongs to users, in a folder where all may write. So a child does it with the rights of the
owner: whatever it can be led to by links and races, the owner might have done himself.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from slurm_robust.config.node import NodeConfig
from slurm_robust.health.isolate import call
from slurm_robust.model.record import Record

SHARED_MEMORY = Path("/dev/shm")
MOST = 500
"""Folders in one go: nobody can keep a hook busy."""

_NAME = re.compile(r"srobust-([0-9]{1,10})-([0-9]{1,10})-[A-Za-z0-9_.-]+")
_COPIES = "-copies"
_RUN = re.compile(rb"[0-9]{1,12}")


class Folder(Record):
    """One that agents made. ``path`` is below the shared memory; ``uid`` and ``job`` are from its name."""

    path: Path
    uid: int
    gid: int
    job: int

    @property
    def has_copies(self) -> bool:
        """Whether the job may go on from what is in it after a requeue."""
        return self.path.name.endswith(_COPIES)


class Swept(Record):
    """Names of the folders that are gone now, and why others are not."""

    removed: tuple[str, ...] = ()
    failed: dict[str, str] = {}


def sweep_gone(config: NodeConfig, job: int, node: str, limit_s: float, shm: Path = SHARED_MEMORY) -> Swept:
    """For the prolog of ``job``: removes copies of jobs that are over, or that run without this node.

    Slurm is asked only where there are any, and without its answer nothing is removed.
    """
    deadline = time.monotonic() + limit_s
    found = [folder for folder in _folders(shm) if folder.has_copies and folder.job != job]
    if not found or not job:
        return Swept()
    # Here, because on most nodes there is nothing to ask about.
    from slurm_robust.node.steward import slurm_environment
    from slurm_robust.slurm.glance import glance

    asked = sorted({job, *(folder.job for folder in found)})
    known = glance(
        asked,
        environ=slurm_environment(config, os.environ.get),
        timeout_s=min(config.hooks.slurm_s, limit_s / 2),
    )
    # An answer that does not know the job whose prolog this is says nothing about others either.
    if known is None or job not in known:
        return Swept()

    def is_needed(folder: Folder) -> bool:
        seen = known.get(folder.job)
        if seen is None or seen.has_ended:
            return False
        # A job that runs without this node cannot reach them, and has gone on from what it could reach:
        # should it ever come back to this node, it restores something newer.
        return seen.state != "RUNNING" or not node or not seen.nodes or node in seen.nodes

    return _remove([folder for folder in found if not is_needed(folder)], deadline)


def sweep_job(
    config: NodeConfig, environ: Mapping[str, str], limit_s: float, shm: Path = SHARED_MEMORY
) -> Swept:
    """For the epilog: removes what the ended job left. Its copies stay if it comes back, or may."""
    deadline = time.monotonic() + limit_s
    job, uid = number(environ, "SLURM_JOB_ID"), number(environ, "SLURM_JOB_UID")
    found = [folder for folder in _folders(shm) if (folder.job, folder.uid) == (job, uid)]
    copies = [folder for folder in found if folder.has_copies]
    gone = [folder for folder in found if not folder.has_copies]
    if copies and not _comes_back(config, environ, job, copies[0], limit_s / 2):
        gone += copies
    return _remove(gone, deadline)


def number(environ: Mapping[str, str], name: str) -> int:
    """A variable of Slurm's that holds a positive number; 0 for anything else."""
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else 0


def _folders(shm: Path) -> list[Folder]:
    """At most :data:`MOST`. Never root's, links, other file systems, or what belongs to another user."""
    found: list[Folder] = []
    try:
        device = os.stat(shm).st_dev
        names = sorted(os.listdir(shm))
    except OSError:
        return []
    for name in names:
        match = _NAME.fullmatch(name)
        if match is None or len(found) == MOST:
            continue
        try:
            status = os.lstat(shm / name)
        except OSError:
            continue
        uid = int(match[1])
        if stat.S_ISDIR(status.st_mode) and status.st_dev == device and status.st_uid == uid != 0:
            found.append(Folder(path=shm / name, uid=uid, gid=status.st_gid, job=int(match[2])))
    return found


def _comes_back(
    config: NodeConfig, environ: Mapping[str, str], job: int, copies: Folder, limit_s: float
) -> bool:
    """Slurm calls every job COMPLETING now, whether it is over or requeued.

    But a requeue has raised the number of its restarts already, and the agent has left the number with
    which this run began.
    """
    task = partial(_as_owner, copies, partial(_run_of, copies.path))
    began = call({"run": task}, {"run": limit_s}, limit_s)["run"].value
    if not began:
        return True
    count: int | None
    if environ.get("SLURM_JOB_RESTART_COUNT", "").isdigit():
        count = int(environ["SLURM_JOB_RESTART_COUNT"])
    else:
        from slurm_robust.node.steward import slurm_environment
        from slurm_robust.slurm.glance import restarts

        slurm = slurm_environment(config, os.environ.get)
        count = restarts(job, environ=slurm, timeout_s=min(config.hooks.slurm_s, limit_s))
    return count is None or count > int(began)


def _run_of(folder: Path) -> bytes:
    """The number that the agent left; empty if it is none."""
    fd = os.open(folder / "run", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    text = os.read(fd, 12)
    return text if _RUN.fullmatch(text) else b""


def _remove(folders: Sequence[Folder], deadline: float) -> Swept:
    left_s = max(0.0, deadline - time.monotonic())
    tasks = {
        folder.path.name: partial(_as_owner, folder, partial(_delete, folder.path)) for folder in folders
    }
    answers = call(tasks, dict.fromkeys(tasks, left_s), left_s)
    failed = {name: answer.error for name, answer in answers.items() if answer.value is None}
    return Swept(removed=tuple(name for name in answers if name not in failed), failed=failed)


def _as_owner(folder: Folder, task: Callable[[], bytes]) -> bytes:
    """In a child: there is no way back."""
    os.setgroups([])
    os.setresgid(folder.gid, folder.gid, folder.gid)
    os.setresuid(folder.uid, folder.uid, folder.uid)
    return task()


def _delete(path: Path) -> bytes:
    # rm(1) follows no links, stays on one file system, and is much faster than Python on a large tree.
    words = ["rm", "-rf", "--one-file-system", "--", str(path)]
    status = os.waitpid(os.posix_spawn("/bin/rm", words, {}), 0)[1]
    if status != 0:
        raise RuntimeError(f"rm ended with {os.waitstatus_to_exitcode(status)}")
    return b"gone"
