"""Which jobs run on this node, by what the node itself can tell: Slurm is not asked.

This is not done in a child that may hang, so of processes of others only what the kernel tells without their
locks is read: name and owner, but no command line.
"""

from __future__ import annotations

import os
import re

from slurm_robust.kernel.host import Host

_STEP = re.compile(rb"slurmstepd: \[(\d+)[.+]")
_STEP_DAEMON = b"slurmstepd\n"
_OF_NO_STEP = b"infinity"
"""With cgroup/v2 slurmd keeps a ``slurmstepd infinity``, which holds the control group of all steps."""

_KNOWN_BYTES = 256


def running_jobs(host: Host) -> frozenset[int] | None:
    """Return jobs that have a step here: each step has a slurmstepd that names it. None if one does not.

    Any process may call itself so: it is one if it belongs to root, or to whom this process belongs.
    """
    found = set()
    proc = host.path("/proc")
    for name in host.names("/proc"):
        if not name.isdigit() or _read(f"{proc}/{name}/comm") != _STEP_DAEMON:
            continue
        if host.real_uid(name) not in (0, os.getuid()):
            continue
        command = _read(f"{proc}/{name}/cmdline")
        if command.split(b"\0")[1:2] == [_OF_NO_STEP]:
            continue
        if match := _STEP.match(command):
            found.add(int(match[1]))
        elif command:
            return None
    return frozenset(found)


def no_other_job(host: Host, job: int = 0) -> bool | None:
    """Return whether nothing but ``job`` can be running; None if that is not known."""
    running = running_jobs(host)
    return None if running is None else not running - {job}


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _KNOWN_BYTES)
    except OSError:
        return b""  # It ended in between.
    finally:
        os.close(fd)
