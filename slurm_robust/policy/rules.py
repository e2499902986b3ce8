"""What the policy may do: choices of the site and the user, and bounds, so that nothing is tried for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurm_robust.config.job import DetectConfig, JobConfig, Limits
from slurm_robust.model.companion import CompanionPool
from slurm_robust.model.incident import Blame, FaultKind, Signature, Verdict
from slurm_robust.model.record import Record
from slurm_robust.model.state import JobState
from slurm_robust.util.text import count


class Rules(Record):
    """What decisions depend on beside the state; the one way of settings into the policy."""

    config: JobConfig
    leaves: Mapping[str, str] = {}
    """Leaf switch of each node, if Slurm tells."""

    @property
    def limits(self) -> Limits:
        """How often what may be tried."""
        return self.config.limits

    @property
    def detect(self) -> DetectConfig:
        """What counts as a fault, and which tests may find it."""
        return self.config.detect

    @property
    def sources(self) -> tuple[CompanionPool, ...]:
        """The sources of nodes for companions, in the order in which they are tried."""
        companions = self.config.companions
        reserved = (CompanionPool(reservation=companions.reservation),) if companions.reservation else ()
        return (*reserved, CompanionPool()) if companions.partition else reserved

    @property
    def replenish_sources(self) -> tuple[CompanionPool, ...]:
        """Those from which standbys are replaced (``standby.replenish``)."""
        choice = self.config.standby.replenish
        if choice == "none":
            return ()
        return tuple(source for source in self.sources if source.reservation or choice == "partition")


def convict(
    nodes: Iterable[str],
    rules: Rules,
    *,
    rung: int,
    reason: str,
    confidence: float = 1.0,
    kind: FaultKind = FaultKind.NODE,
    unproven: bool = False,
) -> Verdict:
    """Return a verdict that blames ``nodes``; ``unproven``: by suspicion alone."""
    suspects = tuple(nodes)
    return Verdict(
        rung=rung,
        blame=Blame.NODE,
        signature=Signature.of_nodes(kind, suspects),
        reason=reason,
        suspects=suspects,
        confidence=confidence,
        allowed=rules.limits.per_signature,
        unproven=unproven,
    )


HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MAX_RUNS_WITHOUT_PROGRESS = 3
"""So many runs of the Slurm job may end in a row without a new step: what was tried twice more is over."""


def exceeded(state: JobState, verdict: Verdict, limits: Limits, now: float) -> str | None:
    """Say why this verdict may not be answered once more, or None if it may.

    ``now`` is wall-clock time, as in the journal, because the bounds outlive controllers and
    requeues. A clock that jumped back makes old attempts look recent, which errs on the safe side.
    """
    same = [a for a in state.world.without_progress if a.signature == verdict.signature]
    if len(same) >= verdict.allowed:
        return (
            f"'{verdict.signature}' came {len(same) + 1} times without new progress in between "
            f"(limit: {count(verdict.allowed, 'restart')})"
        )
    if verdict.signature.kind is FaultKind.PORT_TAKEN:
        return None
    attempts = [a for a in state.world.attempts if a.signature.kind is not FaultKind.PORT_TAKEN]
    bounds = (("an hour", "per_hour", limits.per_hour, HOUR_S), ("a day", "per_day", limits.per_day, DAY_S))
    for time, name, most, within_s in bounds:
        recent = [a for a in attempts if now - a.t < within_s]
        if len(recent) >= most:
            return f"{len(recent)} recoveries within {time} (limits.{name}: {most})"
    if limits.total is not None and len(attempts) >= limits.total:
        return f"{len(attempts)} recoveries of this job (limits.total: {limits.total})"
    return None


def without_progress(state: JobState, reason: str, now: float, *, warned: bool) -> str:
    """Say why the job may not be requeued after this run, "" if it may: too many made no new step."""
    runs = state.runs_without_progress + state.is_without_progress(now)
    if runs < MAX_RUNS_WITHOUT_PROGRESS or not state.is_without_progress(now):
        return ""
    if not warned:
        return f"{runs} runs in a row ended without a new step, this one because {reason}"
    minutes = round((state.time_limit_s or 0.0) / 60)
    limit = f"the time limit of {count(minutes, 'minute')}" if minutes else "the time limit"
    return (
        f"{runs} runs in a row ended at the time limit (or a preemption) without a new step: {limit} is too "
        "short for the start and the first new step; fix: submit with more time (sbatch --time), or have "
        "Slurm warn later (--signal=B:USR1@SECONDS)"
    )
