"""``srobust drill JOBID FAULT``: the owner tries a fault on the own job and sees it recover."""

from __future__ import annotations

from slurm_robust.model.errors import SrobustError
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.model.journal import fold
from slurm_robust.util.text import one_line
from slurm_robust.report.asking import ended, unanswered
from slurm_robust.report.find import find, load_events
from slurm_robust.report.slurmview import make_slurm
from slurm_robust.wire.client import ask
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import Drill, DrillReply

FAULTS = ("kill-rank", "stop-rank")
TIMEOUT_S = 5.0


class DrillFailed(SrobustError):
    """The fault could not be made."""

    def __init__(self, text: str, fix: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(text)
        self.fix = fix
        self.exit_code = code


def main(name: str, fault: str, rank: int, *, job_dir: str | None) -> int:
    """Have ``fault`` done to ``rank`` of a running job. Raises ``NoSuchJob``, :class:`DrillFailed`."""
    slurm = make_slurm()
    directory = find(name, job_dir, slurm)
    state = fold(load_events(directory))
    if over := ended(state):
        raise DrillFailed(over, "try it on a job that runs", ExitCode.NO_INPUT)
    epoch = newest_epoch(directory.epochs)
    if epoch is None:
        raise DrillFailed(f"job {name} has no controller yet", "try again in a few seconds")
    answer = ask(
        epoch.endpoints, load_client(directory.keys), Drill(fault=fault, rank=rank), timeout_s=TIMEOUT_S
    )
    if not isinstance(answer, DrillReply):
        raise DrillFailed(*unanswered(state, epoch, slurm), ExitCode.NO_INPUT)
    if not answer.ok:
        raise DrillFailed(answer.text, "see 'srobust status' for what runs")
    print(one_line(answer.text))
    return 0
