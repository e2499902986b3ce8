"""When a standby that was used, or went bad, is replaced while training goes on. Pure."""

from __future__ import annotations

from slurm_robust.model.state import MAX_REPLENISHED, JobState
from slurm_robust.policy.rules import DAY_S

FIRST_PAUSE_S, LONGEST_PAUSE_S = 60.0, 3600.0
"""After an attempt that got no node, doubled each time."""

MAX_IN_VAIN = 24
"""Attempts in a row that got no node, about 20 hours: until another standby is lost, that is enough."""

MAX_IN_A_DAY = MAX_REPLENISHED
"""Attempts within 24 hours. If lent nodes go bad one after the other, the nodes are not at fault."""


def missing_standbys(state: JobState) -> int:
    """Return how many fewer there are, or come, than the job was submitted with."""
    there = [node for node in state.spares if node not in state.aside or state.aside[node].usable]
    coming = [companion for companion in state.companions.values() if not companion.node]
    return max(0, state.wanted_spares - len(there) - len(coming))


def next_attempt(state: JobState, now: float) -> int:
    """Return the number of the attempt that is due ``now`` (wall clock), 0 for none."""
    missing, last = missing_standbys(state), state.replenish
    today = [t for t in state.replenished if 0 <= now - t < DAY_S]
    if not missing or len(today) >= MAX_IN_A_DAY:
        return 0
    if last is None or missing > last.missing:
        return 1
    pause_s = min(FIRST_PAUSE_S * 2 ** (last.attempt - 1), LONGEST_PAUSE_S)
    is_early = 0 <= now - last.t < pause_s  # a clock that jumped back delays nothing
    return 0 if is_early or last.attempt >= MAX_IN_VAIN else last.attempt + 1
