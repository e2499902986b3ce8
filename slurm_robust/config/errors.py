"""What can be wrong with a configuration.

ConfigError           SrobustError, exit code 78: told to the user
 ├─ InvalidValue      a record refuses a value or a combination of values
 └─ InvalidSettings   a file, the environment or the command line says something that cannot be used
"""

from __future__ import annotations

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode


class ConfigError(SrobustError):
    """The configuration cannot be used."""

    exit_code = ExitCode.CONFIG

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class InvalidValue(ConfigError):
    """Raised by a configuration record when it is built.

    ``keys`` are the names of the fields that do not fit, as the record knows them; the reader turns
    them into full names with the places where they were set.
    """

    def __init__(self, keys: tuple[str, ...], message: str, fix: str) -> None:
        super().__init__(message, fix)
        self.keys = keys


class InvalidSettings(ConfigError):
    """Raised by the reader. ``problems`` has one line for each thing that is wrong, with its place."""

    def __init__(self, problems: tuple[str, ...], fix: str = "") -> None:
        super().__init__("\n".join(problems), fix)
        self.problems = problems
