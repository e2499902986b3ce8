"""Everything that can go wrong with Slurm, as types.

::

    SlurmError                      fix: what the reader can do about it
     ├─ NotInAllocation             this process does not belong to a Slurm job
     ├─ BackendUnavailable          the backend asked for cannot be used here
     ├─ NotFenced                   another controller has the job, or that is not known
     └─ SlurmCommandError           carries command, returncode, stdout, stderr
         ├─ SlurmCommandMissing     the program is not on the PATH
         ├─ SlurmTimeout            no answer in time; whether it took effect is unknown
         ├─ ControllerUnreachable   slurmctld (or slurmdbd) does not answer
         ├─ UnparsableOutput        exit code 0, but not the output that this release prints
         ├─ JobNotFound             no such job, or forgotten after MinJobAge
         ├─ StepNotFound            no such step, or it has ended
         ├─ JobNotPending           the change is only possible while the job is pending
         ├─ JobFinished             the job has ended for good
         ├─ RequeueDisabled         the job was submitted with --no-requeue
         ├─ InvalidNode             a node that Slurm does not know
         ├─ ReservationNotFound     no such reservation
         ├─ ReservationExists       a reservation has this name already
         ├─ ReservationInUse        a job holds nodes by way of the reservation
         ├─ NodesBusy               jobs or other reservations have the nodes
         ├─ InvalidPartition        a partition that Slurm does not know
         ├─ InvalidAccount          Slurm does not know the account, or the user is not in it
         ├─ PermissionDenied        only an operator, the owner or root may do that
         └─ CommandFailed           anything else; the text is Slurm's own
             ├─ SlurmNotConfigured  the program is here, slurm.conf is not
             └─ UpdateUnavailable   no change of the job is possible for now

Releases and commands word the same error differently; :func:`classify`
is the one place that knows them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.slurm.process import CompletedCommand


class SlurmError(SrobustError):
    """Root of everything that this layer raises."""


class NotInAllocation(SlurmError):
    """The environment is not that of a Slurm job."""

    exit_code = ExitCode.ALLOCATION
    fix = "submit the job with sbatch, or start a shell in an allocation with salloc"


class BackendUnavailable(SlurmError):
    """The client backend that was asked for cannot work here."""

    fix = "use slurm.backend: auto (or cli), which needs only Slurm's own commands"


class NotFenced(SlurmError):
    """A controller changes nothing in Slurm while it does not know that the job is still its own."""

    fix = "nothing: the controller that has taken over runs the job; the job's log names its host"


class SlurmCommandError(SlurmError):
    """A command of Slurm did not do what it should. Times out, fails, or answers nonsense.

    ``command`` is the argument list, ``returncode`` (not to be mistaken for srobust's own
    ``exit_code``) is None when it did not end by itself.
    """

    exit_code = ExitCode.SLURM
    fix = "run the command by hand to see more"

    def __init__(
        self,
        what: str,
        *,
        command: Sequence[str] = (),
        returncode: int | None = None,
        stdout: str = "",
        stderr: str = "",
        fix: str | None = None,
    ) -> None:
        self.what = what
        self.command = tuple(command)
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr
        super().__init__(self._message(), fix=fix)

    def _message(self) -> str:
        parts = [self.what]
        if self.command:
            parts.append(f"command: {shlex.join(self.command)}")
        if self.returncode is not None:
            parts.append(f"exit code {self.returncode}")
        said = " | ".join(line.strip() for line in self.stderr.splitlines() if line.strip())
        if said and said != self.what:
            parts.append(f"stderr: {said[:500]}")
        return "; ".join(parts)


class SlurmCommandMissing(SlurmCommandError):
    """The program was not found. The message shows the PATH that was searched."""

    fix = "go to a node that has Slurm's commands (a login node), or put their folder on the PATH"


class SlurmTimeout(SlurmCommandError):
    """No answer in time. The order may or may not have been carried out: ask before repeating it."""

    fix = "see whether slurmctld is overloaded (sdiag), or raise slurm.timeout_s"


class ControllerUnreachable(SlurmCommandError):
    """Slurm's daemon does not answer. Running jobs go on; nothing can be changed until it is back."""

    fix = "see 'scontrol ping'; commands are answered again when slurmctld is back"


class UnparsableOutput(SlurmCommandError):
    """The command succeeded but printed something that this release of slurm_robust cannot read."""

    fix = "report it with the Slurm release (sinfo --version) and the output shown"


class JobNotFound(SlurmCommandError):
    """Slurm does not know the job (any more)."""

    exit_code = ExitCode.NO_INPUT
    fix = "check the job id; slurmctld forgets ended jobs after MinJobAge, sacct keeps them"


class StepNotFound(SlurmCommandError):
    """Slurm does not know the step (any more)."""

    fix = "nothing to do if the step was meant to end"


class JobNotPending(SlurmCommandError):
    """The change is only possible while the job is pending."""

    fix = "requeue the job first; Slurm accepts it from then on, also while the job is completing"


class JobFinished(SlurmCommandError):
    """The job has ended for good."""

    fix = "submit it again"


class RequeueDisabled(SlurmCommandError):
    """Slurm may not requeue this job."""

    fix = "submit with sbatch --requeue"


class InvalidNode(SlurmCommandError):
    """A node name that Slurm does not know."""

    exit_code = ExitCode.NO_INPUT
    fix = "compare with the names that 'sinfo -N' shows"


class ReservationNotFound(SlurmCommandError):
    """Slurm does not know the reservation."""

    exit_code = ExitCode.NO_INPUT
    fix = "compare with 'scontrol show reservation'"


class ReservationExists(SlurmCommandError):
    """A reservation has this name already."""

    fix = "choose another name, or delete the one that 'scontrol show reservation' shows"


class ReservationInUse(SlurmCommandError):
    """A job holds nodes by way of the reservation, so Slurm does not delete it."""

    fix = "see 'squeue --reservation=NAME'"


class NodesBusy(SlurmCommandError):
    """Jobs or other reservations have the nodes that a reservation needs."""

    fix = "compare with 'sinfo -N' and 'scontrol show reservation'; IGNORE_JOBS takes nodes on which jobs run"


class InvalidPartition(SlurmCommandError):
    """Slurm does not know the partition."""

    exit_code = ExitCode.NO_INPUT
    fix = "compare with the partitions that 'sinfo -s' shows"


class InvalidAccount(SlurmCommandError):
    """Slurm does not know the account, or the user is not in it."""

    fix = (
        "compare with 'sacctmgr show assoc'; where AccountingStorageEnforce has associations, reservations "
        "for root need one of root: sacctmgr add user root account=root"
    )


class PermissionDenied(SlurmCommandError):
    """The user may not do this."""

    fix = "nodes and reservations need root or AdminLevel=Operator/Administrator; jobs need their owner"


class CommandFailed(SlurmCommandError):
    """Any other failure; the text is Slurm's own."""


class SlurmNotConfigured(CommandFailed):
    """Slurm's commands are installed here, but this machine belongs to no cluster."""

    fix = "run it on a node or a login node of the cluster, or set SLURM_CONF"

    def _message(self) -> str:
        return f"{self.what}: this machine belongs to no cluster"


class UpdateUnavailable(CommandFailed):
    """Slurm changes nothing of the job until slurmdbd has recorded its start, and says so after 5 s.

    Without slurmdbd, a job that was resized stays so until its run has ended (measured, 22.05.8).
    """

    fix = "try again in some seconds"


# The first match wins, so the narrow ones come first. Lower case.
_TEXTS: tuple[tuple[str, type[SlurmCommandError]], ...] = (
    ("no longer pending execution", JobNotPending),
    ("job update not available right now", UpdateUnavailable),
    ("invalid job step", StepNotFound),
    ("invalid step", StepNotFound),
    ("already finished", JobFinished),
    ("already completing or completed", JobFinished),
    ("invalid job id", JobNotFound),
    ("invalid user id", PermissionDenied),
    ("access/permission denied", PermissionDenied),
    ("access denied", PermissionDenied),
    ("requested operation is presently disabled", RequeueDisabled),
    ("requested reservation is invalid", ReservationNotFound),
    ("duplicate reservation name", ReservationExists),
    ("requested reservation is in use", ReservationInUse),
    ("requested nodes are busy", NodesBusy),
    ("overlaps with another reservation", NodesBusy),
    ("invalid partition name", InvalidPartition),
    ("invalid account", InvalidAccount),
    ("invalid node name", InvalidNode),
    ("could not establish a configuration source", SlurmNotConfigured),
    ("in standby mode", ControllerUnreachable),
    ("unable to contact slurm controller", ControllerUnreachable),
    ("zero bytes were transmitted", ControllerUnreachable),
    ("connection refused", ControllerUnreachable),
    ("communication connection failure", ControllerUnreachable),
    ("socket timed out on send/recv", ControllerUnreachable),
    ("problem talking to the database", ControllerUnreachable),
)


# Lower case. In full sentences, since names that users give may be in the same text.
_NOT_FOUND: tuple[tuple[str, type[SlurmCommandError]], ...] = (
    (r"\breservation(?: \S+)? not found", ReservationNotFound),
    (r"\bstep(?: \S+)? not found", StepNotFound),
    (r"\bjob(?: ?id)?(?:[ =]\d\S*)? not found", JobNotFound),
    (r"\bnode(?: \S+)? not found", InvalidNode),
)
GONE = (JobNotFound, StepNotFound, InvalidNode, ReservationNotFound)


def classify(done: CompletedCommand) -> SlurmCommandError:
    """Return the typed error for a command that failed, from its text. Pure."""
    text = f"{done.stderr}\n{done.stdout}"
    known, kind = _kind(text)
    # Advice of Slurm may follow the line that says what is wrong.
    lines = [line.strip() for line in text.splitlines() if line.strip() and known in line.lower()]
    what = lines[-1] if lines else f"{done.command[0]} failed without a message"
    return kind(
        what,
        command=done.command,
        returncode=done.exit_code,
        stdout=done.stdout,
        stderr=done.stderr,
    )


def of_document(listed: Sequence[object]) -> SlurmCommandError:
    """Return the typed error for ``errors`` of a JSON document, which comes with exit code 0, too. Pure.

    An entry has ``description``, ``error``, ``error_number`` and ``source``; of them 22.05 has some. If no
    error is named (``error_number`` 0), nothing is known; it does not mean that nothing is there.
    """
    texts = []
    for one in listed:
        words = [one.get(key) for key in ("description", "error")] if isinstance(one, dict) else [one]
        texts.append(": ".join(str(word) for word in words if word))
    what = "; ".join(filter(None, texts)) or "an error without a text"
    _, kind = _kind(what)
    return kind(f"Slurm answers with an error: {what[:500]}")


def _kind(text: str) -> tuple[str, type[SlurmCommandError]]:
    """Return the part of the text that says what is wrong, in lower case, and the error's type."""
    low = text.lower()
    for part, kind in _TEXTS:
        if part in low:
            return part, kind
    for pattern, kind in _NOT_FOUND:
        if found := re.search(pattern, low):
            return found[0], kind
    return "", CommandFailed
