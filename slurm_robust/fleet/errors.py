"""What may be wrong with a fleet index; each message says what to do."""

from __future__ import annotations

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.libraries import how_to_install


class NoLibrary(SrobustError):
    """SQLAlchemy, or the driver of PostgreSQL, is not installed."""

    exit_code = ExitCode.REFUSED

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the fleet index needs {name}, which is not installed", fix=how_to_install(name.lower())
        )


class NoIndex(SrobustError):
    """No index is named, or the named one is not there yet."""

    exit_code = ExitCode.NO_INPUT


class BadIndexUrl(SrobustError):
    """What names the index is neither a path nor the URL of SQLite or PostgreSQL."""

    exit_code = ExitCode.USAGE


class IndexRefused(SrobustError):
    """The database does not let us in, or what is there is no fleet index of this release."""

    exit_code = ExitCode.REFUSED


class IndexAway(SrobustError):
    """The database has not answered for as long as we wait. A write can be repeated."""

    exit_code = ExitCode.SLURM
