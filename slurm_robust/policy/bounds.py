"""Nothing is tried for ever: bounds per fault signature, per hour and in all."""

from __future__ import annotations

from slurm_robust.config.schema import Limits
from slurm_robust.model.incident import Verdict
from slurm_robust.model.state import JobState

HOUR_S = 3600.0


def exceeded(state: JobState, verdict: Verdict, limits: Limits, now: float) -> str | None:
    """Why this verdict may not be answered once more, or None if it may.

    ``now`` is wall-clock time, as in the journal, because the bounds outlive controllers and
    requeues. A clock that jumped back makes old attempts look recent, which errs on the safe side.
    """
    same = [a for a in state.in_vain if a.signature == verdict.signature]
    if len(same) >= verdict.allowed:
        return (
            f"'{verdict.signature}' came {len(same) + 1} times without new progress in between "
            f"(limit: {verdict.allowed} restart{'s' if verdict.allowed != 1 else ''})"
        )
    recent = [a for a in state.attempts if now - a.t < HOUR_S]
    if len(recent) >= limits.per_hour:
        return f"{len(recent)} recoveries within an hour (limits.per_hour: {limits.per_hour})"
    if len(state.attempts) >= limits.total:
        return f"{len(state.attempts)} recoveries of this job (limits.total: {limits.total})"
    return None
