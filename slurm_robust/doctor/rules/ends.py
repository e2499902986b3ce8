"""How long Slurm leaves a job at each of its ends, to put on storage what only memory has."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from slurm_robust.doctor.facts import Facts, Unseen, known
from slurm_robust.doctor.rule import note
from slurm_robust.policy.leaving import GOODBYE_S, leave_s, store_s
from slurm_robust.slurm.errors import SlurmError
from slurm_robust.slurm.options import parse_signal

SHORT_S = 15.0
"""Less is not enough for a large state, nor for storage that is slow for a moment."""

_ENDS = {"REQUEUE": "requeued", "CANCEL": "cancelled"}


def ends(facts: Facts) -> Iterator[str]:
    """Yield the time left for each way to end a run from outside; nothing without slurm.conf."""
    try:
        kill_wait = facts.number("KillWait")
    except (Unseen, SlurmError):
        return
    after = f"{leave_s(kill_wait):.0f} s after SIGTERM (KillWait={kill_wait})"
    yield f"scancel, Ctrl-C: {after}"
    yield f"time limit: {_warning(facts)}{after}"
    if facts.preempts:
        yield f"preemption: {_preemption(facts, after)}"
    yield "reboot asked by 'scontrol reboot ASAP': none is needed, the node is drained and the job goes on"


def _preemption(facts: Facts, after: str) -> str:
    terms = facts.preemption
    if terms is None:
        show = "sacctmgr show qos" if facts.decides == "QOS" else "scontrol show partition"
        return f"the GraceTime of its {facts.decides} ('{show}'); without one, {after}"
    of_whom = f"{facts.decides} {terms.name}, PreemptMode={facts.mode}"
    if facts.mode not in _ENDS:
        how = "the job is suspended and goes on later" if facts.mode == "SUSPEND" else "none"
        return f"{how} ({of_whom})"
    then = f"then the job is {_ENDS[facts.mode]} ({of_whom})"
    if not terms.grace_s:
        return f"no GraceTime, so {after}, {then}"
    return f"{terms.grace_s} s (GraceTime={terms.grace_s}), {then}"


def _warning(facts: Facts) -> str:
    try:
        asked = facts.option("signal")
        signal = parse_signal(asked) if asked is not None else None
    except (Unseen, SlurmError):
        return ""
    if signal is None or signal.name != "USR1" or not signal.to_batch:
        return ""
    return f"{signal.before_s} s (--signal={asked}), then "


def _short(facts: Facts) -> str:
    have = known(facts.number("KillWait"), "KillWait")
    if not facts.config.checkpoint.memory or leave_s(have) >= SHORT_S:
        return ""
    return f"KillWait is {have} s, which leaves {leave_s(have):.0f} s"


def _grace(facts: Facts) -> str:
    if not (facts.preempts and facts.config.checkpoint.memory) or facts.mode not in _ENDS:
        return ""
    if grace_s := known(facts.preemption, "GraceTime").grace_s:
        has, left_s = f"GraceTime is {grace_s} s", store_s(grace_s, SHORT_S, inf)
    else:
        kill_wait_s = facts.number("KillWait")
        has, left_s = f"no GraceTime, and KillWait is {kill_wait_s} s", leave_s(kill_wait_s)
    if facts.saved_s is not None and facts.saved_s > left_s:
        return f"{has}, which leaves {left_s:.0f} s; the job took {facts.saved_s:.0f} s to save a step"
    return f"{has}, which leaves {left_s:.0f} s" if left_s < SHORT_S else ""


RULES = (
    note(
        name="ends.grace",
        needs=("slurm",),
        why="a job that is preempted has only that to put on storage what memory has; later steps are lost",
        fix=f"the administrator raises the GraceTime of the partition or QOS to {GOODBYE_S + SHORT_S:.0f} or "
        f"more ({GOODBYE_S:.0f} s of it are for the requeue), or lower checkpoint.every_s",
        source="slurm.conf(5) GraceTime, PreemptMode; sacctmgr(1) GraceTime; docs/what-happens-when.md",
        judge=_grace,
    ),
    note(
        name="ends.saving",
        needs=("slurm",),
        why="a job that is cancelled, or preempted without a GraceTime, has only that to put on storage what "
        "memory has; later steps are lost",
        fix="the administrator raises KillWait to 30 or more, or lower checkpoint.every_s",
        source="slurm.conf(5) KillWait, GraceTime; docs/what-happens-when.md",
        judge=_short,
    ),
)
