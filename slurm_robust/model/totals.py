"""What a job has been through since it was first started, counted from its journal."""

from __future__ import annotations

from slurm_robust.model.record import Record

MAX_MARKS = 5
"""Incidents, and updates, that are shown one by one, the newest."""


class IncidentMark(Record):
    """One incident as a mark on a time line. Times are in seconds since 1970."""

    number: int
    symptom: str
    begun: float
    """When training stopped being productive, as seen from outside."""
    ended: float | None = None
    """None while it is open."""
    blame: str = ""
    """``node``, ``code``, ``nobody`` or ``drill``; "" as long as nothing is decided."""


class UpdateMark(Record):
    """One update that was applied as a mark on a time line."""

    number: int
    release: str
    applied: float
    """In seconds since 1970."""


class JobTotals(Record):
    """Counts of all its runs and controllers; but for :attr:`updates` they only grow while the job lives."""

    classes: dict[str, float]
    """Seconds of each class of the ledger, as of the newest ETTR; none before the first. What is known later
    may move some from one class to another.
    """
    incidents: dict[str, int]
    """By symptom, without those that drills caused. Of an incident while a drill goes on, the cause has to be
    known first.
    """
    actions: dict[str, int]
    """That answered faults and were carried out, by kind."""
    launches: int
    """Generations."""
    evictions: int
    requeues: int
    takeovers: int
    """Controllers that took the place of one on another node."""
    marks: tuple[IncidentMark, ...]
    """The newest incidents, oldest first."""
    drills: int = 0
    """Incidents that drills caused."""
    updates: dict[str, int] = {}
    """By what became of them so far; none for a job without."""
    update_marks: tuple[UpdateMark, ...] = ()
    """The newest updates that were applied, oldest first."""
