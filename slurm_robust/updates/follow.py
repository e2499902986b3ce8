"""Follows an update through the journal: what is known of it (pure), and the look at the file."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from msgspec import structs

from slurm_robust.model import events as ev
from slurm_robust.model import live_status
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.record import Record
from slurm_robust.model.release import When
from slurm_robust.model.updates import UpdateBook, UpdateResult, UpdateRow
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
    UpdateResult.REFUSED: UpdatePhase.REFUSED,
    UpdateResult.SUPERSEDED: UpdatePhase.SUPERSEDED,
    UpdateResult.WITHDRAWN: UpdatePhase.WITHDRAWN,
    UpdateResult.ROLLED_BACK: UpdatePhase.ROLLED_BACK,
    UpdateResult.NEVER: UpdatePhase.JOB_ENDED,
}


class UpdateProgress(Record):
    """What the journal says of one update, for who waits for it."""

    update: int
    row: UpdateRow | None = None
    """None while the journal does not show it."""
    incident: int = 0
    """The newest one that was opened since the request, 0 for none."""
    has_stepped: bool = False
    """The job has ever made a step. If it has not, the release may never show one either."""
    end: str | None = None
    """Why the job ended; None while it goes on."""

    @property
    def phase(self) -> UpdatePhase:
        """How far it is."""
        row = self.row
        if row is not None and row.result in _ENDS:
            return _ENDS[row.result]
        if self.end is not None:
            return UpdatePhase.JOB_ENDED
        if row is None:
            return UpdatePhase.ASKED
        if row.first_step is not None:
            return UpdatePhase.RUNNING
        if row.result is UpdateResult.REPLACED:
            return UpdatePhase.SUPERSEDED
        if row.applied is not None:
            return UpdatePhase.STARTING
        if row.stopped is not None:
            return UpdatePhase.STOPPING
        return UpdatePhase.TRYING if row.trial_s is None else UpdatePhase.WAITING

    @property
    def is_over(self) -> bool:
        """Whether it was not applied and never is, or was undone."""
        return self.phase in OVER

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to wait for: it runs, is over, or waits for a recovery."""
        waits = self.phase is UpdatePhase.WAITING and self.row is not None and self.row.when is When.LAZY
        return waits or self.phase is UpdatePhase.RUNNING or self.is_over

    @property
    def reason(self) -> str:
        """Why it was refused or rolled back, or the job ended."""
        if self.phase is UpdatePhase.JOB_ENDED and self.end is not None:
            return self.end
        return self.row.why if self.row is not None and self.is_over else ""

    @property
    def repeated(self) -> int | None:
        """Steps that the release before had completed and this one makes again; None before it is applied,
        and if it does not report its steps.
        """
        return self._again(undone=False)

    @property
    def undone(self) -> int | None:
        """The same for steps that do not count any more, since its owner named an older one to go on from."""
        return self._again(undone=True)

    def _again(self, *, undone: bool) -> int | None:
        row = self.row
        if row is None or row.applied is None or not row.reported:
            return None
        return max(0, row.step - row.restored) if undone == (row.from_step >= 0) else 0


class ProgressReader:
    """Reads the events of a job in their order for what becomes of one update."""

    def __init__(self, update: int, events: Iterable[ev.AnyEvent] = ()) -> None:
        self._book, self.progress = UpdateBook(), UpdateProgress(update=update)
        for event in events:
            self.read(event)

    def read(self, event: ev.AnyEvent) -> None:
        """Take the next event."""
        self._book.read(event)
        known = structs.replace(self.progress, row=self._book.row(self.progress.update))
        match event:
            case ev.FirstStep(world=ev.TRAIN):
                known = structs.replace(known, has_stepped=True)
            case ev.IncidentOpened() if known.row is not None:
                known = structs.replace(known, incident=event.incident)
            case ev.RunEnded(requeued=False) if known.row is not None:  # a requeued run takes it along
                known = structs.replace(known, end=event.reason)
        self.progress = known


def progress_of(events: Iterable[ev.AnyEvent], update: int) -> UpdateProgress:
    """Return what ``events`` say of an update."""
    return ProgressReader(update, events).progress


# -- the file -----------------------------------------------------------------------------------------


class UpdateFollower:
    """Looks at a journal for what becomes of an update."""

    def __init__(self, directory: JobDirectory, update: int) -> None:
        self._journal, self._live_status = JournalFollower(directory), directory.live_status
        self._reader = ProgressReader(update)

    @property
    def progress(self) -> UpdateProgress:
        """What is known by now."""
        return self._reader.progress

    def look(self) -> UpdateProgress:
        """Read what is new. Raises ``OSError``."""
        for followed in self._journal.read():
            if followed.before is not None:  # a controller took over, and some of what was read is void
                self._reader = ProgressReader(self.progress.update, followed.before)
            self._reader.read(followed.event)
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
