"""The updates of a job, each with what became of it: one row by all events that concern it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

from msgspec.structs import replace

from slurm_robust.model import events as ev
from slurm_robust.model.incident import RollBack
from slurm_robust.model.record import Record
from slurm_robust.model.release import Requester, UpdateEnd, When


class UpdateResult(str, Enum):
    """What became of an update."""

    WAITING = "waiting"
    """It is being tried, or waits for its moment."""
    CANDIDATE = "candidate"
    """It was applied, and its release is neither good nor bad yet."""
    GOOD = "good"
    ROLLED_BACK = "rolled back"
    REPLACED = "replaced"
    """Another update was applied before its release was good."""
    REFUSED = "refused"
    """Its trial failed."""
    SUPERSEDED = "superseded"
    """Another one was requested before it was applied."""
    WITHDRAWN = "withdrawn"
    NEVER = "never applied"
    """The job ended before."""


_ENDS = {
    UpdateEnd.REFUSED: UpdateResult.REFUSED,
    UpdateEnd.SUPERSEDED: UpdateResult.SUPERSEDED,
    UpdateEnd.WITHDRAWN: UpdateResult.WITHDRAWN,
}


class UpdateRow(Record):
    """One update. Times are in seconds since 1970."""

    number: int
    t: float
    """When it was requested."""
    release: str
    before: str
    """The release that ran when it was applied or, until then, when it was requested."""
    when: When
    by: Requester
    deadline: float | None = None
    message: str = ""
    changes: tuple[str, ...] = ()
    rollback: bool = False
    """Its owner went back to a release that the job had run."""
    from_step: int = -1
    """The step that its owner chose to go on from, -1 for the newest."""
    discard_optimizer: bool = False
    """Its owner had the optimizer's state left out."""
    result: UpdateResult = UpdateResult.WAITING
    why: str = ""
    """Why it is that."""
    trial_s: float | None = None
    """Seconds that its trial took; None without one, or before its end."""
    untried: tuple[str, ...] = ()
    """What could not be tried, and why."""
    traceback: str = ""
    """Of the trial that failed."""
    node: str = ""
    """Where it failed."""
    applied: float | None = None
    """When it was."""
    step: int = -1
    """The newest step that the release before had completed then, -1 for none."""
    restored: int = -1
    """The step that its release goes on from, -1 for the beginning."""
    first_step: int | None = None
    """The first step that its release completed; None before that."""
    reported: bool = True
    """Its release reports its steps. If not, nobody knows at which one it went on."""
    recovery: int = 0
    """The incident whose recovery took it along, 0 for none."""
    incident: int = 0
    """The incident in which its release was rolled back, 0 for none."""
    generation: int = 0
    """The first one that ran its release; 0 before that."""
    stopped: float | None = None
    """When the ranks were last ordered to stop for it; None if they were not, or a recovery took it along."""
    stopped_s: float | None = None
    """From the order to stop the ranks for it until the first step of its release; None for one that a
    recovery took along, or before that step.
    """
    judged: float | None = None
    """When its release was found to be good, or was rolled back."""
    over: float | None = None
    """When it was clear that it is not applied, or another one took its place."""
    back_to: str = ""
    """The release that ran again after it was rolled back."""
    job: str = ""
    """The job that it belongs to, among those of several jobs, else ""."""

    @property
    def name(self) -> str:
        """Its number, or ``4711/2`` among those of several jobs."""
        return f"{self.job}/{self.number}" if self.job else str(self.number)


_ASKED = {*UpdateRow.__struct_fields__} & {*ev.UpdateRequested.__struct_fields__} - {"t"}


class UpdateBook:
    """Reads the events of a job in their order, and keeps a row for each update."""

    def __init__(self) -> None:
        self._rows: dict[int, UpdateRow] = {}
        self.release = ""
        """The one that runs."""
        self.running = 0
        """The update that brought it, 0 for the first release."""
        self._good: set[str] = set()
        self._incident = 0
        self._starting = 0  # the update that was applied and has not made a step

    @property
    def rows(self) -> tuple[UpdateRow, ...]:
        """All updates so far, in order."""
        return tuple(self._rows.values())

    def row(self, number: int) -> UpdateRow | None:
        """Return an update, None while it is not known."""
        return self._rows.get(number)

    @property
    def candidate(self) -> UpdateRow | None:
        """The update whose release runs and is neither good nor bad yet."""
        row = self.row(self.running)
        return row if row is not None and row.result is UpdateResult.CANDIDATE else None

    def read(self, event: ev.AnyEvent, t: float | None = None) -> UpdateRow | None:
        """Take the next event, which happened at ``t``; the row that it changes, None for none."""
        if isinstance(event, ev.ProgressMade):  # most of a long journal
            return None
        t = event.t if t is None else t
        match event:
            case ev.ReleaseTaken():
                self.release = self.release or event.release.name
            case ev.UpdateRequested():
                return self._requested(event, t)
            case ev.UpdateTried():
                refused = {} if event.ok else {"result": UpdateResult.REFUSED, "why": event.text, "over": t}
                return self._change(
                    event.update,
                    trial_s=event.took_s,
                    untried=event.untried,
                    traceback=event.traceback,
                    node=event.node,
                    **refused,
                )
            case ev.UpdateEnded():
                known = self.row(event.update)
                if known is not None:
                    why = event.reason or known.why
                    return self._change(event.update, result=_ENDS[event.how], why=why, over=t)
            case ev.StopStarted() if event.update:
                return self._change(event.update, stopped=t)
            case ev.UpdateApplied():
                return self._applied(event, t)
            case ev.GenerationLaunched(world=ev.TRAIN) if self._starting:
                row = self.row(self._starting)
                if row is not None:  # what the first launch was to restore may be lost before it makes a step
                    generation = row.generation or event.generation
                    return self._change(self._starting, generation=generation, restored=event.restore_step)
            case ev.FirstStep(world=ev.TRAIN) if self._starting:
                number, self._starting = self._starting, 0
                row = self.row(number)
                stopped_s = t - row.stopped if row is not None and row.stopped is not None else None
                return self._change(
                    number, first_step=event.step, reported=event.reported, stopped_s=stopped_s
                )
            case ev.IncidentOpened():
                self._incident = event.incident
                for number, row in self._rows.items():
                    if row.result is UpdateResult.WAITING:  # the recovery takes along what it was stopped for
                        return self._change(number, stopped=None)
            case ev.IncidentClosed():
                self._incident = 0
            case ev.Decided(carried_out=True):
                back = next((action for action in event.actions if isinstance(action, RollBack)), None)
                return self._rolled_back(event, back, t) if back is not None else None
            case ev.ReleaseProven():
                return self._judged(event, t)
            case ev.RunEnded(final=True):
                for number, row in self._rows.items():
                    if row.result is UpdateResult.WAITING:
                        why = "the job ended before"
                        return self._change(number, result=UpdateResult.NEVER, why=why, over=t)
        return None

    def _requested(self, event: ev.UpdateRequested, t: float) -> UpdateRow:
        for number, row in self._rows.items():
            if row.result is UpdateResult.WAITING:
                why = f"update {event.update} takes its place"
                self._change(number, result=UpdateResult.SUPERSEDED, why=why, over=t)
        asked = {name: getattr(event, name) for name in _ASKED}
        self._rows[event.update] = row = UpdateRow(number=event.update, t=t, before=self.release, **asked)
        return row

    def _applied(self, event: ev.UpdateApplied, t: float) -> UpdateRow | None:
        if self.candidate is not None:
            why = f"update {event.update} took its place"
            self._change(self.running, result=UpdateResult.REPLACED, why=why, over=t)
        was_good = event.release in self._good
        self.release, self.running, self._starting = event.release, event.update, event.update
        row = self.row(event.update)
        is_stopped = row is not None and row.stopped is not None
        return self._change(
            event.update,
            result=UpdateResult.GOOD if was_good else UpdateResult.CANDIDATE,
            why="its release was good before" if was_good else "",
            before=event.before,
            applied=t,
            judged=t if was_good else None,
            step=event.step,
            restored=event.checkpoint.step if event.checkpoint is not None else -1,
            recovery=0 if is_stopped else self._incident,
        )

    def _rolled_back(self, event: ev.Decided, back: RollBack, t: float) -> UpdateRow | None:
        applied = [row for row in reversed(self._rows.values()) if row.applied is not None]
        number = next((row.number for row in applied if row.release == back.release), 0)
        brought = (row.number for row in applied if row.release == back.to)
        self.release, self.running, self._starting = back.to, next(brought, 0), 0
        self._good.discard(back.release)
        return self._change(
            number,
            result=UpdateResult.ROLLED_BACK,
            why=event.verdict.reason if event.verdict is not None else event.reason,
            incident=event.incident,
            back_to=back.to,
            judged=t,
        )

    def _judged(self, event: ev.ReleaseProven, t: float) -> UpdateRow | None:
        self._good.add(event.release)
        known = self.row(self.running)
        if known is None or known.release != event.release or known.result is not UpdateResult.CANDIDATE:
            return None
        return self._change(self.running, result=UpdateResult.GOOD, why=event.reason, judged=t)

    def _change(self, number: int, **changes: Any) -> UpdateRow | None:
        row = self.row(number)
        if row is None:
            return None
        self._rows[number] = row = replace(row, **changes)
        return row


def update_rows(events: Iterable[ev.AnyEvent], times: Sequence[float] | None = None) -> tuple[UpdateRow, ...]:
    """Return the updates of a journal; ``times``: when each of its events was, by one clock."""
    book = UpdateBook()
    for place, event in enumerate(events):
        book.read(event, None if times is None else times[place])
    return book.rows
