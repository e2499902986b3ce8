"""What each node of a sandbox mounts over the machine's file tree. A pure plan; ``linux`` carries it out.

Every node sees the machine's files, except for: /tmp, /var/tmp, /dev/shm and /run, which are its own and die
with it; /home, which holds the sandbox's users; /etc, a copy with files of the sandbox's; the state of its
GPUs; and what ordinary users need but cannot reach (a virtual environment below /root, say), which is made
reachable at its own path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_robust.kernel.mountinfo import is_below
from slurm_robust.sandbox.config import HEAD, INSIDE, SandboxConfig
from slurm_robust.sandbox.errors import InvalidSandbox
from slurm_robust.sandbox.gpus import STATE_FOLDER
from slurm_robust.sandbox.linux import MountSpec


@dataclass(frozen=True)
class ReachablePath:
    """A path of the machine that ordinary users must reach at the same place."""

    path: str
    read_only: bool = True


def plan_mounts(
    config: SandboxConfig,
    *,
    state: str,
    node: str,
    wanted: Iterable[ReachablePath],
    closed: Callable[[str], bool],
) -> tuple[MountSpec, ...]:
    """Return the node's mounts in their order.

    ``closed`` says whether others may not search a folder. Raises :class:`InvalidSandbox` for a wanted
    path that would hide the sandbox's own mounts.
    """
    covers = {
        "/run": "mode=755",
        "/tmp": f"mode=1777,size={config.tmp_mb}m",
        "/var/tmp": "mode=1777,size=64m",
        "/dev/shm": f"mode=1777,size={config.shm_mb}m",
        "/home": "mode=755",
    }
    binds = list(_own_binds(config, state, node))
    for item in sorted(wanted, key=lambda item: item.path):
        own = (*covers, "/etc")
        if any(is_below(cover, item.path) for cover in own):
            raise InvalidSandbox(
                f"{item.path} cannot be made reachable: every node has its own {', '.join(own)}",
                fix="name a folder below it",
            )
        if not any(is_below(item.path, cover) for cover in own):
            blocked = next((a for a in _ancestors(item.path) if closed(a)), None)
            if blocked is None:
                continue  # All users reach it as it is.
            covers[blocked] = "mode=755"
        binds.append(MountSpec(item.path, item.path, read_only=item.read_only))
    tmpfs = [MountSpec(path, options=options) for path, options in sorted(covers.items())]
    return (*tmpfs, *binds)


def _own_binds(config: SandboxConfig, state: str, node: str) -> Iterable[MountSpec]:
    yield MountSpec(INSIDE, state)
    yield MountSpec("/run/munge", f"{state}/munge")
    if node != HEAD:
        yield MountSpec("/run/slurmd", f"{state}/spool/{node}")
    for user in config.users:
        yield MountSpec(f"/home/{user}", f"{state}/home/{user}")
    # The folder, not files in it: a file that is bound is gone when the machine renames another over it.
    yield MountSpec("/etc", f"{state}/node-etc", read_only=True)
    # So that what runs without SLURM_CONF (a HealthCheckProgram, a user's cron job) finds it as well.
    yield MountSpec("/etc/slurm", f"{state}/etc")
    if config.gpus_per_node and node != HEAD:
        yield MountSpec(STATE_FOLDER, f"{state}/gpus/{node}")
        # Programs find the stand-in library by the loader's own means, also in an empty environment.
        yield MountSpec("/etc/ld.so.cache", f"{state}/etc/ld.so.cache", read_only=True)


def python_paths() -> tuple[str, ...]:
    """Return what a user needs to run this very Python: environment, base interpreter, and this package."""
    package_parent = Path(__file__).resolve().parents[2]
    found = [sys.prefix, sys.base_prefix, str(package_parent)]
    found += [os.path.realpath(path) for path in found]
    unique = sorted({os.path.abspath(path) for path in found})
    # A path inside another one comes with it.
    return tuple(p for p in unique if not any(p != q and is_below(p, q) for q in unique))


def closed_to_others(path: str) -> bool:
    """Return whether users other than root and the owner cannot pass through the folder."""
    try:
        return not os.stat(path).st_mode & 0o001
    except FileNotFoundError:
        return False


def _ancestors(path: str) -> list[str]:
    """Return them from the top down, without ``/`` and without ``path`` itself."""
    parts = path.strip("/").split("/")[:-1]
    return ["/" + "/".join(parts[: i + 1]) for i in range(len(parts))]
