"""What an agent's inspection of its node has seen while the training runs."""

from __future__ import annotations

from slurm_robust.model.findings import Effect, Finding, Outcome, Party

MOST_ALERTS = 32
"""In one heartbeat; the newest."""

REMEMBERED_S = 600.0
"""How long an alert that has ended is still told, so that a restarted controller counts it too."""


class Alert(Finding, kw_only=True):
    """A failed check of a node while the training runs, from its beginning to its end."""

    number: int
    """Counts the alerts of one agent, so that each is counted once."""

    age_s: float
    """Seconds since it began, by the node's own clock."""

    ended_s: float | None = None
    """Seconds since it was seen to be over; None while it stands."""

    effect: Effect = Effect.FAULT
    """What the check's failure means to a training that runs."""

    outcome: Outcome = Outcome.FAIL

    @property
    def is_link(self) -> bool:
        """Whether it is about one end of a link, which may heal."""
        return self.blame is Party.FABRIC
