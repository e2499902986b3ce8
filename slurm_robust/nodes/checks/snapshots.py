"""Checks of the snapshots that training jobs keep in the node's memory: those of jobs that are gone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from itertools import islice

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.jobgroups import jobs_here
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.nodefolders import SHARED_MEMORY, parse_folder_name
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import NOT_LIVE, AnyCheck, Check, Probe, Source, View

SHM = str(SHARED_MEMORY)

# Any user may write to /dev/shm, as much as they like.
_MAX_FOLDERS = 256
_MAX_NAMES = 10_000


class SnapshotFolder(Record):
    """A job's folder in /dev/shm."""

    name: str
    uid: int
    job_id: int
    mib: int
    written_at: float
    """The newest file's time, seconds since 1970."""


class SnapshotFacts(Record):
    """Folders of jobs, and the jobs that are here."""

    folders: tuple[SnapshotFolder, ...] = ()
    jobs: frozenset[int] | None = None
    """Jobs that have processes here; None if that is not known, or not needed."""


def gather(host: Host, config: NodeConfig) -> SnapshotFacts:
    """Read the folders. Neither follows links nor opens anything that is not root's or the kernel's."""
    folders = tuple(_folders(host))
    return SnapshotFacts(folders=folders, jobs=jobs_here(host) if folders else None)


def _folders(host: Host) -> Iterator[SnapshotFolder]:
    names = host.path(SHM)
    if not names.is_dir():
        return
    with os.scandir(names) as entries:
        found = ((parse_folder_name(entry.name), entry) for entry in islice(entries, _MAX_NAMES))
        for named, entry in islice(((named, entry) for named, entry in found if named), _MAX_FOLDERS):
            try:
                info = os.lstat(entry.path)
                if stat.S_ISDIR(info.st_mode) and info.st_uid == named.uid:
                    mib, written_at = _content(entry.path)
                    yield SnapshotFolder(
                        name=entry.name, uid=named.uid, job_id=named.job_id, mib=mib, written_at=written_at
                    )
            except OSError:
                continue  # removed meanwhile


def _content(path: str) -> tuple[int, float]:
    """Return the size in MiB, and when the newest file was written."""
    blocks = 0
    written_at = os.lstat(path).st_mtime
    left = _MAX_NAMES
    folders = [path]
    # No recursion: a user's folders may lie in each other as deep as they like.
    while folders and left > 0:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in islice(entries, left):
                    left -= 1
                    info = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(info.st_mode):
                        folders.append(entry.path)
                    else:
                        blocks += info.st_blocks
                        written_at = max(written_at, info.st_mtime)
        except OSError:
            continue  # removed meanwhile, or its path is too long
    return blocks * 512 // 2**20, written_at


SOURCE = Source(name="snapshots", facts=SnapshotFacts, gather=gather)


def judge_stale(view: View[SnapshotFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield one finding for all that are left over: a user may have any number of folders."""
    facts = view.facts
    old = [
        folder
        for folder in facts.folders
        if folder.job_id not in (facts.jobs or ())
        and view.at - folder.written_at > config.memory.stale_snapshots_s
    ]
    outcome = Outcome.PASS if not old else Outcome.UNKNOWN if facts.jobs is None else Outcome.FAIL
    text = {
        Outcome.PASS: "",
        Outcome.UNKNOWN: "which jobs are here is not known: Slurm's cgroups and daemons do not name all",
        Outcome.FAIL: f"{_mib(old)} MiB of ended jobs ({_jobs(old)}): remove them",
    }[outcome]
    yield Finding(
        check="snapshots.stale",
        outcome=outcome,
        subject=SHM,
        text=text,
        value=f"{len(old)} of {len(facts.folders)} left over, {_mib(old)} of {_mib(facts.folders)} MiB",
        limit=f"none of a job that is not here after {config.memory.stale_snapshots_s:g} s",
        source=SHM,
        blame=Party.JOB,
        suggestion=Suggestion.MONITOR if outcome is Outcome.FAIL else Suggestion.NONE,
    )


def _mib(folders: Iterable[SnapshotFolder]) -> int:
    return sum(folder.mib for folder in folders)


def _jobs(folders: list[SnapshotFolder]) -> str:
    jobs = sorted({folder.job_id for folder in folders})
    return ", ".join(map(str, jobs[:4])) + (" ..." if len(jobs) > 4 else "")


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="snapshots.stale",
        source=SOURCE,
        judge=judge_stale,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        hangs=True,
        explain=(
            "Folders of training jobs in /dev/shm whose job has no process on this node and wrote nothing "
            "for memory.stale_snapshots_s. They take memory. Epilog and prolog remove those of jobs that "
            "are gone; a job that waits to be requeued here still wants its own, so ask squeue before you "
            "remove one by hand."
        ),
    ),
)
