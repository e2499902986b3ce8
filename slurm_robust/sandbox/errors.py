"""What can go wrong with a sandbox.

SandboxError
 ├─ InvalidSandbox       a name or setting that cannot work (also a ValueError)
 ├─ RequirementMissing   this machine lacks a right or a program
 ├─ AlreadyUp            a sandbox of that name exists
 ├─ NotUp                no sandbox of that name runs
 ├─ BootFailed           a part of it did not come up in time
 ├─ FaultRefused         the fault names a node, job, rank or path that is not there
 └─ ExecFailed           a command inside ended with an exit code other than 0
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode


class SandboxError(SrobustError):
    """Base of this unit's errors; ``fix`` tells the way out."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(f"{message}\n{fix}" if fix else message)
        self.fix = fix


class InvalidSandbox(SandboxError, ValueError):
    """A name or a setting of a sandbox that cannot work."""

    exit_code = ExitCode.USAGE


class RequirementMissing(SandboxError):
    """The machine lacks something that a sandbox needs."""


class AlreadyUp(SandboxError):
    """A sandbox with this name exists."""


class NotUp(SandboxError):
    """No sandbox with this name runs."""


class BootFailed(SandboxError):
    """A daemon or node did not come up; the message holds the end of its log."""


class FaultRefused(SandboxError):
    """A fault that cannot be injected as it was asked for."""


class ExecFailed(SandboxError):
    """A command inside the sandbox failed. Keeps the exit code and both outputs."""

    def __init__(self, argv: Sequence[str], returncode: int, stdout: str, stderr: str) -> None:
        last = (stderr.strip() or stdout.strip() or "no output")[-2000:]
        super().__init__(f"{' '.join(argv)} ended with exit code {returncode}: {last}")
        self.argv = tuple(argv)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
