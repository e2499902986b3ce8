"""Follows an update through the journal: what is known of it (pure), and the look at the file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import reduce, singledispatch

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model import live_status
from slurm_robust.model.incident import RollBack
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.model.release import UpdateEnd, When
from slurm_robust.notify.follow import JournalFollower


class UpdatePhase(str, Enum):
    """How far an update is."""

    ASKED = "asked"  # the journal does not show it yet
    TRYING = "trying"
    WAITING = "waiting"  # it may be applied
    STOPPING = "stopping"  # the ranks of the release before are ended for it
    STARTING = "starting"
    RUNNING = "running"  # its release has completed a step
    REFUSED = "refused"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"
    ROLLED_BACK = "rolled back"
    JOB_ENDED = "job ended"


OVER = frozenset(
    {
        UpdatePhase.REFUSED,
        UpdatePhase.SUPERSEDED,
        UpdatePhase.WITHDRAWN,
        UpdatePhase.ROLLED_BACK,
        UpdatePhase.JOB_ENDED,
    }
)
"""Nothing follows that the owner wanted."""

_ENDS = {
    UpdateEnd.REFUSED: UpdatePhase.REFUSED,
    UpdateEnd.SUPERSEDED: UpdatePhase.SUPERSEDED,
    UpdateEnd.WITHDRAWN: UpdatePhase.WITHDRAWN,
}


class UpdateProgress(Record):
    """What the journal says of one update. Times are seconds since 1970."""

    update: int
    phase: UpdatePhase = UpdatePhase.ASKED
    requested: ev.UpdateRequested | None = None
    tried: ev.UpdateTried | None = None
    stopped: float | None = None
    """When the ranks of the release before began to be ended for it."""
    applied: ev.UpdateApplied | None = None
    first: ev.FirstStep | None = None
    """The first step of its release."""
    incident: int = 0
    """The newest one that was opened since the request, 0 for none."""
    good: bool = False
    """Its release has been judged good."""
    has_stepped: bool = False
    """The job has ever made a step. If it has not, the release may never show one either."""
    reason: str = ""
    """Why it was refused or rolled back, or the job ended."""

    @property
    def when(self) -> When:
        """When it is applied."""
        return self.requested.when if self.requested is not None else When.LAZY

    @property
    def is_over(self) -> bool:
        """Whether it was not applied and never is, or was undone."""
        return self.phase in OVER

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for: it runs, is over, or waits for a recovery."""
        waits = self.phase is UpdatePhase.WAITING and self.when is When.LAZY
        return waits or self.phase is UpdatePhase.RUNNING or self.is_over

    @property
    def applied_s(self) -> float | None:
        """Seconds without training: from the stop for it until the first step of its release.

        None before that step, and if a recovery took it along.
        """
        if self.first is None or self.stopped is None:
            return None
        return max(0.0, self.first.t - self.stopped)

    @property
    def restored(self) -> int:
        """The step that its release goes on from, -1 for the beginning."""
        checkpoint = self.applied.checkpoint if self.applied is not None else None
        return checkpoint.step if checkpoint is not None else -1

    @property
    def repeated(self) -> int | None:
        """Steps that the release before had completed and this one makes again; None before it is applied."""
        return self._again(undone=False)

    @property
    def undone(self) -> int | None:
        """The same for steps that do not count any more, since its owner named an older one to go on from."""
        return self._again(undone=True)

    def _again(self, *, undone: bool) -> int | None:
        if self.applied is None:
            return None
        is_undone = self.requested is not None and self.requested.from_step >= 0
        return max(0, self.applied.step - self.restored) if undone == is_undone else 0


def progress_of(events: Iterable[ev.AnyEvent], update: int) -> UpdateProgress:
    """Return what ``events`` say of an update."""
    return reduce(lambda known, event: after(event, known), events, UpdateProgress(update=update))


def after(event: ev.AnyEvent, known: UpdateProgress) -> UpdateProgress:
    """Return what is known of an update after ``event``."""
    is_another = getattr(event, "update", known.update) != known.update
    return known if is_another else _after(event, known)


@singledispatch
def _after(event: object, known: UpdateProgress) -> UpdateProgress:
    return known


@_after.register
def _(event: ev.UpdateRequested, known: UpdateProgress) -> UpdateProgress:
    return structs.replace(known, phase=UpdatePhase.TRYING, requested=event)


@_after.register
def _(event: ev.UpdateTried, known: UpdateProgress) -> UpdateProgress:
    phase = UpdatePhase.WAITING if event.ok else UpdatePhase.REFUSED
    return structs.replace(known, phase=phase, tried=event, reason="" if event.ok else event.text)


@_after.register
def _(event: ev.UpdateEnded, known: UpdateProgress) -> UpdateProgress:
    return structs.replace(known, phase=_ENDS[event.how], reason=event.reason or known.reason)


@_after.register
def _(event: ev.StopStarted, known: UpdateProgress) -> UpdateProgress:
    return structs.replace(known, phase=UpdatePhase.STOPPING, stopped=event.t)


@_after.register
def _(event: ev.UpdateApplied, known: UpdateProgress) -> UpdateProgress:
    return structs.replace(known, phase=UpdatePhase.STARTING, applied=event)


@_after.register
def _(event: ev.FirstStep, known: UpdateProgress) -> UpdateProgress:
    if event.world != ev.TRAIN:
        return known
    known = structs.replace(known, has_stepped=True)
    if known.phase is not UpdatePhase.STARTING:
        return known
    return structs.replace(known, phase=UpdatePhase.RUNNING, first=event)


@_after.register
def _(event: ev.IncidentOpened, known: UpdateProgress) -> UpdateProgress:
    if known.requested is None:
        return known
    return structs.replace(known, incident=event.incident)


@_after.register
def _(event: ev.Decided, known: UpdateProgress) -> UpdateProgress:
    rolled = (action for action in event.actions if isinstance(action, RollBack))
    applied = known.applied
    if not event.carried_out or applied is None or all(one.release != applied.release for one in rolled):
        return known
    return structs.replace(known, phase=UpdatePhase.ROLLED_BACK, reason=event.reason)


@_after.register
def _(event: ev.ReleaseProven, known: UpdateProgress) -> UpdateProgress:
    if known.applied is None or event.release != known.applied.release:
        return known
    return structs.replace(known, good=True)


@_after.register
def _(event: ev.RunEnded, known: UpdateProgress) -> UpdateProgress:
    # A run that is requeued takes the update along.
    if known.requested is None or known.is_over or event.requeued:
        return known
    return structs.replace(known, phase=UpdatePhase.JOB_ENDED, reason=event.reason)


# -- the file -----------------------------------------------------------------------------------------


class UpdateFollower:
    """Looks at a journal for what becomes of an update."""

    def __init__(self, directory: JobDirectory, update: int) -> None:
        self._journal, self._live_status = JournalFollower(directory), directory.live_status
        self.progress = UpdateProgress(update=update)

    def look(self) -> UpdateProgress:
        """Read what is new. Raises ``OSError``."""
        for followed in self._journal.read():
            if followed.before is not None:  # a controller took over, and some of what was read is void
                self.progress = progress_of(followed.before, self.progress.update)
            self.progress = after(followed.event, self.progress)
        return self.progress

    def doing(self) -> str:
        """Return what the trial is at by the live status, "" if it does not tell."""
        try:
            update = live_status.read(self._live_status).update
        except (OSError, live_status.NotALiveStatus):
            return ""
        return update.doing if update is not None and update.number == self.progress.update else ""


def request_of(events: Iterable[ev.AnyEvent], token: str) -> ev.UpdateRequested | None:
    """Return the request with this token if the journal has it, for who got no answer of a controller."""
    found = (event for event in events if isinstance(event, ev.UpdateRequested))
    return next((event for event in found if event.token == token), None)
