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
    """Number of the order that it carries out."""
    state: RehearsalState
    reason: str = ""
    """Why it failed or was not possible; one line."""
    took_s: float = 0.0
    release: str = ""
    """Whose code it ran, "" for the command in its place."""
    traceback: str = ""
    """Of its failure."""
    confined: bool = False
    """It failed at what may be forbidden to rehearsals only."""


class StandbyStage(str, Enum):
    """How far a standby is on its way to be fit to take a slot, and then into the world."""

    PROVISIONING = "provisioning"  # a companion will lend its node
    STARTING = "starting"  # its agent has not reported yet
    LOADING = "loading"  # its agent is up, its zygote imports
    LOADED = "loaded"  # it can start workers immediately
    TESTING = "testing"  # the quick test runs on it
    TEST_FAILED = "test failed"
    TEST_UNANSWERED = "test unanswered"  # says nothing of the node
    TESTED = "tested"
    REHEARSING = "rehearsing"
    REHEARSAL_FAILED = "rehearsal failed"
    REHEARSED = "rehearsed"  # it sleeps, and its caches are warm
    WOKEN = "woken"  # it has got a slot, and its workers start
    IN_WORLD = "in the world"  # it trains


STAGES = tuple(StandbyStage)
"""In the order in which a standby passes through them; what goes wrong stands before what comes otherwise."""
