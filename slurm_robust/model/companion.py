"""Companions: jobs of one node that lend it to another job of the same user."""

from __future__ import annotations

from slurm_robust.model.record import Record


class CompanionPool(Record):
    """The places from which companions get their nodes."""

    reservation: str = ""
    """"" for free nodes of the job's partition."""

    def __str__(self) -> str:
        return f"reservation {self.reservation}" if self.reservation else "the partition"


class Companion(Record):
    """One companion."""

    source: CompanionPool
    node: str = ""
    """That it lends; "" until Slurm has started it."""
