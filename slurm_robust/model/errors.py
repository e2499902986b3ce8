"""Errors that a person may meet, and the exit codes of ``srobust``."""

from __future__ import annotations

from enum import IntEnum

UNUSABLE_COPY = 94
"""A worker's exit code where the exception that ended it says that a copy of a checkpoint cannot be restored.

None of ``srobust`` itself: the controller answers it.
"""


class ExitCode(IntEnum):
    """Codes of our own; any other code of ``srobust run`` is the training's.

    The training's own code passes through when its end is final (success, ``final_exit_codes``). The
    numbers are chosen so that a script can tell "start me again" (75) from "do not" (93).
    """

    SUCCESS = 0
    """The training ended well, or the command did what it was asked."""

    USAGE = 64
    """Wrong option or argument (EX_USAGE)."""

    JOURNAL = 65
    """The journal of the job is damaged elsewhere than in its last line (EX_DATAERR)."""

    NO_INPUT = 66
    """The script to run, or a job, node or file named on the command line, is not there (EX_NOINPUT)."""

    SLURM = 69
    """Slurm does not answer, or a Slurm command failed (EX_UNAVAILABLE)."""

    INTERNAL = 70
    """An error in srobust itself (EX_SOFTWARE)."""

    ALLOCATION = 71
    """Not inside a Slurm job, in a heterogeneous one, or with too few nodes for what is asked (EX_OSERR)."""

    JOB_DIR = 73
    """The job directory cannot be written, or is not the same on all nodes (EX_CANTCREAT)."""

    REQUEUED = 75
    """The job was requeued and goes on in its next run (EX_TEMPFAIL)."""

    OTHER_CONTROLLER = 76
    """Another live controller holds the job (EX_PROTOCOL)."""

    CONFIG = 78
    """A configuration file or value is wrong (EX_CONFIG)."""

    DO_NOT_REQUEUE = 93
    """Gave up: starting the same again cannot help. The number that NVIDIA's resiliency extension uses."""

    INTERRUPTED = 130
    """Ctrl-C (128 + SIGINT)."""

    TERMINATED = 143
    """Slurm or the owner ended the job (128 + SIGTERM)."""


class SrobustError(Exception):
    """An error that is reported in one message without a traceback.

    A class has the ``exit_code`` and the ``fix`` of most of its errors; one error may have its own.
    """

    exit_code: int = 1
    """Exit code of ``srobust`` when nothing handles the error."""

    fix: str = ""
    """What the reader can do about it; "" when there is nothing to do."""

    def __init__(self, text: str = "", *, fix: str | None = None, code: int | None = None) -> None:
        super().__init__(text)
        if fix is not None:
            self.fix = fix
        if code is not None:
            self.exit_code = code

    def in_full(self) -> str:
        """The message, and the fix where the message does not hold it."""
        return f"{self}\n  fix: {self.fix}" if self.fix and self.fix not in str(self) else str(self)
