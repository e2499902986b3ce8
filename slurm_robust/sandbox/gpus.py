"""The GPUs of a sandbox's node: lines in a file that the stand-in library reads at every call."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.sandbox.errors import NotThere

ALL = "*"
DRIVER = "system"


class Gpus:
    """Stand-in GPUs: ``set(3, lost=True)``, ``xid(3, 79)``, ``driver(hang=True)``. See ``nvml/nvml.c``.

    Changes are seen by running processes too. ``path`` is the state file, ``node`` goes into the UUIDs.
    """

    def __init__(self, path: Path, node: str, count: int) -> None:
        self.path = path
        self._node = node
        self._count = count

    def uuid(self, index: int) -> str:
        """Unique over all nodes."""
        digest = hashlib.sha256(f"{self._node}/{index}".encode()).hexdigest()
        return f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"

    def reset(self) -> None:
        """Make all GPUs healthy again."""
        lines = [f"{DRIVER} count {self._count}"]
        lines += [f"{index} uuid {self.uuid(index)}" for index in range(self._count)]
        new = self.path.with_name(f"{self.path.name}.new")
        new.write_text("".join(f"{line}\n" for line in lines))
        new.chmod(0o644)
        os.replace(new, self.path)

    def set(self, index: int | None = None, **values: object) -> None:
        """Change values of one GPU, or of all. None: the hardware does not have it."""
        target = ALL if index is None else str(self._known(index))
        self._append(f"{target} {key} {_value(value)}" for key, value in values.items())

    def driver(self, **values: object) -> None:
        """Change values of the driver: ``count``, ``driver``, ``init``, ``hang``."""
        self._append(f"{DRIVER} {key} {_value(value)}" for key, value in values.items())

    def xid(self, index: int, code: int) -> None:
        """Report an XID to programs that wait for events."""
        self.set(index, xid=code)

    def _known(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise NotThere(f"no GPU {index} on {self._node}: it has {self._count}")
        return index

    def _append(self, lines: Iterable[str]) -> None:
        # In one write: a reader never sees half a change.
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def _value(value: object) -> str:
    if value is None:
        return "-"
    return str(int(value)) if isinstance(value, bool) else str(value).replace("\n", " ")
