"""The only module that starts Slurm's commands. Argument lists only, a time limit always."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from slurm_robust.model.record import Record
from slurm_robust.util import proc
from slurm_robust.util.program import run_program

_MAX_BYTES = 2**30  # more than any answer of Slurm has


_NEEDED = ("scontrol", "srun")  # those without which no job runs; the others come with them


def lacking_commands(path: str) -> list[str]:
    """Return which of Slurm's commands are in no folder of ``path``, as within most images of containers."""
    return [name for name in _NEEDED if shutil.which(name, path=path) is None]


class CompletedCommand(Record):
    """A command that ended by itself."""

    command: tuple[str, ...]
    exit_code: int
    """Negative for a signal, as in ``subprocess``."""

    stdout: str
    stderr: str


class CommandTimeout(Exception):
    """The command did not end in time; it and what it had started were killed."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")
        self.command = tuple(command)
        self.timeout_s = timeout_s


class CommandRunner(Protocol):
    """Runs one command to its end.

    Raises :class:`CommandTimeout` when it does not end within ``timeout_s`` seconds, and
    ``FileNotFoundError`` or ``PermissionError`` when it cannot be started.
    """

    def __call__(
        self,
        command: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> CompletedCommand:
        """Run a command. ``env`` replaces the environment, None inherits it; the command reads ``stdin``."""
        ...


def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> CompletedCommand:
    """Return the real :class:`CommandRunner`.

    The command inherits the signals that this thread blocks, so that a dying controller can finish what it
    asks of Slurm.
    """
    done = run_program(command, limit_s=timeout_s, max_bytes=_MAX_BYTES, stdin=stdin.encode(), env=env)
    if done.code is None:
        raise CommandTimeout(command, timeout_s)
    return CompletedCommand(
        command=tuple(command),
        exit_code=done.code,
        stdout=done.output.decode(errors="replace"),
        stderr=done.errors.decode(errors="replace"),
    )


class DetachedProcess:
    """A process in a session of its own that outlives its parent. Satisfies ``StepHandle``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process id, also the id of its process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Exit code (negative: signal) or None while it runs. Never waits."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to the whole process group; returns immediately, also when it is gone already."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def kill_srun(pid: int) -> None:
    """Kill the srun ``pid`` with SIGKILL and let the tasks of its step live.

    On another signal it would end them. So would its child, the shepherd, at the end of its parent, and goes
    first.
    """
    children = reversed(proc.descendants(proc.process_table(), pid))
    for number in (*(child.pid for child in children), pid):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def spawn_detached(command: Sequence[str], *, output: Path, env: Mapping[str, str]) -> DetachedProcess:
    """Start ``command`` in its own session, stdout and stderr appended to ``output``, stdin empty."""
    with output.open("ab") as sink:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
        )
    return DetachedProcess(process)
