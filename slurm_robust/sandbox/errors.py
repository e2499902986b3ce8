"""What can go wrong with a sandbox.

SandboxError
 ├─ InvalidSandbox       a name or setting that cannot work (also a ValueError)
 ├─ RequirementMissing   this machine lacks a right or a program
 ├─ AlreadyUp            a sandbox of that name exists
 ├─ NotOurs              a folder in its place was not made by a sandbox
 ├─ NotUp                no sandbox of that name runs
 ├─ NotThere             it has no such node, rank, log or GPU
 ├─ BootFailed           a part of it did not come up in time
 ├─ FaultRefused         the fault cannot be injected as it was asked for
 ├─ ExecFailed           a command inside ended with an exit code other than 0
 └─ ExecTimedOut         a command inside did not end in time
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model.errors import ExitCode, SrobustError


class SandboxError(SrobustError):
    """Base of this unit's errors; ``fix`` says what to do."""

    def __init__(self, message: str, *, fix: str) -> None:
        super().__init__(f"{message}\n  fix: {fix}", fix=fix)


class InvalidSandbox(SandboxError, ValueError):
    """A name or a setting of a sandbox that cannot work."""

    exit_code = ExitCode.USAGE


class RequirementMissing(SandboxError):
    """The machine lacks something that a sandbox needs."""


class AlreadyUp(SandboxError):
    """A sandbox with this name exists."""


class NotASandbox(SandboxError):
    """In place of its folder is one that no sandbox made."""


class NotUp(SandboxError):
    """No sandbox with this name runs."""

    exit_code = ExitCode.NO_INPUT


class NotThere(SandboxError):
    """The sandbox has no such node, rank, log or GPU."""

    exit_code = ExitCode.NO_INPUT


class BootFailed(SandboxError):
    """A daemon or node did not come up; the message holds the end of its log."""

    exit_code = ExitCode.SLURM

    def __init__(
        self,
        message: str,
        *,
        fix: str = "see to what it says; a busy machine may have been too slow: try again",
    ) -> None:
        super().__init__(message, fix=fix)


class FaultRefused(SandboxError):
    """A fault that cannot be injected as it was asked for."""


class ExecFailed(SandboxError):
    """A command inside the sandbox failed. Keeps the exit code and both outputs."""

    def __init__(self, argv: Sequence[str], returncode: int, stdout: str, stderr: str) -> None:
        last = (stderr.strip() or stdout.strip() or "no output")[-2000:]
        super().__init__(
            f"{' '.join(argv)} ended with exit code {returncode}: {last}",
            fix="see to what it says; srobust sandbox status shows what runs",
        )
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


class ExecTimedOut(SandboxError):
    """A command inside the sandbox did not end in time, and was killed."""

    exit_code = ExitCode.SLURM

    def __init__(self, argv: Sequence[str], timeout_s: float, said: bytes) -> None:
        last = said.decode(errors="replace").strip().rpartition("\n")[2][-500:] or "it printed nothing"
        super().__init__(
            f"{' '.join(argv)} did not end within {timeout_s:g} s: {last}",
            fix="see to what it says; a busy machine may have been too slow: try again",
        )
