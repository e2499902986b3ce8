"""The limit of open files: a large job holds a connection to each agent, and rank 0's store one to each rank.

Slurm hands the limits of the shell that submitted the job on to its steps, and a shell's soft limit is
usually 1,024: the hard one is for programs that know that they need more.
"""

from __future__ import annotations

import resource

MOST = 2**20
"""Some programs walk through all descriptors up to the limit before they start another one."""

OTHERS = 256
"""Files of a process beside its connections."""


def raise_limit() -> None:
    """Let this process and its children open as many files as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(_number(hard), MOST)
    if _number(soft) < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def shortage(connections: int, of_what: str) -> str:
    """The message, with the fix, if the limit is too low for ``connections``; "" if it is not."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + OTHERS
    if _number(soft) >= needed:
        return ""
    return (
        f"this process may open {soft} files and needs about {needed}, one for each of {connections} "
        f"{of_what}: raise the hard limit (LimitNOFILE of slurmd, or nofile in limits.conf where the job is "
        "submitted)"
    )


def spare(connections: int) -> int:
    """How many more files this process may open beside ``connections``; at least 0."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(0, _number(soft) - connections - OTHERS)


def _number(limit: int) -> int:
    return 2**62 if limit == resource.RLIM_INFINITY else limit
