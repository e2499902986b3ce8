"""The hooks as an installation has them, but with a configuration of their own."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def installed(config: str, **programs: str) -> Iterator[Path]:
    """A folder with the scripts, ``config.yaml`` and ``programs``; ``HERE`` in ``config`` is its path.

    Not in /tmp, which is emptied on the nodes of a sandbox between tests.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="test-hooks-", dir=ROOT / "build"))
    try:
        fill(folder, config, **programs)
        yield folder
    finally:
        shutil.rmtree(folder)


def fill(folder: Path, config: str, **programs: str) -> None:
    """Write all that into a folder that exists."""
    command = f"exec {sys.executable} -m slurm_robust.hooks.command $1 --config {folder}/config.yaml"
    files = {"srobust-node": f"#!/bin/sh\n{command}\n", **programs}
    for path in (ROOT / "prolog_epilog").glob("*.sh"):
        line = f"SROBUST_NODE={folder}/srobust-node"
        files[path.name] = re.sub(r"^SROBUST_NODE=.*$", line, path.read_text(), flags=re.M)
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "config.yaml").write_text(config.replace("HERE", str(folder)))
    folder.chmod(0o755)
