"""The GPUs of a sandbox's nodes: a stand-in for ``libnvidia-ml.so.1``, controlled by a text file.

The library is compiled once per machine and reads its node's file at every call.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from slurm_robust.sandbox.errors import BootFailed, NotThere, RequirementMissing

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "SROBUST_NVML_STATE"
STATE_FOLDER = "/run/srobust-gpus"
"""The place in which the library looks for its state without the variable."""

STATE_FILE = "state"

_COMPILE_S = 60.0
_FLAGS = ("-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}")


def library(cache: Path) -> Path:
    """Return the compiled library, in a folder of its own below ``cache``.

    Raises :class:`RequirementMissing` without a compiler and :class:`BootFailed` if it does not compile.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = cache / f"nvml-{os.uname().machine}-{digest}"
    if not (folder / LIBRARY).exists():
        _compile(folder)
    return folder / LIBRARY


def _compile(folder: Path) -> None:
    """Compile it beside its place, then rename it: two sandboxes may boot at the same time."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RequirementMissing(
            "stand-in GPUs need a C compiler once, and there is no cc",
            fix="apt-get install gcc libc6-dev",
        )
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="compiling-") as made:
        target = Path(made, LIBRARY)
        done = subprocess.run(
            [compiler, *_FLAGS, "-o", str(target), str(SOURCE)],
            capture_output=True,
            text=True,
            timeout=_COMPILE_S,
            check=False,
        )
        if done.returncode != 0:
            raise BootFailed(
                f"{SOURCE.name} does not compile: {done.stderr[-1500:]}",
                fix="apt-get install --reinstall gcc libc6-dev",
            )
        target.chmod(0o755)
        os.replace(target, folder / LIBRARY)


ALL = "*"
DRIVER = "system"


class StandInGpus:
    """Stand-in GPUs: ``set(3, lost=True)``, ``xid(3, 79)``, ``driver(hang=True)``. See ``nvml.c``.

    Changes are seen by running processes too. ``path`` is the state file, ``node`` goes into the UUIDs.
    """

    def __init__(self, path: Path, node: str, count: int) -> None:
        self.path = path
        self._node = node
        self._count = count

    def uuid(self, index: int) -> str:
        """Return a UUID that is unique over all nodes."""
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
        if index is not None and not 0 <= index < self._count:
            raise NotThere(f"no GPU {index} on {self._node}: it has {self._count}", fix="count them from 0")
        target = ALL if index is None else str(index)
        self._append(f"{target} {key} {_value(value)}" for key, value in values.items())

    def driver(self, **values: object) -> None:
        """Change values of the driver: ``count``, ``driver``, ``init``, ``hang``."""
        self._append(f"{DRIVER} {key} {_value(value)}" for key, value in values.items())

    def xid(self, index: int, code: int) -> None:
        """Report an XID to programs that wait for events."""
        self.set(index, xid=code)

    def _append(self, lines: Iterable[str]) -> None:
        # In one write: a reader never sees half a change.
        with self.path.open("a") as file:
            file.write("".join(f"{line}\n" for line in lines))


def _value(value: object) -> str:
    if value is None:
        return "-"
    return str(int(value)) if isinstance(value, bool) else str(value).replace("\n", " ")
