"""What a job does whose release has lost its files: it goes on with the code in its place. Pure."""

from __future__ import annotations

from slurm_robust.model import events as ev
from slurm_robust.model.release import Release, Requester, UpdateEnd, When
from slurm_robust.model.state import JobState


def in_place_of_lost(state: JobState, release: Release, by: Requester, t: float) -> tuple[ev.AnyEvent, ...]:
    """Return the events of an update to ``release``, in place of the one that the job has run.

    There is nothing to go back to, so it is good from the beginning.
    """
    why = f"the files of release {state.release} are gone"
    update, waits = state.updates + 1, state.update
    before: list[ev.AnyEvent] = []
    if waits is not None:
        before.append(ev.UpdateEnded(t=t, update=waits.update, how=UpdateEnd.SUPERSEDED, reason=why))
    if release.name not in state.releases:
        before.append(ev.ReleaseTaken(t=t, release=release))
    return (
        *before,
        ev.UpdateRequested(
            t=t,
            update=update,
            release=release.name,
            when=When.NOW,
            by=by,
            message=f"{why}: the code in its place",
        ),
        ev.UpdateApplied(
            t=t,
            update=update,
            release=release.name,
            before=state.release,
            step=state.world.best_step,
            recovery=True,
        ),
        ev.ReleaseProven(t=t, release=release.name, reason=why, step=state.world.best_step),
    )
