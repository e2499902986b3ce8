"""The protocol that everything else uses to speak with Slurm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from slurm_robust.slurm.need import Size
from slurm_robust.slurm.process import CompletedCommand
from slurm_robust.slurm.records import (
    AccountingRow,
    Allocation,
    NodeEvent,
    Reservation,
    SlurmJob,
    SlurmNode,
    SlurmStep,
    SlurmVersion,
    Submission,
    Switch,
    Terms,
)
from slurm_robust.slurm.requests import ReservationRequest, StepRequest, SubmitRequest


class StepHandle(Protocol):
    """The ``srun`` of a step, a process in a session of its own."""

    @property
    def pid(self) -> int:
        """Process id of srun."""
        ...

    def poll(self) -> int | None:
        """Exit code of srun (negative: signal), None while it runs. Never waits."""
        ...

    def kill(self) -> None:
        """Send srun SIGKILL. Returns immediately, even if ``scancel`` hangs on a dead node.

        The tasks on live nodes die with it within ~10 ms on 22.05 but live on under 24.11 (both measured): to
        end them on every release, cancel the step as well. ``steps`` finds it by the name of its request, so
        give each launch a name of its own.
        """
        ...


class SlurmClient(Protocol):
    """One site's Slurm. Every call is bounded in time.

    All methods raise :class:`~slurm_robust.slurm.errors.SlurmCommandError` types: ControllerUnreachable
    and SlurmTimeout when there is no answer, PermissionDenied, and those named per method. After
    a SlurmTimeout of a write it is unknown whether it took effect; every write here may be repeated.
    Instances may be used from several threads.
    """

    # -- reads -------------------------------------------------------------------------------------

    def version(self) -> SlurmVersion:
        """Release of the client side. Asked once, then remembered."""
        ...

    def now(self) -> float:
        """Return slurmctld's clock: whole seconds since 1970, cut off. The answer takes no lock."""
        ...

    def nodes(self, names: Sequence[str] | None = None) -> tuple[SlurmNode, ...]:
        """Return the nodes ``names`` in that order, or all. Raises InvalidNode for an unknown name."""
        ...

    def node(self, name: str) -> SlurmNode:
        """Return one node at the least cost for slurmctld: only states, reason, CPUs in use, partitions.

        :meth:`nodes` loads the table of all nodes, whatever names it is given: 6 MiB on 10,000 nodes. Raises
        InvalidNode for an unknown name.
        """
        ...

    def job(self, job_id: int) -> SlurmJob:
        """Return one job, also for MinJobAge (300 s by default) after its end. Raises JobNotFound."""
        ...

    def submission(self, job_id: int) -> Submission:
        """Return how the job was submitted. slurmdbd has it some seconds late. Raises JobNotFound."""
        ...

    def jobs(self, user: str | None = None) -> tuple[SlurmJob, ...]:
        """Return jobs that have not ended (pending, running, completing), of one user or all."""
        ...

    def steps(self, job_id: int) -> tuple[SlurmStep, ...]:
        """Return the steps of a job that have not ended; ``()`` when it has none. Raises JobNotFound.

        A step whose node died stays listed until Slurm declares the node DOWN, and longer.
        """
        ...

    def allocation(self, job_id: int) -> Allocation:
        """Return what the job holds now; no nodes for one that does not run. Raises JobNotFound."""
        ...

    def reservations(self) -> tuple[Reservation, ...]:
        """Return all reservations that this user may see."""
        ...

    def accounting(self, job_id: int) -> tuple[AccountingRow, ...]:
        """Return all runs and steps that slurmdbd has of the job, oldest run first; ``()`` when none.

        Rows appear up to 10 s late. Raises CommandFailed if accounting is off.
        """
        ...

    def runs(self, within_s: float) -> tuple[AccountingRow, ...]:
        """Return all runs of all jobs, without steps, that lay within the last ``within_s`` seconds.

        Raises CommandFailed if accounting is off. On a large site slurmdbd may take minutes.
        """
        ...

    def node_events(self, within_s: float) -> tuple[NodeEvent, ...]:
        """Return what happened to all nodes within the last ``within_s`` seconds, as slurmdbd has it.

        Raises CommandFailed if accounting is off.
        """
        ...

    def topology(self) -> tuple[Switch, ...]:
        """Return the switches of topology/tree or the blocks of topology/block; ``()`` if the site declares
        none.
        """
        ...

    def config(self) -> dict[str, str]:
        """Return slurm.conf as slurmctld runs it: names as in slurm.conf(5), unset ones left out."""
        ...

    def partitions(self) -> tuple[Terms, ...]:
        """Return all partitions, with how their jobs are preempted if partitions decide that."""
        ...

    def qos(self) -> tuple[Terms, ...]:
        """Return all QOS, with how their jobs are preempted if they decide that.

        Raises CommandFailed if accounting is off.
        """
        ...

    def accounts(self) -> dict[str, frozenset[str]]:
        """Return the accounts of this cluster and those of their users whom slurmdbd shows to this user.

        Raises CommandFailed if accounting is off.
        """
        ...

    # -- writes: jobs ------------------------------------------------------------------------------

    def requeue(self, job_id: int) -> None:
        """End the run; the job gets COMPLETING, then PENDING with the same id.

        It starts again 121 s later (cred_expire + 1) unless :meth:`start_now` is called when it is
        PENDING. Beware: Slurm accepts this for a job that was cancelled as well, and revives it.
        Raises JobNotFound, RequeueDisabled.
        """
        ...

    def forbid_requeue(self, job_id: int) -> None:
        """Have the job end for good when its batch script ends. Raises JobNotFound, JobFinished."""
        ...

    def release(self, job_id: int) -> None:
        """Undo a hold, also one set by Slurm after a prolog failure. Harmless when not held.

        A begin time (after a requeue) stays. Raises JobNotFound, JobFinished.
        """
        ...

    def start_now(self, job_id: int) -> None:
        """Drop the begin time of a pending job. Accepted, but *lost*, while the job is COMPLETING (and
        on 24.11 sometimes in the moment after): slurmctld writes a new begin time then. So repeat it
        while ``reason`` is BeginTime. *Never within 2 s of the end of the last run*: a start in the
        same second on the same node kills the job for good ("Job credential revoked").
        :mod:`slurm_robust.slurm.requeue` does all this. Raises JobNotFound, JobFinished, JobNotPending.
        """
        ...

    def set_excluded_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """Set ExcNodeList; empty clears it. Raises JobNotPending, JobFinished, JobNotFound, InvalidNode.

        Possible while pending, and while COMPLETING after a requeue; it survives the latter.
        """
        ...

    def set_required_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        """Set ReqNodeList; empty clears it. Raises as :meth:`set_excluded_nodes`."""
        ...

    def set_size(self, job_id: int, size: Size) -> None:
        """Set how many nodes, tasks and CPUs the job asks for. Raises as :meth:`set_excluded_nodes`.

        :attr:`Job.least_nodes <slurm_robust.slurm.records.Job>` shows it, ``num_nodes`` does not.
        """
        ...

    def set_comment(self, job_id: int, text: str) -> None:
        """Set the job's comment, one line; empty clears it. Raises JobNotFound, JobFinished.

        slurmdbd keeps it only if slurm.conf has ``AccountingStoreFlags=job_comment``.
        """
        ...

    def shrink(self, job_id: int, keep: Sequence[str]) -> None:
        """Give back all nodes of a running job but ``keep``, which must hold the batch host.

        Tasks on the nodes given back are killed, others go on. The job's environment variables get
        stale. Raises JobNotFound, InvalidNode, CommandFailed.
        """
        ...

    def cancel(self, job_id: int, *, step_id: str | None = None, signal: str | None = None) -> None:
        """Cancel the job or one step, or only send ``signal`` (``USR1``). Harmless if it has ended."""
        ...

    def submit(self, request: SubmitRequest) -> int:
        """Submit a batch job and return its id.

        Raises InvalidNode, and ReservationNotFound or PermissionDenied for a reservation that is not there or
        not for this user.
        """
        ...

    def run(self, request: SubmitRequest, timeout_s: float) -> CompletedCommand:
        """Run a command as a job of its own, wait for its end, and return its output and exit code.

        A job that cannot start has exit code 1 and Slurm's message in ``stderr``. Raises SlurmTimeout after
        ``timeout_s`` seconds, waiting for a start included. Its srun is killed then; give the request a time
        limit and ``--immediate`` so that the job ends as well.
        """
        ...

    def launch_step(self, request: StepRequest, output: Path) -> StepHandle:
        """Start a step and return immediately; srun's and the tasks' output is appended to ``output``.

        srun runs in a session of its own, so that it survives the death of the caller, and the caller does
        not wait for it: an srun with a dead node in its step ends only when Slurm gives the node up.
        """
        ...

    # -- writes: nodes and reservations (operator, administrator or root) -----------------------------

    def drain(self, nodes: Sequence[str], reason: str) -> None:
        """Give ``nodes`` no new jobs; running ones go on. Raises InvalidNode, PermissionDenied.

        ``reason`` is one line and not empty.
        """
        ...

    def resume(self, nodes: Sequence[str]) -> None:
        """Undo a drain or a down. Raises InvalidNode, PermissionDenied."""
        ...

    def create_reservation(self, request: ReservationRequest) -> None:
        """Reserve nodes. Raises PermissionDenied (also for a user whom Slurm does not know), InvalidNode,
        InvalidAccount, InvalidPartition, NodesBusy, CommandFailed (as for a start more than 600 s before
        slurmctld's clock), and ReservationExists for a name that is taken: of several who ask, exactly one
        gets it, until the reservation ends by slurmctld's clock or is deleted.

        If the partition has fewer than ``node_count`` nodes in all, Slurm gives what is free (seen on 22.05).
        For users who are not in the accounts, 22.05 refuses it, but from 23.11 on Slurm does so only if
        AccountingStorageEnforce has associations (``_set_assoc_list``, reservation.c). Else it reserves nodes
        that no job gets (seen on 24.11 and 26.05).
        """
        ...

    def delete_reservation(self, name: str) -> None:
        """Delete it; jobs that wait in it are held. Raises ReservationNotFound, ReservationInUse,
        PermissionDenied.
        """
        ...
