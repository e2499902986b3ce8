"""The only module that starts Slurm's commands. Argument lists only, a time limit always."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from slurm_robust.model.record import Record


class CompletedCommand(Record):
    """A command that ended by itself. ``exit_code`` is negative for a signal, as in ``subprocess``."""

    command: tuple[str, ...]
    exit_code: int
    stdout: str
    stderr: str
    wall_s: float = 0.0


class CommandTimeout(Exception):
    """The command did not end in time; its whole process group was killed."""

    def __init__(self, command: Sequence[str], timeout_s: float) -> None:
        super().__init__(f"no answer within {timeout_s:g} s")
        self.command = tuple(command)
        self.timeout_s = timeout_s


class Run(Protocol):
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
        """``env`` replaces the environment, None inherits it; ``stdin`` is what the command reads."""
        ...


def run_command(
    command: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
) -> CompletedCommand:
    """The real :class:`Run`.

    The command gets a process group of its own, so that a time-out also ends its children. Signals
    that this process ignores stay ignored in the command: a dying controller that ignores SIGTERM
    can finish what it asks of Slurm.
    """
    begun = time.monotonic()
    process = subprocess.Popen(
        list(command),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=None if env is None else dict(env),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(stdin.encode(), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        kill_group(process)
        raise CommandTimeout(command, timeout_s) from None
    except BaseException:
        # KeyboardInterrupt and the like: never leave a child behind.
        kill_group(process)
        raise
    return CompletedCommand(
        command=tuple(command),
        exit_code=process.returncode,
        stdout=out.decode(errors="replace"),
        stderr=err.decode(errors="replace"),
        wall_s=time.monotonic() - begun,
    )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the process's whole group, then reap the process (bounded, KILL cannot be refused)."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # It ended in the meantime.
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            try:
                stream.close()
            except BrokenPipeError:
                pass  # Unwritten input of a process that is gone.
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        pass  # Stuck in the kernel (dead NFS server): waiting longer would hang the caller as well.


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
        """SIGKILL to the whole process group; returns at once, also when it is gone already."""
        if self._process.poll() is None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


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


class LineProcess:
    """A child that answers each line on its stdin with one line on its stdout.

    Used for what must not run in this process. Not for use from several threads at once.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> None:
        self._command = tuple(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        self._buffer = b""
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=None if env is None else dict(env),
            start_new_session=True,
        )

    @property
    def alive(self) -> bool:
        """Whether the child still runs."""
        return self._process.poll() is None

    def send(self, line: str) -> None:
        """Write one line. Raises ``BrokenPipeError`` when the child is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def receive(self, timeout_s: float) -> str:
        """The next line. Raises :class:`CommandTimeout`, or ``EOFError`` when the child has ended."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout_s
        fd = self._process.stdout.fileno()
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise CommandTimeout(self._command, timeout_s)
            chunk = os.read(fd, 65536)
            if not chunk:
                raise EOFError(self._error_output())
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def _error_output(self) -> str:
        """The end of what the child wrote to stderr, 2000 bytes at most."""
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - 2000))
        return self._errors.read().decode(errors="replace").strip()

    def close(self) -> None:
        """Kill the child and what it started; returns when it is reaped."""
        kill_group(self._process)
        self._errors.close()
