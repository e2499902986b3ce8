"""``srobust drill JOBID FAULT``: the owner tries a fault on the own job and sees it recover."""

from __future__ import annotations

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.report.find import find
from slurm_robust.wire.client import ask
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import Drill, DrillReply

FAULTS = ("kill-rank", "stop-rank")
TIMEOUT_S = 5.0


class DrillFailed(SrobustError):
    """The fault could not be made."""

    exit_code = ExitCode.USAGE


def main(name: str, fault: str, rank: int, *, job_dir: str | None) -> int:
    """Have ``fault`` done to ``rank`` of a running job. Raises ``NoSuchJob``, :class:`DrillFailed`."""
    directory, _ = find(name, job_dir)
    epoch = newest_epoch(directory.epochs)
    if epoch is None:
        raise _failed(f"job {name} has no controller yet", "try again in a few seconds")
    answer = ask(
        epoch.endpoints, load_client(directory.keys), Drill(fault=fault, rank=rank), timeout_s=TIMEOUT_S
    )
    if not isinstance(answer, DrillReply):
        raise _failed(
            f"the controller of job {name} ({epoch.host}, port {epoch.port}) does not answer",
            "is the job running (srobust status), and can this host reach that node?",
        )
    if not answer.ok:
        raise _failed(answer.text, "see 'srobust status' for what runs")
    print(answer.text)
    return 0


def _failed(text: str, fix: str) -> DrillFailed:
    error = DrillFailed(text)
    error.fix = fix
    return error
