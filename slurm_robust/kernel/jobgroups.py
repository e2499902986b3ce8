"""Which job a control group belongs to, in cgroup version 1 and 2, on Slurm 22.05 to 26.05.

Slurm names a job's group ``job_7``. In version 2 26.05 names it by a SLUID (``s5K1KKYAYG5D00``, sluid.c), of
which each run of a job has a new one, unless cgroup.conf has CgroupJobIdPaths=yes. A SLUID does not say the
job's id: the titles of the steps' daemons and the environment of the processes in the group do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from slurm_robust.kernel.host import Host
from slurm_robust.kernel.processes import listed

CGROUPS = "/sys/fs/cgroup"

# As text: re compiles them when they are first needed, and every hook imports this.
JOB_FOLDER = r"/(?:job_[0-9]{1,10}|s[0-9A-HJKMNP-TV-Z]{13})(?![^/,\s])"
"""A job's folder in a path, also in the kernel's messages, which go on with a comma."""

# Slurm's part of the tree; with several slurmd on a machine each has its own.
_SCOPE = r"(?:[\w.-]{1,80}_)?slurmstepd\.scope"
_SLURM = r"slurm(?:_[\w.-]{1,80})?"
_CONTROLLERS = ("freezer", "memory", "cpuset", "devices", "cpu,cpuacct", "cpuacct", "cpu", "pids")
# Slices lie in each other: a-b.slice in a.slice.
_DEEPEST = 4
_TITLE = r"slurmstepd: \[(\d{1,10})[.+]?"
_VARIABLE = r"(?:^|\0)SLURM_JOB_ID=(\d{1,10})\0"
_MAX_GROUPS, _MAX_PROCESSES = 64, 8


class JobGroup(NamedTuple):
    """The control group of a job."""

    folder: str
    """Its path below the mount, from a path of itself or of a group in it."""

    job_id: int | None
    """None for a SLUID."""

    @property
    def name(self) -> str:
        """``job_7`` or ``s5K1KKYAYG5D00``."""
        return self.folder.rpartition("/")[2]


def group_of(path: str) -> JobGroup | None:
    """Return the job's group that ``path`` lies in, a container in a step included; None outside of jobs."""
    found = re.search(JOB_FOLDER, path)
    if found is None:
        return None
    number = found[0].removeprefix("/job_")
    return JobGroup(path[: found.end()], int(number) if number.isdecimal() else None)


def own_job(host: Host) -> int | None:
    """Return the job of this process, by its environment."""
    return _job_of_environment(host, "self")


def jobs_here(host: Host) -> frozenset[int] | None:
    """Return the jobs with processes on this node; None if that is not known, or not of all of them."""
    roots = list(_roots(host))
    groups = [group for root in roots for name in host.names(root) if (group := group_of(f"{root}/{name}"))]
    jobs = {group.job_id for group in groups if group.job_id is not None}
    unnamed = {group.name: group for group in groups if group.job_id is None and _is_in_use(host, group)}
    if roots and not unnamed:
        return frozenset(jobs)
    steps = _jobs_of_steps(host)
    if steps is None and not roots:
        return None
    return _named(host, jobs, unnamed, steps or {})


def _named(
    host: Host, jobs: set[int], unnamed: Mapping[str, JobGroup], steps: Mapping[int, int]
) -> frozenset[int] | None:
    """Return ``jobs``, those of ``steps``, and those of ``unnamed`` groups; None if a group is left over."""
    known = {group.name: job for pid, job in steps.items() if (group := _group_of_process(host, pid))}
    for name in unnamed.keys() - known.keys():
        inside = (_job_of_environment(host, pid) for pid in _processes(host, unnamed[name].folder))
        if (job := next(filter(None, inside), None)) is not None:
            known[name] = job
    left = unnamed.keys() - known.keys()
    # Each group has the daemon of a step. If the kernel does not say of which one, their number does.
    homeless = set(steps.values()) - set(known.values()) - jobs
    if len(left) > len(homeless):
        return None
    return frozenset({*jobs, *steps.values(), *known.values()})


def _roots(host: Host) -> Iterator[str]:
    """Yield the folders that have one for each job."""
    for parent in (CGROUPS, f"{CGROUPS}/unified"):
        yield from _scopes(host, parent, _DEEPEST)
    for controller in _CONTROLLERS:
        parent = f"{CGROUPS}/{controller}"
        for slurm in (name for name in host.names(parent) if re.fullmatch(_SLURM, name)):
            yield f"{parent}/{slurm}"
            users = (name for name in host.names(f"{parent}/{slurm}") if name.startswith("uid_"))
            yield from (f"{parent}/{slurm}/{user}" for user in users)


def _scopes(host: Host, parent: str, depth: int) -> Iterator[str]:
    """Yield slurmstepd's scopes in slices (CgroupSlice), but not in users' services."""
    for name in host.names(parent):
        if re.fullmatch(_SCOPE, name):
            yield f"{parent}/{name}"
        elif name.endswith(".slice") and depth:
            yield from _scopes(host, f"{parent}/{name}", depth - 1)


def _is_in_use(host: Host, group: JobGroup) -> bool:
    """Return whether it has processes, or that is not known. Slurm cannot always remove a job's group."""
    return "populated 0" not in host.read_or(f"{group.folder}/cgroup.events").splitlines()


def _jobs_of_steps(host: Host) -> dict[int, int] | None:
    """Return jobs by the pid of a step's daemon, which names its job in its command; None without any.

    Only root's processes are asked.
    """
    daemons = [
        process
        for process in listed(host)
        if process.uid == 0 and process.name in ("slurmd", "slurmstepd") and host.real_uid(process.pid) == 0
    ]
    if not daemons:
        return None
    steps = (process.pid for process in daemons if process.name == "slurmstepd")
    titles = ((pid, re.match(_TITLE, host.read_or(f"/proc/{pid}/cmdline"))) for pid in steps)
    return {pid: int(title[1]) for pid, title in titles if title}


def _group_of_process(host: Host, pid: int) -> JobGroup | None:
    lines = host.read_or(f"/proc/{pid}/cgroup").splitlines()
    paths = (line.split(":", 2)[-1] for line in lines)
    return next(filter(None, map(group_of, paths)), None)


def _processes(host: Host, folder: str) -> Iterable[str]:
    """Return some processes of a group and those below it."""
    walk = islice(os.walk(host.path(folder)), _MAX_GROUPS)
    files = (
        os.path.relpath(f"{path}/cgroup.procs", host.root)
        for path, _, names in walk
        if "cgroup.procs" in names
    )
    return islice((pid for file in files for pid in host.read_or(f"/{file}").split()), _MAX_PROCESSES)


def _job_of_environment(host: Host, pid: str) -> int | None:
    found = re.search(_VARIABLE, host.read_or(f"/proc/{pid}/environ") + "\0")
    return int(found[1]) if found else None
