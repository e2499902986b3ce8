"""Control groups for the nodes of a sandbox: each has a tree of its own, of version 1 (cgroups(7)).

A node enters a group in each hierarchy and makes a cgroup namespace, in which that group is the root. Slurm's
groups lie below it, as on a machine.
"""

from __future__ import annotations

import os
from pathlib import Path

from slurm_robust.sandbox import linux
from slurm_robust.sandbox.errors import RequirementMissing

MOUNT = "/sys/fs/cgroup"
_CONTROLLERS = ("memory", "freezer")
_PREFIX = "srobust-node-"


def check_kernel(controllers: Path = Path("/proc/cgroups")) -> None:
    """Raise :class:`RequirementMissing` if version 1 does not have what Slurm needs."""
    try:
        rows = [line.split() for line in controllers.read_text().splitlines()]
    except OSError:
        rows = []
    # Name, hierarchy (0: of version 2, or of none), groups, enabled.
    there = {row[0] for row in rows if len(row) == 4 and row[1] != "0" and row[3] == "1"}
    if missing := [name for name in _CONTROLLERS if name not in there]:
        raise RequirementMissing(
            f"this machine has no cgroup version 1 for {' and '.join(missing)}",
            fix="boot the sandbox without cgroups, or the machine with systemd.unified_cgroup_hierarchy=0",
        )


def enter() -> None:
    """Give this process its tree: PID 1 of a node whose /sys/fs/cgroup is empty. Raises ``OSError``."""
    _mount_all()
    name = f"{_PREFIX}{os.stat('/proc/self/ns/net').st_ino}"
    for controller in _CONTROLLERS:
        group = Path(MOUNT, controller, name)
        group.mkdir()
        (group / "cgroup.procs").write_text("0")
    linux.unshare(linux.CLONE_NEWCGROUP)
    for controller in _CONTROLLERS:
        linux.unmount(f"{MOUNT}/{controller}")
    _mount_all()


def sweep() -> None:
    """Remove the groups of nodes that are gone. Never raises: an empty group does no harm."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        linux.unshare(linux.CLONE_NEWNS)
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
        linux.mount("cgroup", MOUNT, "tmpfs")
        _mount_all()
        for controller in _CONTROLLERS:
            for tree in Path(MOUNT, controller).glob(f"{_PREFIX}*"):
                _remove(tree)
    finally:
        os._exit(0)


def _mount_all() -> None:
    for controller in _CONTROLLERS:
        folder = f"{MOUNT}/{controller}"
        os.makedirs(folder, exist_ok=True)
        linux.mount("cgroup", folder, "cgroup", options=controller)


def _remove(tree: Path) -> None:
    """Remove ``tree`` and the groups in it, if no process is in any of them."""
    folders = [path for path, _, _ in os.walk(tree, topdown=False)]
    if not any(Path(folder, "cgroup.procs").read_text() for folder in folders):
        for folder in folders:
            os.rmdir(folder)
