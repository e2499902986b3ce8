"""Writes a page into its file."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.util.files import write_atomically

STDOUT = Path("-")
"""The path that stands for standard output instead of a file."""


class CannotWrite(SrobustError):
    """The page cannot be written; what was there before is untouched."""

    exit_code = ExitCode.JOB_DIR


def write_page(path: Path, page: str, name: str) -> tuple[Path, int]:
    """Write the page whole or not at all, for its owner only; return where, and its bytes.

    ``name``: of the file, if ``path`` is a folder.
    Links are followed, and only a regular file is replaced. Raises :class:`CannotWrite`.
    """
    data = page.encode(errors="replace")
    path = Path(os.path.realpath(path / name if path.is_dir() else path))
    fix = f"free {len(data) / 1e6:.1f} MB, or give --html a file in a folder with room that is yours"
    try:
        if path.exists() and not path.is_file():
            raise CannotWrite(f"{path} is no regular file; it is as before", fix="give --html another file")
        write_atomically(path, data, durable=False, mode=0o600)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            fix = f"make the folder first: mkdir -p {shlex.quote(str(path.parent))}"
        raise CannotWrite(
            f"{path} cannot be written: {error.strerror}; nothing was left there", fix=fix
        ) from error
    return path, len(data)
