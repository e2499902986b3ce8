"""Slurm's live configuration: read it, have it read anew, and try a file before it is the one."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.slurm import text
from slurm_robust.slurm.process import CommandRunner, CommandTimeout, run_command

_TIMEOUT_S = 30.0


class ConfigurationRefused(SrobustError):
    """slurmctld does not answer, or does not take its configuration."""

    exit_code = ExitCode.SLURM
    fix = "see whether slurmctld runs (scontrol ping), and what its log says"


class LiveConfiguration:
    """``scontrol`` with a limit of 30 s for each command. ``environ`` replaces the environment."""

    def __init__(self, environ: Mapping[str, str], *, run: CommandRunner = run_command) -> None:
        self._environ = dict(environ)
        self._run = run

    def read(self) -> dict[str, tuple[str, ...]]:
        """Return the values by key in lower case; several if a key has several. Raises
        ConfigurationRefused.
        """
        found = text.parse_config(self._scontrol("show", "config"))
        return {key.lower(): values for key, values in found.items()}

    def reconfigure(self) -> None:
        """Let all daemons read their files again. Raises ConfigurationRefused."""
        self._scontrol("reconfigure")

    def try_file(self, path: str) -> None:
        """Raise ConfigurationRefused if Slurm cannot parse this file; no daemon is asked."""
        self._scontrol("show", "hostnames", "localhost", SLURM_CONF=path)

    def _scontrol(self, *args: str, **environ: str) -> str:
        command = ("scontrol", *args)
        try:
            done = self._run(command, timeout_s=_TIMEOUT_S, env={**self._environ, **environ})
        except (CommandTimeout, OSError) as error:
            raise ConfigurationRefused(f"{' '.join(command)}: {error}") from error
        if done.exit_code != 0:
            message = " / ".join(line.strip() for line in done.stderr.splitlines() if line.strip())
            raise ConfigurationRefused(f"{' '.join(command)}: {message or f'exit code {done.exit_code}'}")
        return done.stdout
