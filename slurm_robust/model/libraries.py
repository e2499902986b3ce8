"""The libraries that only some commands need, and how each is installed."""

from __future__ import annotations

from importlib.util import find_spec

from slurm_robust.home import is_packaged
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


def how_to_install(library: str) -> str:
    """Return what brings ``library`` to this very program.

    The program of a .deb or .rpm sees only the modules that the package brings: no package of the
    distribution and no pip adds one.
    """
    line = pip_line(library)
    if not is_packaged():
        return line
    return (
        "no library can be added to this srobust, which is of the node package; install another beside it: "
        f"python3 -m venv DIR && DIR/bin/{line}, and give the command to DIR/bin/srobust"
    )


def need(library: str, what: str, *, instead: str = "") -> None:
    """Raise :class:`MissingLibrary` if ``what`` cannot be done for want of ``library``.

    It is not imported. A command calls this before it asks or reads anything; ``instead`` does without.
    """
    try:
        is_there = find_spec(library) is not None
    except ValueError:
        is_there = False
    if not is_there:
        fix = how_to_install(library) + (f"; without it: {instead}" if instead else "")
        raise MissingLibrary(f"{what} needs {library}, which is not installed", fix=fix)
