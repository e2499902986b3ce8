"""What the controller says in the job's own output, each line with the time and our name."""

from __future__ import annotations

import shlex
import time

from slurm_robust.controller.preflight import Plan
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.model.text import count, message
from slurm_robust.slurm.hostlist import fold


def say(text: str) -> None:
    """Print ``text``; lines after the first stay lines, indented."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S")
    try:
        # In one piece: threads say something too, and print() would write text and line end apart.
        print(f"srobust: {stamp} {message(text)}\n", end="", flush=True)
    except OSError:
        # A full or lost file system under the job's output must not end the job's supervision; what
        # was to be said stands in the journal.
        pass


def introduction(plan: Plan, directory: JobDirectory, state: JobState) -> tuple[str, str]:
    """What a controller says first: what runs and where, and where the output of the training is."""
    task = f" ({plan.array_task})" if plan.array_task else ""
    words = shlex.join(plan.command)
    words = f"-m {words}" if plan.kind is CommandKind.MODULE else words
    where = f"{count(state.placement.world_size, 'rank')} on {fold(state.slots)}"
    spares = f", standby {fold(state.spares)}" if state.spares else ""
    mode = "; observe mode: nothing is done about faults" if plan.config.mode == "observe" else ""
    generation = state.generation if state.running else state.generation + 1
    output = directory.worker_log(generation, 0, "out")
    # By its id a job is found only where it is in the usual place.
    usual = directory.path.name == str(plan.job_id) and plan.config.job_dir is None
    name = str(plan.job_id) if usual else shlex.quote(str(directory.path))
    return (
        f"controller {state.epoch} of job {plan.job_id}{task}: {words}; {where}{spares}; "
        f"folder {directory.path}{mode}",
        f"output of the training: {output}; to follow it: srobust logs {name} -f",
    )
