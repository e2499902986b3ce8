"""The machine as checks see it: files below a root folder, commands, and the time.

With another root the same code reads a copy of ``/proc`` and ``/sys``, as tests and bug reports have it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path


class Host:
    """One node. Everything here may block in the kernel, so gathering runs in a child (``isolate``)."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    @property
    def is_real(self) -> bool:
        """Whether this is the machine itself, so that libraries and system calls speak of it too."""
        return self.root == Path("/")

    def path(self, name: str) -> Path:
        """Return the path below this root at which to open a file such as ``/proc/stat``."""
        return self.root / name.lstrip("/")

    def read(self, name: str, limit: int = 2**20) -> str:
        """Read at most ``limit`` bytes of a text file, without blanks at its ends. Raises ``OSError``."""
        with self.path(name).open("rb") as file:
            return file.read(limit).decode(errors="replace").strip()

    def read_or(self, name: str) -> str:
        """Read as :meth:`read` does; "" if there is no such file or it cannot be read."""
        try:
            return self.read(name)
        except OSError:
            return ""

    def number(self, name: str) -> int | None:
        """Return the whole number in a file; None if there is none."""
        try:
            return int(self.read(name, 64), 0)
        except (OSError, ValueError):
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """Return what is in a folder, sorted; nothing if there is none."""
        try:
            return tuple(sorted(os.listdir(self.path(folder))))
        except OSError:
            return ()

    def real_uid(self, pid: int | str) -> int | None:
        """Return whose process it is; None once it has ended.

        Any user can start a program that runs with the rights of its file's owner (setuid), under any name:
        the owner of its folder in /proc is root then.
        """
        lines = self.read_or(f"/proc/{pid}/status").splitlines()
        fields = next((line.split() for line in lines if line.startswith("Uid:")), [])
        return int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else None

    def boot_id(self) -> str:
        """Return the boot's id, another one after each boot; empty if the kernel does not say."""
        return self.read_or("/proc/sys/kernel/random/boot_id")

    def uptime_s(self) -> float:
        """Return the seconds since the boot."""
        fields = self.read_or("/proc/uptime").split()
        return float(fields[0]) if fields else time.monotonic()


def node_name(environ: Mapping[str, str]) -> str:
    """Return this node as Slurm calls it, or the host's short name outside of Slurm."""
    return environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
