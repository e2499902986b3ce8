"""One job as its journal shows it: what all its views begin with, each made once, when it is wanted. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from slurm_robust.evidence.incident_text import restored_text
from slurm_robust.evidence.incidents import IncidentReport, incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.job import CommandKind
from slurm_robust.model.journal import fold
from slurm_robust.model.record import Record
from slurm_robust.model.startup import PhaseTimes
from slurm_robust.model.state import JobState
from slurm_robust.model.updates import UpdateRow, update_rows
from slurm_robust.trainings.phase import phase_of


class LaunchView(Record):
    """One launch of the workers, with what the journal says of that generation."""

    launched: ev.GenerationLaunched
    run: int = -1
    """Number of the Slurm job's run, -1 if the journal does not say."""
    queued_s: float | None = None
    """Time from submission or requeue to the start by Slurm, of the first generation of a run."""
    measured: ev.StartMeasured | None = None
    first: ev.FirstStep | None = None
    last: ev.FirstStep | ev.ProgressMade | None = None
    ended: ev.GenerationEnded | ev.RunEnded | None = None
    """The end of the run counts if the generation has none of its own."""

    @property
    def number(self) -> int:
        """The generation."""
        return self.launched.generation

    @property
    def restored(self) -> str:
        """The checkpoint with which it began, "" for a fresh start."""
        return restored_text(self.launched)

    @property
    def took_s(self) -> float | None:
        """Seconds from the order to launch until all ranks had completed a step; None if not measured."""
        return self.measured.took_s if self.measured is not None else None

    @property
    def phases(self) -> tuple[PhaseTimes, ...]:
        """What its start waited for, if that was measured."""
        return self.measured.phases if self.measured is not None else ()


def command_of(started: ev.RunStarted | None, state: JobState) -> tuple[str, ...]:
    """Return what the ranks run, or ran last, as ``srobust run`` takes it: updates may have changed it."""
    taken = state.taken.get(state.release)
    found = taken.release if taken is not None else started
    if found is None:
        return ()
    return ("-m", *found.command) if found.kind == CommandKind.MODULE else found.command


class JobView(Record, dict=True):
    """A job by its journal."""

    events: Sequence[ev.AnyEvent]
    is_over: bool = False
    """Slurm has ended it, which the journal need not say."""
    slurm: str = ""
    """Slurm's state of it, if it has ended it; "" if that is not known."""
    later: Iterable[Sequence[ev.AnyEvent]] = ()
    """The journals of the jobs that came after it in its training, read once."""

    @cached_property
    def state(self) -> JobState:
        """The fold of its events."""
        return fold(self.events)

    @cached_property
    def started(self) -> ev.RunStarted | None:
        """How it was submitted; None for a part of a journal."""
        return next((event for event in self.events if isinstance(event, ev.RunStarted)), None)

    @property
    def command(self) -> tuple[str, ...]:
        """What the ranks run, or ran last, as ``srobust run`` takes it."""
        return command_of(self.started, self.state)

    @cached_property
    def activity(self) -> tuple[str, str]:
        """What it does, and the reason."""
        return phase_of(self.events, self.state, is_over=self.is_over, slurm=self.slurm)

    @cached_property
    def incidents(self) -> list[IncidentReport]:
        """A report on each incident, in order."""
        return incident_reports(self.events, is_over=self.is_over, later=self.later)

    @cached_property
    def updates(self) -> tuple[UpdateRow, ...]:
        """All updates of its code, in order."""
        return update_rows(self.events)

    @cached_property
    def launches(self) -> dict[int, LaunchView]:
        """Each launch of the workers by its generation, in order."""
        launched: dict[int, LaunchView] = {}
        measured: dict[int, ev.StartMeasured] = {}
        first: dict[int, ev.FirstStep] = {}
        last: dict[int, ev.FirstStep | ev.ProgressMade] = {}
        ended: dict[int, ev.GenerationEnded | ev.RunEnded] = {}
        run, queued_s, newest = -1, None, 0
        for event in self.events:
            match event:
                case ev.ProgressMade():
                    last[event.generation] = event
                case ev.FirstStep():
                    first.setdefault(event.generation, event)
                    last[event.generation] = event
                case ev.AllocationTaken():
                    run, queued_s = event.restart_count, event.queued_s
                case ev.GenerationLaunched():
                    newest = event.generation
                    launched[newest] = LaunchView(launched=event, run=run, queued_s=queued_s)
                    queued_s = None
                case ev.StartMeasured():
                    measured[event.generation] = event
                case ev.GenerationEnded():
                    ended[event.generation] = event
                case ev.RunEnded():
                    ended.setdefault(newest, event)
        return {
            number: LaunchView(
                launched=one.launched,
                run=one.run,
                queued_s=one.queued_s,
                measured=measured.get(number),
                first=first.get(number),
                last=last.get(number),
                ended=ended.get(number),
            )
            for number, one in launched.items()
        }

    @cached_property
    def incident_of(self) -> dict[int, IncidentReport]:
        """The incident in which a generation was launched, of those that were launched in one."""
        return {number: report for report in self.incidents for number in report.generations[1:]}
