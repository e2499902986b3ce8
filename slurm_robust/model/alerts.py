"""What an agent's inspection of its node has seen while the training runs."""

from __future__ import annotations

from slurm_robust.model.findings import Effect, Party, Suggestion
from slurm_robust.model.record import Record

MOST_ALERTS = 32
"""In one heartbeat; the newest."""

REMEMBERED_S = 600.0
"""How long an alert that has ended is still told, so that a restarted controller counts it too."""


class Alert(Record):
    """A fault of a node, from its beginning to its end.

    ``number`` counts the alerts of one agent, so that each is counted once. ``check``, ``subject``, ``text``,
    ``blame`` and ``suggestion`` are those of :class:`~slurm_robust.model.findings.Finding`. ``age_s``: since
    it began, ``ended_s``: since it was seen to be over (None while it stands), in seconds of the node's own
    clock. ``effect``: that of the check. ``is_link``: it is about one end of a link, which may heal.
    """

    number: int
    check: str
    subject: str
    text: str
    blame: Party
    suggestion: Suggestion
    age_s: float
    ended_s: float | None = None
    effect: Effect = Effect.FAULT
    is_link: bool = False
