"""Takes the summary that a job's controller left and puts it into the spool of the fleet, for the epilog.

The file is the user's: a child that has become the job's user reads it, as with suspects. What it says is
decoded and written anew beside what Slurm told this epilog of the job; nothing else of it reaches root. Only
the epilog of the controller's node does so, and of each job the spool keeps one file.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from slurm_robust.config.node import NodeConfig
from slurm_robust.hooks.suspects import READ_S, EndedJob, Ignored, job_of, read_as_user
from slurm_robust.model.findings import MAX_TEXT
from slurm_robust.model.jobsummary import (
    FORMAT,
    MAX_BYTES,
    SPOOLED_NAME,
    SpooledSummary,
    SummaryRefused,
    decode_summary,
    encode,
)
from slurm_robust.model.record import Record
from slurm_robust.util.files import write_atomically
from slurm_robust.util.isolate import call
from slurm_robust.util.text import ascii_line
from slurm_robust.util.trust import distrust

WRITE_S = 5.0
"""Bound for the storage on which the spool may be."""

MAX_FILES = 20_000
"""Most files in the spool."""

USER_SHARE = 0.25
"""Share of the spool that one user's files may take, so that no user can keep others out."""

MAX_HOSTLIST = 64 * 1024

_MODE = 0o600
_CLUSTER = r"[A-Za-z0-9_-]{1,40}"


class Kept(Record):
    """The spool has the summary."""

    bytes: int


class NotKept(Record):
    """There is one, and the spool does not take it."""

    why: str


def spool_folder(config: NodeConfig) -> str:
    """Return the spool's folder."""
    return config.fleet.spool_dir or os.path.join(config.paths.state, "fleet-spool")


def spool_summary(
    config: NodeConfig, environ: Mapping[str, str], node: str, now: float, limit_s: float = READ_S + WRITE_S
) -> Kept | NotKept | Ignored | None:
    """Put the summary of the ended job into the spool; None if there is none for this node.

    ``environ`` is that of the epilog, ``now`` seconds since 1970. Raises nothing and takes ``limit_s``
    seconds at most.
    """
    job = job_of(environ)
    if not config.fleet.collect or job is None:
        return None
    task = partial(read_as_user, job, config.suspects.job_dirs, ("summary.json",), MAX_BYTES)
    read_s, write_s = min(READ_S, limit_s / 2), min(WRITE_S, limit_s / 2)
    answer = call({"summary": task}, {"summary": read_s}, read_s)["summary"]
    if answer.value is None:
        return Ignored(why=ascii_line(answer.error, MAX_TEXT))
    if not answer.value:
        return None
    found = judge(answer.value, job, node, environ, now)
    if not isinstance(found, SpooledSummary):
        return found
    data = encode(found)
    cluster = f".{found.cluster}" if found.cluster else ""
    name = f"{found.uid}.{found.job_id}{cluster}.json"
    write = partial(_put, spool_folder(config), name, data, config.fleet.spool_mb * 2**20)
    written = call({"spool": write}, {"spool": write_s}, write_s)["spool"]
    return NotKept(why=written.error) if written.value is None else Kept(bytes=len(data))


def judge(
    data: bytes, job: EndedJob, node: str, environ: Mapping[str, str], now: float
) -> SpooledSummary | Ignored | None:
    """Return what goes into the spool; None if another node's epilog takes it. Pure."""
    try:
        said = decode_summary(data)
    except SummaryRefused as error:
        return Ignored(why=ascii_line(f"summary {error}", MAX_TEXT))
    if said.job_id != job.job_id:
        return Ignored(why="summary of another job")
    if said.node != node:
        return None
    cluster = environ.get("SLURM_CLUSTER_NAME", "")
    return SpooledSummary(
        format=FORMAT,
        job_id=job.job_id,
        uid=job.uid,
        user=ascii_line(job.user, 64),
        cluster=cluster if re.fullmatch(_CLUSTER, cluster) else "",
        node=node,
        t=now,
        started=job.started,
        nodes=ascii_line(environ.get("SLURM_JOB_NODELIST", "")[:MAX_HOSTLIST], MAX_HOSTLIST),
        summary=said,  # decoded strictly, and encoded anew
    )


# -- in the child -----------------------------------------------------------------------------------------


def _put(folder: str, name: str, data: bytes, most_bytes: int) -> bytes:
    """Put the summary into the spool. Raises ``OSError``, ``RuntimeError``."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.geteuid() == 0 and (why := distrust(folder)):
        raise RuntimeError(f"{why}: the spool must be root's alone")
    _make_sure_of_room(folder, name, len(data), most_bytes)
    write_atomically(Path(folder, name), data, durable=True, mode=_MODE)
    return b"kept"


def _make_sure_of_room(folder: str, name: str, size: int, most_bytes: int) -> None:
    names = [each for each in os.listdir(folder) if re.fullmatch(SPOOLED_NAME, each) and each != name]
    if len(names) >= MAX_FILES:
        raise RuntimeError(f"{folder} holds {len(names)} summaries: run srobust admin fleet collect")
    user = name.partition(".")[0] + "."
    sizes = dict.fromkeys(names, MAX_BYTES)
    if (len(names) + 1) * MAX_BYTES > USER_SHARE * most_bytes:
        sizes = {each: _size(os.path.join(folder, each)) for each in names}
    if sum(sizes.values()) + size > most_bytes:
        raise RuntimeError(f"{folder} is full ({most_bytes >> 20} MiB): run srobust admin fleet collect")
    own = [each for each in names if each.startswith(user)]
    is_much = sum(sizes[each] for each in own) + size > USER_SHARE * most_bytes
    if is_much or len(own) >= USER_SHARE * MAX_FILES:
        raise RuntimeError(
            f"{folder} has no more room for jobs of this user: run srobust admin fleet collect"
        )


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0  # it has just been collected
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
