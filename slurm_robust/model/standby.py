"""What a standby has done to be ready, and how its rehearsal went."""

from __future__ import annotations

from enum import Enum

from slurm_robust.model.record import Record


class RehearsalState(str, Enum):
    """How far a rehearsal is."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    ENDED = "ended"  # before it could show anything, since the node was needed
    IMPOSSIBLE = "impossible"  # what the job runs, or its torch, allows none; it says nothing of the node


class Rehearsal(Record):
    """The newest rehearsal on a node."""

    number: int
    """Of the order that it carries out."""
    state: RehearsalState
    reason: str = ""
    """Why it failed or was not possible; one line."""
    took_s: float = 0.0


class StandbyStage(str, Enum):
    """How far a standby is on its way to be fit to take a slot."""

    LOADING = "loading"  # its agent is up, its zygote imports
    LOADED = "loaded"  # it can start workers at once
    REHEARSING = "rehearsing"
    REHEARSED = "rehearsed"  # it sleeps, and its caches are warm
    REHEARSAL_FAILED = "rehearsal failed"
