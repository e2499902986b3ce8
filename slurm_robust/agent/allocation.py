"""Does this step see all that the job holds on the node? Newer Slurm gives a task less by default."""

from __future__ import annotations

import os
from collections.abc import Mapping


def find_shortage(environ: Mapping[str, str], usable_cpus: int, all_cpus: int) -> list[str]:
    """What is missing, as notes for the journal. Pure.

    ``usable_cpus`` is what the kernel lets this process use, ``all_cpus`` what the node has: a Slurm
    whose configuration has more CPUs than there are (a test cluster) must not lead to a note.
    """
    notes = []
    granted = min(_number(environ.get("SLURM_CPUS_ON_NODE")), all_cpus)
    if usable_cpus < granted:
        notes.append(
            f"workers may use {usable_cpus} of the {granted} CPUs that the job holds here: "
            "start agents with --exact off, --cpu-bind=none and --cpus-per-task as in the sbatch template"
        )
    gpus = _number(environ.get("SLURM_GPUS_ON_NODE"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    seen = gpus if visible is None else len([name for name in visible.split(",") if name.strip()])
    if seen < gpus:
        notes.append(
            f"workers see {seen} of the {gpus} GPUs that the job holds here "
            f"(CUDA_VISIBLE_DEVICES={visible}): start agents with the job's whole --gres"
        )
    return notes


def check_allocation() -> list[str]:
    """:func:`find_shortage` of this process."""
    return find_shortage(os.environ, len(os.sched_getaffinity(0)), os.cpu_count() or 1)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
