"""How long an open incident takes: by the monotonic clock, or by wall clocks across controllers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_robust.controller.effects import Now
from slurm_robust.model.state import OpenIncident

if TYPE_CHECKING:
    from slurm_robust.controller.core import Core


class IncidentClock:
    """Times of the open incident by the monotonic clock; lost with the controller."""

    def __init__(self, number: int, detected: float) -> None:
        self.number = number
        self.detected = detected
        self.decided: float | None = None

    def pass_over(self, seconds: float) -> None:
        """The core's clock stood still for so long: people waited all the same."""
        self.detected -= seconds
        if self.decided is not None:
            self.decided -= seconds


def recovery_s(core: Core, incident: OpenIncident, age_s: float, now: Now) -> float | None:
    """From the decision to a step completed ``age_s`` ago; None without one, or if nobody knows."""
    clock = core.clock
    if clock is not None and clock.number == incident.number and clock.decided is not None:
        return max(0.0, now.mono - age_s - clock.decided)
    if incident.decided is None:
        return None
    recover_s = now.wall - age_s - incident.decided
    known = "by wall clocks, since another controller decided" if recover_s > 0 else "unknown"
    core.note(f"incident {incident.number}: recover_s is {known}", "", now)
    return recover_s if recover_s > 0 else None
