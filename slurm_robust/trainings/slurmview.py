"""A job as Slurm knows it: slurmctld's record, slurmdbd's once slurmctld forgot it, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec import structs

from slurm_robust.model.events import AnyEvent
from slurm_robust.model.journal import another_job, fold
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import ControllerUnreachable, JobNotFound, SlurmError, SlurmTimeout
from slurm_robust.slurm.need import Need, segment_of
from slurm_robust.slurm.records import TERMINAL_STATES, AccountingRow, SlurmJob
from slurm_robust.slurm.select import make_client
from slurm_robust.trainings.waiting import PendingJob, waiting
from slurm_robust.util.hostlist import fold as fold_nodes
from slurm_robust.util.text import count

ANSWER_S = 10.0
"""Limit for one answer of Slurm, in seconds: a person waits at a screen."""


class SlurmView(Record):
    """A job as Slurm knows it. Without ``job``, ``row`` and ``silent`` Slurm does not know the job."""

    job: SlurmJob | None = None
    row: AccountingRow | None = None
    """slurmdbd's record of its newest run, if it was asked."""
    silent: str = ""
    """Why there is no answer, as the end of a sentence that begins with "Slurm"."""
    fix: str = ""
    """What a person can do about that."""
    away: bool = False
    """Slurm may answer later."""
    needs: int = 0
    """How many nodes a pending job waits for at least, 0 if that is not known."""
    most: int = 0
    """And at most."""
    waiting: PendingJob | None = None
    """What a pending job waits for, if its nodes were asked for."""
    before: str = ""
    """How slurmdbd says that the run before the requeue ended, if it was asked."""
    left: str = ""
    """The node from which the controller was taken over, as long as the job has it in Slurm's books."""
    leaves: bool = False
    """Slurm ends the run that the journal knows, and not to requeue the job."""

    @property
    def state(self) -> str:
        """Slurm's state (``COMPLETING+FAILED``), "" if it is not known."""
        if self.job is not None:
            return "+".join(sorted(self.job.states))
        return self.row.state if self.row is not None else ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good, by what Slurm knows."""
        if self.job is not None:
            return self.job.is_finished or self.leaves
        return self.row is not None and self.row.state in TERMINAL_STATES

    @property
    def goes_on(self) -> bool:
        """Whether time passes for the job: Slurm has it or may have it, and it has not ended."""
        return not self.is_over and (self.job is not None or self.row is not None or self.away)

    def describe(self) -> str:
        """Return ``PENDING (Resources), needs 3 nodes``, ``does not answer (…)``; "" for an unknown job."""
        job = self.job
        reason = f" ({job.reason})" if job is not None and job.reason not in ("", "None") else ""
        to = f"{self.needs} to " if self.most > self.needs else ""
        needs = f", needs {to}{count(max(self.needs, self.most), 'node')}" if self.needs else ""
        return self.silent or self.state + reason + needs


def make_slurm() -> SlurmClient:
    """Return the client for commands that must answer immediately."""
    return make_client("cli", timeout_s=ANSWER_S)


def ask_slurm(slurm: SlurmClient, job_id: int) -> SlurmView:
    """Return the job as Slurm knows it now. Never raises."""
    try:
        job = slurm.job(job_id)
        # For a requeued job NumNodes may be what was left of it, once it had been shrunk.
        known = job.least_nodes or (0 if job.restart_count else job.num_nodes)
        return SlurmView(job=job, needs=known if job.is_pending else 0)
    except JobNotFound:
        return SlurmView(row=newest_run(slurm, job_id))
    except (ControllerUnreachable, SlurmTimeout) as error:
        return SlurmView(silent=f"does not answer ({error.what})", fix=error.fix, away=True)
    except SlurmError as error:
        return SlurmView(silent=f"gives no answer ({error})", fix=error.fix)


def newest_run(slurm: SlurmClient, job_id: int) -> AccountingRow | None:
    """Return slurmdbd's row of the job's newest run; None without one, and without accounting."""
    try:
        rows = slurm.accounting(job_id)
    except SlurmError:
        return None
    return next((row for row in reversed(rows) if not row.step and row.state != "RESIZING"), None)


def view_of(events: Sequence[AnyEvent], slurm: SlurmClient) -> SlurmView:
    """Return the job of a journal as Slurm knows it; empty if its id now belongs to another job."""
    state = fold(events)
    view = ask_slurm(slurm, state.job_id)
    job = view.job
    if job is None:
        return view
    if another_job(events, "", job.restart_count, job.submit_time):
        return SlurmView()
    need = need_of(state) if job.is_pending else None
    return structs.replace(
        view,
        needs=need.least if need is not None else view.needs,
        most=need.most if need is not None else view.most,
        # So says 22.05 of a cancelled job, and of a requeued one, whose restarts it has counted.
        leaves=job.states == {"COMPLETING"} and job.restart_count <= state.restart_count,
    )


def need_of(state: JobState) -> Need | None:
    """Return with how many nodes the job of a journal can go on; None before its first run has begun."""
    slots = len(state.world.slots)
    return Need(least=slots, most=slots + state.wanted_spares, segment=state.segment) if slots else None


def waits_for(slurm: SlurmClient, job: SlurmJob, state: JobState | None) -> PendingJob | None:
    """Return what a pending job waits for, None for any other. ``state``: its journal's, if it has one."""
    if not job.is_pending:
        return None
    need = need_of(state) if state is not None else None
    try:
        nodes = slurm.nodes()
        topology = slurm.topology() if segment_of(job, need) else ()
    except SlurmError:
        nodes, topology = (), ()
    return waiting(job, nodes, need, state.excluded if state is not None else (), topology)


def run_before(slurm: SlurmClient, job: SlurmJob, state: JobState) -> str:
    """Return how slurmdbd says that the run of a journal ended, if Slurm has requeued the job; else ""."""
    if state.ended is None or not state.ended.requeued or job.restart_count <= state.restart_count:
        return ""
    with suppress(SlurmError):
        rows = [row for row in slurm.accounting(job.job_id) if not row.step and row.state != "RESIZING"]
        return next((row.state for row in reversed(rows) if row.run == max(0, state.restart_count)), "")
    return ""


def left_node(slurm: SlurmClient, job: SlurmJob, state: JobState) -> str:
    """Return the node from which the controller was taken over, until Slurm has given it up; "" for none."""
    if not job.is_running or state.taken_from not in job.nodes:
        return ""
    with suppress(SlurmError):
        return "" if any(node.is_down for node in slurm.nodes((state.taken_from,))) else state.taken_from
    return ""


def completing_advice(slurm: SlurmClient, job: SlurmJob) -> str:
    """Return what a COMPLETING job waits for and how to end that; "" for others, or if Slurm says nothing."""
    if not job.is_completing or not job.nodes:
        return ""
    try:
        silent = [n.name for n in slurm.nodes(job.nodes) if not n.responding and not n.is_down]
        timeout = slurm.config().get("SlurmdTimeout", "").removesuffix("ec")  # "300 sec"
    except SlurmError:
        return ""
    if not silent:
        return ""
    what = f"node{'s' if len(silent) > 1 else ''} {fold_nodes(silent)}"
    limit = f" (SlurmdTimeout={timeout})" if timeout else ""
    return (
        f"waits for Slurm to give up {what}{limit}; an administrator can do it immediately: "
        f"scontrol update nodename={fold_nodes(silent)} state=down reason=dead"
    )
