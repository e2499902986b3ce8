"""How outcomes look in every table: worst first, in the same colours."""

from __future__ import annotations

from slurm_robust.model.findings import Outcome

STYLES = {Outcome.FAIL: "bold red", Outcome.UNKNOWN: "yellow", Outcome.PASS: "green"}

_WORST_FIRST = (Outcome.FAIL, Outcome.UNKNOWN, Outcome.PASS)


def rank(outcome: Outcome) -> int:
    """0 for the worst."""
    return _WORST_FIRST.index(outcome)
