"""How long nodes from outside the allocation are waited for. Pure."""

from __future__ import annotations

_MARGIN_S = 10.0
_QUESTIONS = 3
"""To Slurm, of each source, before companions are submitted and after they were given up."""


def borrowing_s(sources: int, wait_s: float, timeout_s: float, nodes: int) -> float:
    """At most, where Slurm needs all of ``timeout_s`` for each answer and each of ``nodes`` companions."""
    return sources * (wait_s + timeout_s * (_QUESTIONS + 2 * nodes)) + timeout_s + _MARGIN_S
