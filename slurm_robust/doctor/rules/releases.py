"""Defects of releases of Slurm that a recovery meets, each with the release that has it no more."""

from __future__ import annotations

from slurm_robust.doctor.facts import Facts
from slurm_robust.doctor.rule import bad, note
from slurm_robust.slurm.records import SlurmVersion
from slurm_robust.slurm.values import PROLOG_AT_ALLOCATION

_RUN_IN_JOB = SlurmVersion(major=24, minor=5)
_COMPLETING_MENDED = SlurmVersion(major=25, minor=11, micro=6)
_EPILOG_MENDED = SlurmVersion(major=26, minor=5)


def _completing(facts: Facts) -> str:
    if "runinjob" not in facts.words("PrologFlags"):
        return ""
    if not _RUN_IN_JOB <= facts.release < _COMPLETING_MENDED:
        return ""
    return f"Slurm {facts.release} with PrologFlags=RunInJob"


RULES = (
    bad(
        name="slurm.completing_for_ever",
        needs=("slurm",),
        why="a job that ends, or is requeued, may stay COMPLETING for ever, and keeps its nodes",
        fix="the administrator updates Slurm to 25.11.6 or 26.05, or removes RunInJob from PrologFlags",
        source="Slurm's changes of 25.11.6 and 26.05.0 (RunInJob is from 24.05)",
        judge=_completing,
    ),
    note(
        name="slurm.epilog_twice",
        needs=("slurm",),
        why="slurmd may run the epilog of one job several times when slurmctld repeats its order to end it",
        fix="the administrator updates Slurm to 26.05, or sees to it that the Epilog can be repeated",
        source="Slurm's changes of 26.05.0: TERMINATE_JOB retries",
        judge=lambda facts: (
            f"Slurm {facts.release} with an Epilog"
            if facts.setting("Epilog") not in ("", "(null)") and facts.release < _EPILOG_MENDED
            else ""
        ),
    ),
    note(
        name="slurm.preempted_early",
        needs=("slurm",),
        why="Slurm does not preempt a job again that it has once chosen while its nodes were CONFIGURING: a "
        "job that waits for it waits until it ends",
        fix="requeue that job ('scontrol requeue'); no release is known to be without it",
        source="https://github.com/SchedMD/slurm/pull/216",
        judge=lambda facts: (
            "jobs are preempted here, and start with a Prolog"
            if facts.setting("Prolog")
            and facts.words("PrologFlags") & PROLOG_AT_ALLOCATION
            and facts.preempts
            else ""
        ),
    ),
)
