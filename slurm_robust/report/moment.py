"""The incident that is open, as a moment tells of it: followed event by event."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.moment import IncidentMoment
from slurm_robust.model.state import JobState
from slurm_robust.report.incident_text import actions_text
from slurm_robust.util.text import one_line

MOST_TEXT = 300
"""Characters of each text; the journal has all of it."""


class IncidentFollower:
    """Remembers the first sign and the newest decision."""

    def __init__(self) -> None:
        self._opened: ev.IncidentOpened | None = None
        self._decided: ev.Decided | None = None

    def read(self, event: ev.AnyEvent) -> None:
        """The next event of the journal."""
        if isinstance(event, ev.IncidentOpened):
            self._opened, self._decided = event, None
        elif isinstance(event, ev.Decided):
            self._decided = event

    def at(self, state: JobState, now: float) -> IncidentMoment | None:
        """The incident that is open in ``state`` at wall-clock time ``now``; None without one."""
        found, opened, decided = state.incident, self._opened, self._decided
        if found is None:
            return None
        if opened is not None and opened.incident != found.number:
            opened = None
        if decided is not None and decided.incident != found.number:
            decided = None
        verdict = decided.verdict if decided is not None else None
        return IncidentMoment(
            number=found.number,
            symptom=found.symptom.value,
            sign=one_line(opened.detail, MOST_TEXT) if opened is not None else "",
            age_s=max(0.0, now - opened.t) if opened is not None else 0.0,
            step=found.step,
            reason=one_line(decided.reason, MOST_TEXT) if decided is not None else "",
            actions=one_line(actions_text(decided), MOST_TEXT) if decided is not None else "",
            blame=verdict.blame.value if verdict is not None else "",
            suspects=verdict.suspects if verdict is not None else (),
            carried_out=decided.carried_out if decided is not None else True,
        )
