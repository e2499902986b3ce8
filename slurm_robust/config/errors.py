"""What can be wrong with a configuration.

ConfigError           SrobustError, exit code 78: told to the user
 ├─ FileUnreadable    exit code 66: a file cannot be read
 ├─ InvalidValue      a record refuses a value or a combination of values
 └─ InvalidSettings   a file, the environment or the command line says something that cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode


class ConfigError(SrobustError):
    """The configuration cannot be used."""

    exit_code: int = ExitCode.CONFIG

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class FileUnreadable(ConfigError):
    """A file of the configuration is not there, or may not be read."""

    exit_code = ExitCode.NO_INPUT


class Problem(NamedTuple):
    """One thing that is wrong, in words with its place; ``code``: with what srobust ends for it."""

    text: str
    code: int = ExitCode.CONFIG


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

    def __init__(self, problems: tuple[str, ...], fix: str = "", code: int = ExitCode.CONFIG) -> None:
        super().__init__("\n".join(problems), fix)
        self.problems = problems
        self.exit_code = code

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> InvalidSettings:
        """All that is wrong. Of several exit codes wrong configuration counts first, then wrong usage."""
        codes = {problem.code for problem in problems}
        code = next((c for c in (ExitCode.CONFIG, ExitCode.USAGE) if c in codes), ExitCode.NO_INPUT)
        return cls(tuple(problem.text for problem in problems), code=code)
