"""Times of slurm.conf that are too short for how this job stops its workers, told before it starts. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slurm_robust.config.job import Timings
from slurm_robust.controller.stages.stopping import MARGIN_S
from slurm_robust.model.job import LEAVING_S


def too_short(slurm_conf: Mapping[str, str], timings: Timings, *, gpus: bool) -> Iterator[str]:
    """A warning with its fix for each. ``slurm_conf``: as ``scontrol show config`` tells it.

    ``gpus``: whether the job has any; other workers leave no memory that a driver gives back for long.
    """
    unkillable_s, least_s = _seconds(slurm_conf, "UnkillableStepTimeout"), timings.kill_wait_s
    if gpus and unkillable_s is not None and unkillable_s < least_s:
        yield (
            f"UnkillableStepTimeout is {unkillable_s} s: a worker with much memory registered for its GPU "
            "may take longer to die at the job's end, and slurmd drains its node then ('Kill task failed'); "
            f"fix: the administrator sets UnkillableStepTimeout={least_s:.0f} in slurm.conf"
        )
    kill_wait_s, least_s = _seconds(slurm_conf, "KillWait"), _leaving_s(timings)
    if kill_wait_s is not None and kill_wait_s < least_s:
        yield (
            f"KillWait is {kill_wait_s} s: so long after SIGTERM Slurm kills a job that it ends, and this "
            f"one may need {least_s:.0f} s to stop its workers and write down what they left; fix: the "
            "administrator sets KillWait=30 in slurm.conf, or lower timings.stop_grace_s and "
            "timings.shutdown_s"
        )


def _leaving_s(timings: Timings) -> float:
    """The longest that a job takes that is told to leave."""
    return timings.stop_grace_s + min(timings.kill_wait_s, LEAVING_S) + MARGIN_S + timings.shutdown_s


def _seconds(slurm_conf: Mapping[str, str], key: str) -> int | None:
    """``60 sec`` as a number; None where there is no such number."""
    found = re.match(r"\d+", slurm_conf.get(key, ""))
    return int(found[0]) if found else None
