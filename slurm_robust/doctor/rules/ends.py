"""How long Slurm leaves a job at each of its ends, to put on storage what only memory has."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.rule import Level, Rule
from slurm_robust.policy.leaving import leave_s
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.options import parse_signal

SHORT_S = 15.0
"""Less is not enough for a large state, nor for storage that is slow for a moment."""


def ends(facts: Facts) -> Iterator[str]:
    """For each way in which a run is ended from outside, how long there is; nothing without slurm.conf."""
    try:
        kill_wait = facts.number("KillWait")
    except (Unseen, SlurmError):
        return
    after = f"{leave_s(kill_wait):.0f} s after SIGTERM (KillWait={kill_wait})"
    yield f"scancel, Ctrl-C: {after}"
    yield f"time limit: {_warning(facts)}{after}"
    if facts.setting("PreemptType") not in ("", "preempt/none", "(null)"):
        grace = "the GraceTime of its partition or QOS ('scontrol show partition', 'sacctmgr show qos')"
        yield f"preemption: {grace}; without one, {after}"
    yield "reboot asked by 'scontrol reboot ASAP': none is needed, the node is drained and the job goes on"


def _warning(facts: Facts) -> str:
    try:
        asked = facts.option("signal")
        signal = parse_signal(asked) if asked is not None else None
    except (Unseen, SlurmError):
        return ""
    if signal is None or signal.name != "USR1":
        return ""
    return f"{signal.before_s} s (--signal={asked}), then "


def _short(facts: Facts) -> str:
    have = known(facts.number("KillWait"), "KillWait")
    if not facts.config.checkpoint.memory or leave_s(have) >= SHORT_S:
        return ""
    return f"KillWait is {have} s, which leaves {leave_s(have):.0f} s"


RULES = (
    Rule(
        name="ends.saving",
        level=Level.NOTE,
        needs=("slurm",),
        why="a job that is cancelled, or preempted without a GraceTime, has only that to put on storage what "
        "memory has; later steps are lost",
        fix="the administrator raises KillWait to 30 or more, or lower checkpoint.every_s",
        source="slurm.conf(5) KillWait, GraceTime; docs/what-happens-when.md",
        judge=_short,
    ),
)
