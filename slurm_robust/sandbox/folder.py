"""Names inside a sandbox's state folder. Only names: nothing is opened here."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_robust.sandbox.config import check_name

DEFAULT_ROOT = "/var/lib/srobust-sandbox"
DEFAULT_CACHE = "/var/cache/srobust-sandbox"
MADE = ".made-by-srobust-sandbox"
"""A file in every folder that ``up`` made, also in the folder of all sandboxes: ``down`` removes no other."""


def state_root() -> Path:
    """Return the folder of all sandboxes: ``$SROBUST_SANDBOX_DIR``, else /var/lib/srobust-sandbox."""
    return Path(os.path.abspath(os.environ.get("SROBUST_SANDBOX_DIR") or DEFAULT_ROOT))


class StateFolder:
    """The folder of one sandbox. Everything in it dies with ``down``."""

    SUBFOLDERS = ("etc", "log", "home", "spool", "state", "munge", "dev", "db")

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = check_name(name)
        self.path = (root or state_root()) / name

    @property
    def config(self) -> Path:
        """The :class:`SandboxConfig` as JSON."""
        return self.path / "config.json"

    @property
    def etc(self) -> Path:
        """slurm.conf and its companions: /etc/slurm of every node."""
        return self.path / "etc"

    @property
    def node_etc(self) -> Path:
        """/etc of every node: a copy of the machine's, with files of the sandbox's own."""
        return self.path / "node-etc"

    @property
    def database(self) -> Path:
        """MariaDB's data directory."""
        return self.path / "db"

    @property
    def devices(self) -> Path:
        """Fake GPU device files."""
        return self.path / "dev"

    @property
    def libraries(self) -> Path:
        """Libraries that only this sandbox's nodes load."""
        return self.path / "lib"

    def gpus(self, node: str) -> Path:
        """Return folder with the state of the node's GPUs."""
        return self.path / "gpus" / node

    @property
    def faults(self) -> Path:
        """One JSON object per injected fault."""
        return self.path / "faults.jsonl"

    @property
    def forgotten(self) -> Path:
        """Exists while slurmctld may give new jobs the ids of jobs that it forgot when it was killed."""
        return self.path / "slurmctld-killed"

    @property
    def passed(self) -> Path:
        """The last job id that was used up so that no new job gets that of a forgotten one."""
        return self.path / "last-id-passed-over"

    @property
    def logs(self) -> Path:
        """One file per daemon."""
        return self.path / "log"

    def log(self, daemon: str) -> Path:
        """Return the log of ``slurmctld``, ``slurmdbd``, ``munged``, ``mariadbd``, ``init`` or
        ``slurmd-<node>``.
        """
        return self.logs / f"{daemon}.log"

    def home(self, user: str) -> Path:
        """Return the user's home folder as this machine sees it; inside it is /home/<user>."""
        return self.path / "home" / user

    def spool(self, node: str) -> Path:
        """Return the node's SlurmdSpoolDir: a disk that survives a power cut."""
        return self.path / "spool" / node
