"""Errors that a person may meet, and the exit codes of ``srobust``."""

from __future__ import annotations

from enum import IntEnum

UNUSABLE_COPY = 94
"""A worker's exit code if the exception that ended it says that a copy of a checkpoint cannot be restored.

None of ``srobust`` itself: the controller answers it.
"""


class ExitCode(IntEnum):
    """Codes of our own; any other code of ``srobust run`` is the script's.

    The script's own code passes through if its end is final (success, ``final_exit_codes``). The numbers are
    those of ``sysexits.h`` if it has one, and a script can tell "start me again" (75) from "do not" (93). The
    texts are the table of ``docs/exit-codes.md``.
    """

    SUCCESS = 0
    """The training ended successfully, or the command did what it was asked."""

    USAGE = 64
    """Wrong option or argument. ``srobust COMMAND --help``."""

    JOURNAL = 65
    """The journal of the job is damaged in a line other than the last, or another version of slurm_robust
    wrote it. The message names the line. Also if the newest chapter of a training cannot be read.
    """

    NO_INPUT = 66
    """The script, module or program, or a job, node, partition, reservation, sandbox or file named on the
    command line, does not exist or cannot be read.
    """

    SLURM = 69
    """Slurm does not answer, or a Slurm command failed. Try again; ``scontrol ping``."""

    INTERNAL = 70
    """An error in srobust itself. The log has a traceback; please report it."""

    ALLOCATION = 71
    """Not inside a Slurm job, inside a heterogeneous one, or more nodes are requested than the allocation
    has.
    """

    JOB_DIR = 73
    """The job directory cannot be written, is not the same on all nodes, or others could replace it ([shared
    folders](security.md#folders-and-ports)). Use ``--job-dir`` on shared storage. Also if storage prevents
    a controller from starting for half an hour and no agent is left, and if an ``admin`` command, a report or
    the output of a command cannot be written.
    """

    CHECKPOINTS = 74
    """Storage has lost the checkpoints of this training, or none can be used; nothing was overwritten. The
    job's log says why for each one. Bring the folder back and requeue or submit the job again; to begin
    anew, submit a new job (of a training: with ``--fresh``). ``checkpoint.if_unusable: wait`` waits instead.
    """

    REQUEUED = 75
    """The job was requeued and continues in its next run. Nothing to do; if it stays PENDING, ``srobust
    status JOB`` says what it waits for and which command starts it now.
    """

    OTHER_CONTROLLER = 76
    """Another controller of this job, or another start of ``srobust run`` in it, is alive, or another job
    that has not ended for good has the [training](trainings.md) or is what ``--from`` names. Also if a
    job was requeued after another one had taken its training. The message names the other job, and says
    what to do.
    """

    REFUSED = 77
    """Slurm or this machine does not do what was asked: a right, a program or a resource is lacking. The
    message says which. Also if a job needs a checkpoint that ``srobust checkpoint rm`` was to remove.
    """

    CONFIG = 78
    """A configuration file or value is wrong (``srobust config check FILE``), or the parallel sizes do not
    fit the nodes or the training's checkpoints: the message says which would. Also if a training would begin
    in a folder with checkpoints of others.
    """

    DO_NOT_REQUEUE = 93
    """Gave up: the same start would fail again. ``srobust status JOB`` shows why. (The number is that of
    NVIDIA's resiliency extension.)
    """

    INTERRUPTED = 130
    """Ctrl-C, also in ``salloc … srobust run …``."""

    TERMINATED = 143
    """Slurm or the owner ended the job (``scancel``, a preemption that cancels, time limit without requeue).
    The newest step of memory went to storage first, or the log says which steps are lost.
    """


class SrobustError(Exception):
    """An error that is reported in one message without a traceback.

    A class has the ``exit_code`` and the ``fix`` of most of its errors; one error may have its own.
    """

    exit_code: int = ExitCode.REFUSED
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
        """Return the message, and the fix if the message does not hold it."""
        return f"{self}\n  fix: {self.fix}" if self.fix and self.fix not in str(self) else str(self)


class PreflightError(SrobustError):
    """The job cannot be started as asked."""

    def __init__(self, text: str, *, fix: str, code: ExitCode) -> None:
        super().__init__(text)
        self.fix = fix
        self.exit_code = code
