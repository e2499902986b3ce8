"""The libraries that only some commands need, and how each is installed."""

from __future__ import annotations

from importlib.util import find_spec

from slurm_robust.model.errors import ExitCode, SrobustError

EXTRAS = {
    "torch": "train",
    "textual": "train",
    "jinja2": "train",
    "sqlalchemy": "admin",
    "psycopg": "admin",
    "opentelemetry": "admin",
}
"""By the name that is imported: the extra of this package that brings the library."""


class MissingLibrary(SrobustError):
    """A command needs a library that is not installed."""

    exit_code = ExitCode.REFUSED


def pip_line(library: str) -> str:
    """Return the command that installs ``library``."""
    return f"pip install 'slurm_robust[{EXTRAS[library]}]'"


def need(library: str, what: str, *, instead: str = "") -> None:
    """Raise :class:`MissingLibrary` if ``what`` cannot be done for want of ``library``.

    It is not imported. A command calls this before it asks or reads anything; ``instead`` does without.
    """
    try:
        is_there = find_spec(library) is not None
    except ValueError:
        is_there = False
    if not is_there:
        fix = pip_line(library) + (f"; without it: {instead}" if instead else "")
        raise MissingLibrary(f"{what} needs {library}, which is not installed", fix=fix)
