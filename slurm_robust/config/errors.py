"""What can be wrong with a configuration.

ConfigError           SrobustError, exit code 78: the file is not valid YAML, or not of the expected form
 └─ InvalidSettings   files, the environment or the command line hold values that cannot be used
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_robust.model.errors import ExitCode, SrobustError


class ConfigError(SrobustError):
    """The configuration cannot be used."""

    exit_code = ExitCode.CONFIG


class Problem(NamedTuple):
    """One error with its place and fix."""

    text: str
    code: int = ExitCode.CONFIG
    """The exit code of srobust for this problem alone."""

    key: tuple[str, ...] | None = None
    """The key whose value was rejected. A valid value from a higher layer solves the problem."""

    @classmethod
    def of(cls, error: SrobustError) -> Problem:
        """Return the error in full, with its exit code."""
        return cls(error.in_full(), error.exit_code)


class InvalidSettings(ConfigError):
    """``problems`` has one text for each problem, with its place and fix."""

    def __init__(self, problems: tuple[str, ...], *, fix: str = "", code: int | None = None) -> None:
        super().__init__("\n".join(problems), fix=fix, code=code)
        self.problems = problems

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> InvalidSettings:
        """Return all problems. Among several exit codes, wrong configuration counts first, then wrong
        usage.
        """
        codes = {problem.code for problem in problems}
        code = next((c for c in (ExitCode.CONFIG, ExitCode.USAGE) if c in codes), ExitCode.NO_INPUT)
        return cls(tuple(problem.text for problem in problems), code=code)
