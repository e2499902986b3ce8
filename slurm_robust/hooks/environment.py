"""What Slurm's commands need of their environment: Slurm gives hooks none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from slurm_robust.config.node import NodeConfig

_MAX_PARENTS = 10
_USUAL_BINS = ("/usr/bin", "/usr/local/bin", "/opt/slurm/bin", "/usr/local/slurm/bin", "/usr/sbin", "/bin")


def slurm_environment(config: NodeConfig, given: Callable[[str], str | None]) -> dict[str, str]:
    """Return PATH and SLURM_CONF for Slurm's commands; Slurm gives hooks neither."""
    folders = (config.hooks.slurm_bin, *beside_slurmd(), *_USUAL_BINS)
    environ = {"PATH": ":".join(dict.fromkeys(filter(None, folders))), "LC_ALL": "C.UTF-8"}
    conf = config.hooks.slurm_conf or given("SLURM_CONF")
    return {**environ, "SLURM_CONF": conf} if conf else environ


def beside_slurmd() -> tuple[str, ...]:
    """Return the folders of Slurm's commands, by the slurmd that started this hook; empty without one."""
    pid = os.getppid()
    for _ in range(_MAX_PARENTS):
        try:
            program = Path(os.readlink(f"/proc/{pid}/exe"))
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return ()
        if program.name.startswith("slurm"):
            return (str(program.parent.parent / "bin"), str(program.parent))
        pid = int(stat.rpartition(")")[2].split()[1])
        if pid <= 1:
            return ()
    return ()
