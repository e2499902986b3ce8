"""The controller of a running job, as commands ask it: who is asked, and what to say when nobody is there."""

from __future__ import annotations

from slurm_robust.controller.evidence.texts import one_line
from slurm_robust.model.state import JobState
from slurm_robust.report.slurmview import ask_slurm
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.wire.epochs import EpochRecord


def ended(state: JobState) -> str:
    """That the job has ended, in words; "" while its journal does not say so."""
    if state.ended is None:
        return ""
    return f"job {state.job_id} has ended: {one_line(state.ended.reason)}"


def unanswered(state: JobState, epoch: EpochRecord, slurm: SlurmClient) -> tuple[str, str]:
    """Why a controller does not answer, and what to do. Who was cancelled has not written down its end."""
    view = ask_slurm(slurm, state.job_id)
    if view.is_over:
        return f"job {state.job_id} has ended: Slurm says {view.in_words()}", "look at a job that runs"
    says = f"; Slurm: {view.in_words()}" if view.in_words() else ""
    return (
        f"the controller of job {state.job_id} ({epoch.host}, port {epoch.port}) does not answer{says}",
        "is the job running (srobust status), and can this host reach that node?",
    )
