"""The rules of a job's own configuration, ``detect.log_rules``, above those that are shipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slurm_robust.analysis.logs.rule import RuleSet, shipped, with_site_rules
from slurm_robust.config.errors import InvalidSettings
from slurm_robust.config.job import JobConfig
from slurm_robust.model.errors import ExitCode, PreflightError


def check_log_rules(config: JobConfig, cwd: Path) -> None:
    """Check that all files are there and right. Raises :class:`PreflightError` with file and line."""
    try:
        with_site_rules(_files(config, cwd))
    except InvalidSettings as error:
        raise PreflightError(f"detect.log_rules: {error}", fix=error.fix, code=ExitCode.CONFIG) from error


def load_log_rules(config: JobConfig, cwd: Path) -> tuple[RuleSet, str]:
    """Return our rules and above them the site's; only ours, and why, if those cannot be used any more."""
    try:
        return with_site_rules(_files(config, cwd)), ""
    except InvalidSettings as error:
        return shipped(), f"logs are read by the built-in rules only; detect.log_rules: {error}"


def _files(config: JobConfig, cwd: Path) -> Iterator[Path]:
    return (cwd / name for name in config.detect.log_rules)
