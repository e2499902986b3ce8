"""Tells a job's owner what prolog and epilog saw of the job's nodes, without any right on the node.

The prolog keeps what it saw in the state folder, which is root's: the job's folder need not exist yet. The
epilog compares, and a child that has become the job's user, for good and untraceable, writes one file into
the job's directory. So root never writes to a place in which a user could have put a link, on a quota or past
a root squash: whatever the folder is, the child can do no more than the user can. A job without such a
directory gets no file. Nothing that root does depends on the file afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks.seen import driver_errors, seen_by, take
from slurm_robust.hooks.suspects import EndedJob, Ignored, become, job_of, open_below, open_own, places
from slurm_robust.model.findings import MAX_TEXT
from slurm_robust.model.nodeseen import MAX_BYTES, NodeSeen, grown
from slurm_robust.model.record import Record
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.verdict import Report
from slurm_robust.util.isolate import call
from slurm_robust.util.text import ascii_line

WRITE_S = 3.0


class FileFound(Record):
    """The job's directory has the file."""

    file: str


def tell(
    config: NodeConfig,
    environ: Mapping[str, str],
    report: Report,
    memory: Memory,
    limit_s: float = WRITE_S,
) -> FileFound | Ignored | None:
    """Write what both hooks saw into the job's directory; None if there is no such directory.

    ``environ`` is that of the epilog. Raises nothing and takes ``limit_s`` seconds at most.
    """
    job = job_of(environ)
    if job is None:
        return None
    after = seen_by(report, memory)
    before = take(config, job.job_id)
    is_same_boot = before is not None and before.boot_id == after.boot_id
    since = before.at if before is not None else job.started
    seen = NodeSeen(
        job_id=job.job_id,
        node=report.node,
        prolog=before,
        epilog=after,
        errors=driver_errors(report, memory, since) if since is not None else (),
        grown=grown(before.counters, after.counters) if before is not None and is_same_boot else {},
    )
    name = f"{report.node}.{int(report.at)}.json"
    data = msgspec.json.encode(seen)
    if len(data) > MAX_BYTES or "/" in name:
        return Ignored(why=f"{len(data)} bytes, at most {MAX_BYTES} are told")
    task = partial(_write_as_user, job, config.suspects.job_dirs, name, data)
    answer = call({"owner": task}, {"owner": limit_s}, limit_s)["owner"]
    if answer.value is None:
        return Ignored(why=ascii_line(answer.error, MAX_TEXT))
    return FileFound(file=answer.value.decode(errors="replace")) if answer.value else None


# -- in the child -----------------------------------------------------------------------------------------


def _write_as_user(job: EndedJob, templates: tuple[str, ...], name: str, data: bytes) -> bytes:
    """Write into ``nodes`` of the job's directory, the first that there is; its path, or nothing without one.

    Changes the rights of this process for good. Raises ``OSError``, ``RuntimeError``.
    """
    become(job)
    # The kernel gives these files to root while a process that has changed its owner cannot be traced.
    if os.stat("/proc/self/stat").st_uid != 0 and job.uid != 0:
        raise RuntimeError("users could trace this process: set the sysctl fs.suid_dumpable to 0 or 2")
    for folder in places(templates, job):
        try:
            fd = open_below(folder, (str(job.job_id),), job.uid)
        except FileNotFoundError:
            continue
        try:
            _put(fd, name, data, job.uid)
        finally:
            os.close(fd)
        return f"{folder}/{job.job_id}/nodes/{name}".encode()
    return b""


def _put(fd: int, name: str, data: bytes, uid: int) -> None:
    try:
        os.mkdir("nodes", 0o700, dir_fd=fd)
    except FileExistsError:
        pass
    nodes = open_own("nodes", fd, uid)
    beside = f".{name}.{os.getpid()}"
    try:
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=nodes)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
        finally:
            os.close(file)
        os.rename(beside, name, src_dir_fd=nodes, dst_dir_fd=nodes)
    finally:
        os.close(nodes)
