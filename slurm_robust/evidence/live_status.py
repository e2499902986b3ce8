"""What of the live status follows from the journal alone: the job's state, and the incident that is open."""

from __future__ import annotations

from slurm_robust.evidence import drills
from slurm_robust.evidence.incident_text import actions_text, short_reason
from slurm_robust.evidence.updates import who
from slurm_robust.model import events as ev
from slurm_robust.model.live_status import (
    FORMAT,
    LiveCompanion,
    LiveIncident,
    LiveRelease,
    LiveStatus,
    LiveUpdate,
)
from slurm_robust.model.release import ReleaseState
from slurm_robust.model.state import JobState
from slurm_robust.util.text import one_line

MAX_TEXT = 300
"""Characters of each text; the journal has all of it."""


def of_state(state: JobState, now: float) -> LiveStatus:
    """Return what ``state`` knows of a job at wall-clock time ``now``; nothing of its nodes."""
    return LiveStatus(
        format=FORMAT,
        t=now,
        job_id=state.job_id,
        run_id=state.run_id,
        run=max(0, state.restart_count),
        epoch=state.epoch,
        host=state.own_node,
        generation=state.world.generation,
        world=state.world.placement.world_size,
        best_step=state.world.best_step,
        reports=state.world.reports,
        usual_step_s=state.world.pace.p50_s or None,
        restored_step=state.world.restored_step,
        companions=tuple(
            LiveCompanion(job_id=job_id, source=one_line(str(one.source), MAX_TEXT), node=one.node)
            for job_id, one in state.companions.items()
        ),
        lost_node=one_line(state.lost_node, MAX_TEXT),
        opened=state.incidents,
        closed=state.incidents - (state.world.incident is not None),
        left_s=None if state.time_limit_s is None else state.allocated + state.time_limit_s - now,
        code=state.ended.code if state.ended is not None else None,
        release=release_of(state),
        update=update_of(state, now),
        updates=state.updates,
    )


def release_of(state: JobState) -> LiveRelease | None:
    """Return the release that runs; None for a job without releases."""
    if not state.release:
        return None
    candidate = state.candidate
    return LiveRelease(
        name=state.release,
        state=state.releases.get(state.release, ReleaseState.TAKEN).value,
        update=candidate.update if candidate is not None else 0,
        before=candidate.before if candidate is not None else "",
        first_step=candidate.first_step if candidate is not None else -1,
    )


def update_of(state: JobState, now: float) -> LiveUpdate | None:
    """Return the update that waits at wall-clock time ``now``; None without one."""
    update = state.update
    if update is None:
        return None
    return LiveUpdate(
        number=update.update,
        release=update.release,
        when=update.when.value,
        by=who(update.by),
        message=one_line(update.message, MAX_TEXT),
        tried=state.tried is not None,
        left_s=None if update.deadline is None else update.deadline - now,
    )


class IncidentFollower:
    """Remembers the first sign and the newest decision."""

    def __init__(self) -> None:
        self._opened: ev.IncidentOpened | None = None
        self._decided: ev.Decided | None = None
        self._drill: ev.DrillPlanted | None = None

    def read(self, event: ev.AnyEvent) -> None:
        """Take the next event of the journal."""
        if isinstance(event, ev.IncidentOpened):
            self._opened, self._decided = event, None
        elif isinstance(event, ev.Decided):
            self._decided = event
        elif isinstance(event, ev.DrillPlanted):
            self._drill = event

    def at(self, state: JobState, now: float) -> LiveIncident | None:
        """Return the incident that is open in ``state`` at wall-clock time ``now``; None without one."""
        found, opened, decided = state.world.incident, self._opened, self._decided
        if found is None:
            return None
        if opened is not None and opened.incident != found.number:
            opened = None
        if decided is not None and decided.incident != found.number:
            decided = None
        verdict = decided.verdict if decided is not None else None
        drill = self._drill if self._drill is not None and found.drill == self._drill.drill else None
        title = drills.title(drill) if drill is not None else ""
        return LiveIncident(
            number=found.number,
            symptom=found.symptom.value,
            sign=one_line(opened.detail, MAX_TEXT) if opened is not None else "",
            why=one_line(opened.why, MAX_TEXT) if opened is not None else "",
            age_s=max(0.0, now - opened.t) if opened is not None else 0.0,
            step=found.step,
            reason=one_line(f"{title}: {short_reason(decided)}" if title else short_reason(decided), MAX_TEXT)
            if decided is not None
            else "",
            actions=one_line(actions_text(decided), MAX_TEXT) if decided is not None else "",
            blame="drill" if title else verdict.blame.value if verdict is not None else "",
            suspects=verdict.suspects if verdict is not None and not title else (),
            carried_out=decided.carried_out if decided is not None else True,
            drill=title,
        )
