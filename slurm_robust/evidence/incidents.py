"""Incident reports, cut out of the journal: what a person needs to understand one incident. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import islice, takewhile

from msgspec.structs import replace

from slurm_robust.analysis.logs import root_exit
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.incident import Blame, NodeExit, RollBack, Symptom, Verdict, finds_out_more
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.layout import Placement
from slurm_robust.model.progress import began_after
from slurm_robust.model.record import Record
from slurm_robust.model.updates import UpdateBook, UpdateRow
from slurm_robust.model.verdicts import drill_of, leading
from slurm_robust.util.text import fold_ranks, one_line

BEFORE_S = 60.0
"""Notes of the last seconds before the first sign belong to the report: a drill, a lost spare, a node that
did not answer when slow training was examined."""


_LOST = (Symptom.NODE_LOST, Symptom.AGENTS_LOST)
# What may be seen first of that: ranks that miss it, or nodes of which all others came back.
_MISSED = (Symptom.HANG, Symptom.WORKER_EXIT, Symptom.UNREACHABLE)


class IncidentStatus(str, Enum):
    """How far an incident is."""

    OPEN = "open"
    """Training has not yet reached the step at which it was."""

    OVER = "over"
    """A new step was completed."""

    ENDED = "ended the job"
    """The job ended for good before any new step."""


class IncidentReport(Record):
    """One incident. Times are in seconds since 1970, durations in seconds; None: not yet known."""

    job_id: int
    number: int
    """From 1."""

    t: float
    """When the first sign was seen."""

    generation: int
    """The one in which it began."""

    symptom: str
    """The symptom of the first of ``signs``."""
    signs: tuple[str, ...]
    """What was seen, in order; a lost node or agent before the ranks that missed it."""

    status: IncidentStatus
    events: tuple[ev.AnyEvent, ...]
    """From the first sign to the end, in order."""

    generations: tuple[int, ...]
    """The one in which it began, then those launched since."""

    why: str = ""
    """Why the first of them is a fault (a limit, and where it comes from); "" if it says all."""

    placements: dict[int, Placement] = {}
    """The nodes of these generations."""

    verdict: Verdict | None = None
    """The newest on the fault that began it which did not ask for more evidence."""

    others: tuple[Verdict, ...] = ()
    """Verdicts on other faults that came before it was over."""

    drill: ev.DrillPlanted | None = None
    """The drill that caused it; None for a real fault."""

    update: UpdateRow | None = None
    """The update whose release ran when it began and was not good yet."""

    testing: bool = False
    """The newest decision asks for more evidence."""

    carried_out: bool = True
    """False if the policy only said what it would do."""

    detect_s: float = 0.0
    localise_s: float | None = None
    recover_s: float | None = None
    steps_repeated: int | None = None
    """Steps that were done again; None if the script does not number its steps."""
    steps_anew: int | None = None
    """Optimizer steps that begin anew, unless the script resumes by itself: all that the generation had made;
    None if the script numbers its steps, or a checkpoint of ours was restored.
    """

    @property
    def blame(self) -> Blame | None:
        """What is held responsible; None as long as nothing is decided."""
        return self.verdict.blame if self.verdict is not None and not self.testing else None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes that were blamed by any decision of this incident, in order."""
        verdicts = [e.verdict for e in self.events if isinstance(e, ev.Decided) and e.verdict is not None]
        return tuple(dict.fromkeys(node for verdict in verdicts for node in verdict.suspects))

    @property
    def failed(self) -> tuple[NodeExit, ...]:
        """Exits of the workers of the generation in which it began."""
        return self.exits_of(self.generation)

    @property
    def root(self) -> NodeExit | None:
        """The one of them that explains the others."""
        known = [e.root for e in self._ends(self.generation)]
        return next((e for e in self.failed if e.exit.rank in known), None) or root_exit(self.failed)

    def exits_of(self, generation: int) -> tuple[NodeExit, ...]:
        """Return exits of failed workers of one generation."""
        return tuple(exit for ended in self._ends(generation) for exit in ended.exits)

    def _ends(self, generation: int) -> list[ev.GenerationEnded]:
        return [e for e in self.events if isinstance(e, ev.GenerationEnded) and e.generation == generation]

    @property
    def tests(self) -> tuple[ev.NodesTested, ...]:
        """Every time that nodes were tested, or replayed training steps."""
        return tuple(e for e in self.events if isinstance(e, ev.NodesTested))


class NoSuchIncident(SrobustError):
    """The journal has no incident of that number."""

    exit_code = ExitCode.NO_INPUT


def find_report(
    directory: JobDirectory, reports: Iterable[IncidentReport], number: int, name: str
) -> IncidentReport:
    """Return the report of this number on the job of ``directory``, which a person calls ``name``.

    Raises :class:`NoSuchIncident`.
    """
    every = {report.number: report for report in reports}
    if number not in every:
        those = f"it has {fold_ranks(every)}" if every else "it has none"
        raise NoSuchIncident(
            f"{directory.path} has no incident {number}; {those}",
            fix=f"'srobust incidents {one_line(name)}' lists them",
        )
    return every[number]


def incident_reports(
    events: Sequence[ev.AnyEvent],
    *,
    is_over: bool = False,
    later: Iterable[Sequence[ev.AnyEvent]] = (),
) -> list[IncidentReport]:
    """Return a report on each incident of a journal, in order.

    ``is_over``: Slurm has ended the job, which the journal need not say. ``later``: the journals of the jobs
    that came after it in its training; what they repeat because of the last incident is counted there.
    """
    past, found = _Past(), list[IncidentReport]()
    for place, event in enumerate(events):
        if isinstance(event, ev.IncidentOpened):
            own = tuple(_until_its_end(events, place))
            found.append(_report(event, past, own, islice(events, place + len(own), None)))
        past.add(event)
    if is_over and found and found[-1].status is IncidentStatus.OPEN:
        found[-1] = replace(found[-1], status=IncidentStatus.ENDED)
    if found and found[-1].status is not IncidentStatus.OVER and found[-1].steps_repeated is not None:
        again = found[-1].steps_repeated + _repeated_later(past.best, later)
        found[-1] = replace(found[-1], steps_repeated=again)
    return found


class _Past:
    """What of all that happened before an incident belongs to its report."""

    def __init__(self) -> None:
        self.job_id = 0
        self.nproc_per_node = 1
        self.best = -1
        self.reported = True
        self.made = 0
        """Steps of the newest generation, if the script does not number them."""
        self.launched: ev.GenerationLaunched | None = None
        self.notes: list[ev.Noted | ev.NodeEvicted | ev.Unanswered | ev.DrillPlanted | ev.DrillOver] = []
        self.drills: dict[int, ev.DrillPlanted] = {}
        self.updates = UpdateBook()

    def add(self, event: ev.AnyEvent) -> None:
        self.updates.read(event)
        match event:
            case ev.RunStarted():
                self.job_id, self.nproc_per_node = event.job_id, event.nproc_per_node
            case ev.Continued():
                self.best, self.reported = event.best_step, event.reports
            case ev.GenerationLaunched():
                self.launched, self.made = event, 0
            case ev.FirstStep() | ev.ProgressMade():
                self.made = event.step + 1
                self.best, self.reported = max(self.best, event.step), event.reported
            case ev.GenerationEnded():
                self.best = max(self.best, event.reached_step)
            case ev.DrillPlanted():
                self.drills[event.drill] = event
                self.notes.append(event)
            case ev.Noted() | ev.NodeEvicted() | ev.Unanswered() | ev.DrillOver():
                self.notes.append(event)
            case ev.IncidentClosed():
                self.notes.clear()


def _report(
    opened: ev.IncidentOpened, past: _Past, own: tuple[ev.AnyEvent, ...], after: Iterable[ev.AnyEvent]
) -> IncidentReport:
    decided = [e for e in own if isinstance(e, ev.Decided)]
    final = [e for e in decided if not finds_out_more(e.actions)]
    verdicts = [e.verdict for e in final if e.verdict is not None]
    lead, others = leading(verdicts)
    launched = [e for e in own if isinstance(e, ev.GenerationLaunched)]
    since = opened.t - opened.detect_s - BEFORE_S
    drill = past.drills.get(drill_of(decided))
    seen = _signs(opened, own)
    status = IncidentStatus.OPEN
    if isinstance(own[-1], ev.IncidentClosed | ev.RunEnded):
        is_over = isinstance(own[-1], ev.IncidentClosed)
        status = IncidentStatus.OVER if is_over else IncidentStatus.ENDED
    # Steps that any generation had done before and that were done once more.
    again, reported = _Again(past.best), past.reported
    for event in own:
        if isinstance(event, ev.FirstStep | ev.ProgressMade):
            reported = reported and event.reported
        again.add(event)
    if any(isinstance(action, RollBack) for e in decided if e.carried_out for action in e.actions):
        # What the release before does after the step of the update is new to it, and done again all the same.
        for event in after:
            if isinstance(event, ev.IncidentOpened) or again.newest > again.best:
                break
            again.add(event)
    return IncidentReport(
        job_id=past.job_id,
        number=opened.incident,
        t=opened.t,
        generation=opened.generation,
        symptom=seen[0].symptom.value,
        signs=tuple(sign.detail for sign in seen),
        why=seen[0].why,
        status=status,
        events=(*(e for e in past.notes if e.t >= since or e is drill), *own),
        generations=(opened.generation, *(e.generation for e in launched)),
        placements={
            e.generation: Placement(slots=e.slots, nproc_per_node=past.nproc_per_node)
            for e in (*launched, past.launched)
            if e is not None
        },
        verdict=lead,
        others=others,
        drill=drill,
        update=past.updates.candidate,
        testing=bool(decided) and finds_out_more(decided[-1].actions),
        carried_out=all(e.carried_out for e in decided),
        detect_s=opened.detect_s,
        # The time of tests belongs to localisation, not to recovery.
        localise_s=final[0].localise_s if final else None,
        recover_s=next((e.recover_s for e in own if isinstance(e, ev.IncidentClosed)), None),
        steps_repeated=again.steps if reported else None,
        steps_anew=_anew(opened, past, own, launched) if not reported else None,
    )


def _anew(
    opened: ev.IncidentOpened,
    past: _Past,
    own: Iterable[ev.AnyEvent],
    launched: Sequence[ev.GenerationLaunched],
) -> int | None:
    """Return how many steps that the script does not number begin anew."""
    if launched and launched[0].restore_step >= 0:
        return None
    last = (e.step for e in own if isinstance(e, ev.ProgressMade) and e.generation == opened.generation)
    return max(past.made, *(step + 1 for step in last), 0)


def _signs(
    opened: ev.IncidentOpened, own: Iterable[ev.AnyEvent]
) -> list[ev.IncidentOpened | ev.SymptomAdded]:
    added = [e for e in own if isinstance(e, ev.SymptomAdded)]
    signs: list[ev.IncidentOpened | ev.SymptomAdded] = [opened, *added]
    if opened.symptom in _MISSED:
        undecided = takewhile(lambda e: not isinstance(e, ev.Decided), own)
        lost = (e for e in undecided if isinstance(e, ev.SymptomAdded) and e.symptom in _LOST)
        if (cause := next(lost, None)) is not None:
            signs.remove(cause)
            signs.insert(0, cause)
    return signs


def _until_its_end(events: Sequence[ev.AnyEvent], place: int) -> Iterator[ev.AnyEvent]:
    for index in range(place, len(events)):
        event = events[index]
        if index > place and isinstance(event, ev.IncidentOpened):
            return
        yield event
        if isinstance(event, ev.IncidentClosed) or (isinstance(event, ev.RunEnded) and event.final):
            return


def _repeated_later(best: int, later: Iterable[Sequence[ev.AnyEvent]]) -> int:
    """Return how many of the steps until ``best`` later jobs did again, before anything else went wrong.

    If a person chose an older step, or began anew, that is why they were done again.
    """
    again = _Again(best)
    for events in later:
        went_on = next((event for event in events if isinstance(event, ev.Continued)), None)
        if went_on is None or went_on.best_step < best:
            break
        for event in events:
            if isinstance(event, ev.IncidentOpened) or again.newest > best:
                return again.steps
            again.add(event)
    return again.steps


class _Again:
    """Counts the steps until ``best`` that generations do again."""

    def __init__(self, best: int) -> None:
        self.best = best
        self.newest = -1
        self._launched: dict[int, int] = {}
        self._again: dict[int, int] = {}

    @property
    def steps(self) -> int:
        return sum(self._again.values())

    def add(self, event: ev.AnyEvent) -> None:
        if isinstance(event, ev.GenerationLaunched):
            self._launched[event.generation] = event.restore_step
        elif isinstance(event, ev.FirstStep | ev.ProgressMade):
            self.newest = event.step
            if (began := self._launched.get(event.generation)) is not None:
                if event.reported and event.generation not in self._again:
                    began = self._launched[event.generation] = began_after(began, event.step, self.best)
                self._again[event.generation] = max(0, min(event.step, self.best) - began)
            else:  # heartbeats lag: how far the failed generation was is known a moment later
                self.best = max(self.best, event.step)
        elif isinstance(event, ev.GenerationEnded) and not self._launched:
            self.best = max(self.best, event.reached_step)
