"""When a new release is good, and which failure takes the job back to the one before. Pure.

A candidate is blamed for what is known to come of code, or of what code asks for. What names a node, the
network, an agent or a disk says nothing of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from slurm_robust.config.job import UpdateConfig
from slurm_robust.model.incident import (
    Blame,
    Fault,
    FaultKind,
    Restart,
    RollBack,
    Signature,
    Symptom,
    Verdict,
)
from slurm_robust.model.release import Candidate
from slurm_robust.model.state import JobState
from slurm_robust.policy.rules import Rules
from slurm_robust.util.text import count

RUNG = 7

LEAST_STEPS = 2
"""Steps without which no release is good, however long it has run: one says nothing of the next."""

WARM_UP_STEPS = 5
"""The first steps of a release compile and allocate."""

SURE_MEASURES = 10
"""The fewest measurements that show the pace of a release; each covers the steps between two heartbeats."""

SURE_S = 20.0
"""Together they cover at least this many seconds of steps, or :data:`MANY_STEPS`."""

MANY_STEPS = 50
"""This many steps are enough, however short they are."""

KNOWN_STEPS = 20
"""Steps after which the pace of the previous release is known."""

_AT_ONCE = (FaultKind.EXCEPTION, FaultKind.OUT_OF_MEMORY, FaultKind.NO_WORKER_STARTS)
_THE_SECOND_TIME = (FaultKind.EXIT, FaultKind.SILENT_END)
_IN_THE_END = (*_AT_ONCE, *_THE_SECOND_TIME, FaultKind.RESTORE, FaultKind.GPU_NOT_FREE, FaultKind.RANKS)
_ITS_SYMPTOMS = (Symptom.HANG, Symptom.NON_FINITE, Symptom.SPIKE)


def is_proven(steps: int, seconds: float, config: UpdateConfig) -> bool:
    """Return whether a candidate is good that has completed ``steps`` within ``seconds``."""
    return steps >= config.good_steps or (steps >= LEAST_STEPS and seconds >= config.good_s)


def slower(
    measured: Sequence[float], steps: int, seconds: float, candidate: Candidate, config: UpdateConfig
) -> float:
    """Return how many times as long a candidate's steps take as those before it, 0 if that is no fault.

    ``measured``: seconds per step after its first steps, ``steps`` in all, which took ``seconds``.
    """
    before = candidate.pace
    is_long = seconds >= SURE_S or steps >= MANY_STEPS
    if len(measured) < SURE_MEASURES or not is_long:
        return 0.0
    if before.steps < KNOWN_STEPS or not before.p50_s:
        return 0.0
    times = median(measured) / before.p50_s
    return times if times >= config.slow_factor else 0.0


def way_back(state: JobState, rules: Rules) -> Candidate | None:
    """Return the candidate if the job may go back by itself to the release before it."""
    candidate = state.candidate
    return candidate if candidate is not None and candidate.before and rules.config.updates.rollback else None


def blames_release(state: JobState, fault: Fault, verdict: Verdict, rules: Rules) -> bool:
    """Return whether ``verdict``, which the rungs of the ladder found, means the candidate.

    An unexplained end comes from outside as often as from the code: it is answered by a restart first.
    """
    candidate, signature = way_back(state, rules), verdict.signature
    if candidate is None or verdict.blame is Blame.NODE or fault.lost:
        return False
    if fault.symptom is Symptom.SLOW:
        return fault.localisation is None  # no ranks were looked for: it is slower than the one before
    if signature.kind is FaultKind.SYMPTOM:
        return fault.symptom in _ITS_SYMPTOMS
    if signature.kind is FaultKind.RANKS:
        return fault.symptom is Symptom.HANG
    if signature.kind in _THE_SECOND_TIME:
        attempts = state.world.attempts
        return any(a.signature == signature and a.t >= candidate.applied for a in attempts)
    return signature.kind in _AT_ONCE


def before_giving_up(state: JobState, verdict: Verdict, rules: Rules) -> bool:
    """Return whether the candidate goes before the job gives up on what ``verdict`` means."""
    return way_back(state, rules) is not None and verdict.signature.kind in _IN_THE_END


def roll_back(
    candidate: Candidate, why: str, state: JobState, confidence: float = 1.0
) -> tuple[Verdict, tuple[RollBack, Restart], str]:
    """Return the verdict, what to do, and that in words."""
    step = candidate.checkpoint.step if candidate.checkpoint is not None else -1
    own = step < 0 and state.world.has_stepped and not state.world.reports  # the script resumes by itself
    made = "" if own else f"{count(max(0, state.world.best_step - step), 'step')} "
    verdict = Verdict(
        rung=RUNG,
        blame=Blame.CODE,
        signature=Signature(kind=FaultKind.RELEASE, key=candidate.release),
        reason=f"{why}, {made}after release {candidate.release} took over",
        confidence=confidence,
    )
    whence = f"at step {step}" if step >= 0 else "at the beginning"
    how = f"go back to release {candidate.before} {'where the script resumes by itself' if own else whence}"
    return verdict, (RollBack(release=candidate.release, to=candidate.before, step=step), Restart()), how
