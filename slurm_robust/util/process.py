"""What the kernel must know of a process, and lets it do; Linux calls that Python does not offer."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Collection
from pathlib import Path

from slurm_robust.util import numa

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36  # Linux 3.4
_PR_SET_NAME = 15
_COMM_LENGTH = 15

# set_mempolicy(2): from this node first, from others when that has no room.
_MPOL_PREFERRED = 1
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
_MASK_WORDS = 16

_MADV_POPULATE_WRITE = 23  # Linux 5.14

# ioprio_set(2): this process, only when no other wants the disk.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_IDLE = 3 << 13

# Out of 1000. The kernel takes a worker before the agent, whose reports are needed to recover.
OOM_SCORE = 500

# -- open files --------------------------------------------------------------------------------------
# A large job holds a connection to each agent, and rank 0's store one to each rank. Slurm hands the limits of
# the shell that submitted the job on to its steps, and a shell's soft limit is usually 1,024: the hard one is
# for programs that know that they need more.

MAX_FILES = 2**20
"""Some programs walk through all descriptors up to the limit before they start another one."""

OTHER_FILES = 256
"""Files of a process beside its connections."""


def raise_file_limit() -> None:
    """Let this process and its children open as many files as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_number(hard), MAX_FILES)
    if _number(soft) < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def file_shortage(connections: int, of_what: str) -> str:
    """Return the message, with the fix, if the limit is too low for ``connections``; "" if it is not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHER_FILES
    if _number(soft) >= needed:
        return ""
    return (
        f"this process may open {soft} files and needs about {needed}, one for each of {connections} "
        f"{of_what}: raise the hard limit (LimitNOFILE of slurmd, or nofile in limits.conf where the job is "
        "submitted)"
    )


def spare_files(connections: int) -> int:
    """Return how many more files this process may open beside ``connections``; at least 0."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, _number(soft) - connections - OTHER_FILES)


def _number(limit: int) -> int:
    return 2**62 if limit == resource.RLIM_INFINITY else limit


# -- workers -----------------------------------------------------------------------------------------


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when ``parent`` ends; end immediately if it already has."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_title(rank: int) -> None:
    """Name this process in ``ps`` and ``top``: ``srobust-rank3``, shorter for very high ranks."""
    name = f"srobust-rank{rank}"
    set_name(name if len(name) <= _COMM_LENGTH else f"srobust-r{rank}")


def set_name(name: str) -> None:
    """Name this process in ``ps`` and ``top``, by the first 15 characters."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()[:_COMM_LENGTH]))


def prefer_for_oom(score: int = OOM_SCORE) -> None:
    """Raise this process's ``oom_score_adj``; a score that is higher already is kept."""
    path = Path("/proc/self/oom_score_adj")
    try:
        if int(path.read_text()) < score:
            path.write_text(str(score))
    except OSError:
        pass  # a container without /proc: the worker is as good without


def use_idle_time() -> None:
    """Have this process and its children run, read and write only when no other process wants to.

    What the kernel refuses is left.
    """
    with contextlib.suppress(OSError):
        os.nice(19)
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    number = _IOPRIO_SET.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, _IOPRIO_WHO_PROCESS, 0, _IOPRIO_CLASS_IDLE)


def bind(cpus: Collection[int], node: int) -> None:
    """Run on ``cpus`` and take memory from NUMA node ``node`` first; all CPUs if empty, no node below 0.

    What the kernel refuses is left: the process is as good without.
    """
    try:
        if cpus:
            os.sched_setaffinity(0, cpus)
    except OSError:
        return  # these CPUs are gone, or not ours
    numa.prefer(node)


def fault_in(address: int, nbytes: int) -> None:
    """Map whole pages of writable memory into this process now; where Linux cannot (before 5.14), nothing.

    Other threads go on meanwhile.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to a process group, if anything of it is left."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # nothing left, or only programs of another user, which Slurm ends with the step


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
