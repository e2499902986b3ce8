"""What a machine needs for a sandbox: all that is missing is reported at once, with the fix."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable

from slurm_robust.sandbox.errors import RequirementMissing
from slurm_robust.sandbox.services import SYSTEM_PATH

# Program -> Debian package. The second part only with accounting.
_ALWAYS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sinfo": "slurm-client",
    "munged": "munge",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
}
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
}


def missing_packages(accounting: bool, has: Callable[[str], bool]) -> tuple[str, ...]:
    """Debian packages of the programs that ``has`` does not find, sorted. Pure."""
    programs = _ALWAYS | (_ACCOUNTING if accounting else {})
    return tuple(sorted({package for program, package in programs.items() if not has(program)}))


def check_machine(accounting: bool) -> None:
    """Raise :class:`RequirementMissing` when this process is not root or a program is not installed."""
    check_root()
    packages = missing_packages(accounting, _installed)
    if packages:
        raise RequirementMissing(_sentence(packages), fix=f"apt-get install {' '.join(packages)}")


def check_root() -> None:
    """Raise :class:`RequirementMissing` when this process is not root's."""
    if os.geteuid() != 0:
        raise RequirementMissing(
            "a sandbox makes namespaces and mounts, which only root may", fix="run it as root, with sudo"
        )


def _installed(program: str) -> bool:
    return shutil.which(program, path=SYSTEM_PATH) is not None


def _sentence(packages: Iterable[str]) -> str:
    return f"programs of these Debian packages are not installed: {', '.join(packages)}"
