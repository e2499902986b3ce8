"""Releases of a folder, unpacked as on a node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from slurm_robust.model.job import CommandKind
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.releases.take import Taking, take
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.copying import make_copy


class Code:
    """A user's folder with code, and copies of its releases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self.store = ReleaseStore(folder / "releases")
        self._node = folder / "srobust-0-1-run-code"
        self._node.mkdir(mode=0o700)

    def write(self, files: Mapping[str, str]) -> None:
        """Write files, by their relative paths."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def release(self, *command: str, roots: tuple[Path, ...] = (), **changes: Any) -> CopiedCode:
        """Take the code as it is now, and unpack it."""
        wish = Taking(
            kind=CommandKind.SCRIPT,
            command=command or ("script.py",),
            cwd=str(self.folder),
            roots=tuple(os.path.realpath(root) for root in roots or (self.folder,)),
        )
        taken = take(self.store, structs.replace(wish, **changes))
        return make_copy(self.store, taken, self._node / taken.name)
