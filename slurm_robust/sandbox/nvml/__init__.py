"""The stand-in for ``libnvidia-ml.so.1``: compiled once per machine, controlled by a text file."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from slurm_robust.sandbox.errors import BootFailed, RequirementMissing

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
STATE_VARIABLE = "SROBUST_NVML_STATE"
STATE_FOLDER = "/run/srobust-gpus"
"""Where the library looks for its state without the variable."""

STATE_FILE = "state"

_COMPILE_S = 60.0
_FLAGS = ("-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread", f"-Wl,-soname,{LIBRARY}")


def library(cache: Path) -> Path:
    """The compiled library, in a folder of its own below ``cache``.

    Raises :class:`RequirementMissing` without a compiler and :class:`BootFailed` if it does not compile.
    """
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = cache / f"nvml-{os.uname().machine}-{digest}"
    if not (folder / LIBRARY).exists():
        _compile(folder)
    return folder / LIBRARY


def _compile(folder: Path) -> None:
    """Beside its place, then renamed: two sandboxes may boot at once."""
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
            raise BootFailed(f"{SOURCE.name} does not compile: {done.stderr[-1500:]}")
        target.chmod(0o755)
        os.replace(target, folder / LIBRARY)
