"""Failure traces on disk: a file of the site, or one that comes with the package."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.simulator.trace import FailureTrace, parse

DATA = Path(__file__).parent / "data"

MAX_BYTES = 256 * 2**20
"""A larger file is no trace."""


class TraceUnreadable(SrobustError):
    """A trace cannot be read."""

    exit_code = ExitCode.NO_INPUT


def named() -> tuple[str, ...]:
    """Return the names of the traces of the package."""
    return tuple(sorted(path.stem for path in DATA.glob("*.csv")))


def load(source: str, nodes: int | None = None) -> FailureTrace:
    """Read the trace of the package that ``source`` names, or else the file. ``nodes``: as for :func:`parse`.

    Raises :class:`TraceUnreadable` and TraceInvalid.
    """
    path = DATA / f"{source}.csv" if source in named() else Path(source)
    fix = f"name a file, or a trace that comes with the package: {', '.join(named())}"
    try:
        with path.open("rb") as file:
            is_small = os.fstat(file.fileno()).st_size <= MAX_BYTES
            data = file.read(MAX_BYTES + 1) if is_small else b""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise TraceUnreadable(f"{source}: {why}", fix=fix) from error
    if not is_small or len(data) > MAX_BYTES:
        raise TraceUnreadable(f"{source}: larger than {MAX_BYTES // 2**20} MiB, which is no trace", fix=fix)
    return parse(data, nodes)
