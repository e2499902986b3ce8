"""The story of each incident, cut out of the journal: what it takes to understand one, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum

from slurm_robust.analysis.ettr import IncidentSummary, incidents
from slurm_robust.analysis.exits import root_exit
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Diagnose, NodeExit, Replay, Verdict
from slurm_robust.model.layout import Placement
from slurm_robust.model.record import Record

BEFORE_S = 60.0
"""Notes of the last seconds before the first sign belong to the story: a drill, a spare that was lost, a node
that was asked in vain what makes training slow."""


class Standing(str, Enum):
    """How far an incident is."""

    OPEN = "open"
    """Training is not yet where it was."""

    OVER = "over"
    """A new step was completed."""

    ENDED = "ended the job"
    """The job ended for good before there was one."""


class Story(Record):
    """One incident. ``events`` are those from its first sign to its end, in order.

    ``verdict`` is the newest that was no order to find out more, ``testing`` whether such an order is the
    newest; ``carried_out`` is False where the policy only said what it would do. ``generations`` begin with
    the one in which it began; those launched since follow, with their nodes in ``placements``. ``steps`` were
    done again (None: the script does not number its steps).
    """

    job_id: int
    summary: IncidentSummary
    standing: Standing
    events: tuple[ev.AnyEvent, ...]
    generations: tuple[int, ...]
    placements: dict[int, Placement] = {}
    verdict: Verdict | None = None
    carried_out: bool = True
    testing: bool = False
    steps: int | None = None

    @property
    def number(self) -> int:
        """Number of the incident, from 1."""
        return self.summary.number

    @property
    def blame(self) -> Blame | None:
        """Who is held responsible, None as long as nobody has said."""
        return self.verdict.blame if self.verdict is not None and not self.testing else None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes that were blamed by any decision of this incident, in order."""
        verdicts = [e.verdict for e in self.events if isinstance(e, ev.Decided) and e.verdict is not None]
        return tuple(dict.fromkeys(node for verdict in verdicts for node in verdict.suspects))

    @property
    def failed(self) -> tuple[NodeExit, ...]:
        """Exits of the workers of the generation in which it began."""
        return self.exits_of(self.summary.generation)

    @property
    def root(self) -> NodeExit | None:
        """The one of them that explains the others."""
        told = [e.root for e in self._ends(self.summary.generation)]
        return next((e for e in self.failed if e.exit.rank in told), None) or root_exit(self.failed)

    def exits_of(self, generation: int) -> tuple[NodeExit, ...]:
        """Exits of failed workers of one generation."""
        return tuple(exit for ended in self._ends(generation) for exit in ended.exits)

    def _ends(self, generation: int) -> list[ev.GenerationEnded]:
        return [e for e in self.events if isinstance(e, ev.GenerationEnded) and e.generation == generation]

    @property
    def tests(self) -> tuple[ev.NodesTested, ...]:
        """Every time that nodes were tested, or replayed the training."""
        return tuple(e for e in self.events if isinstance(e, ev.NodesTested))


def stories(events: Sequence[ev.AnyEvent]) -> list[Story]:
    """The stories of all incidents, in order."""
    summaries = {summary.number: summary for summary in incidents(events)}
    past, found = _Past(), []
    for place, event in enumerate(events):
        if isinstance(event, ev.IncidentOpened):
            found.append(_story(summaries[event.incident], past, tuple(_until_its_end(events, place))))
        past.see(event)
    return found


class _Past:
    """What of all that happened before an incident belongs to its story."""

    def __init__(self) -> None:
        self.job_id = 0
        self.nproc_per_node = 1
        self.best = -1
        self.reported = True
        self.launched: ev.GenerationLaunched | None = None
        self.notes: list[ev.Noted | ev.NodeEvicted | ev.Unanswered] = []

    def see(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.RunStarted():
                self.job_id, self.nproc_per_node = event.job_id, event.nproc_per_node
            case ev.GenerationLaunched():
                self.launched = event
            case ev.FirstStep() | ev.ProgressMade():
                self.best, self.reported = max(self.best, event.step), event.reported
            case ev.Noted() | ev.NodeEvicted() | ev.Unanswered():
                self.notes.append(event)
            case ev.IncidentClosed():
                self.notes.clear()


def _story(summary: IncidentSummary, past: _Past, own: tuple[ev.AnyEvent, ...]) -> Story:
    decided = [e for e in own if isinstance(e, ev.Decided)]
    answers = [e for e in decided if e.verdict is not None and not _finds_out(e)]
    launched = [e for e in own if isinstance(e, ev.GenerationLaunched)]
    since = summary.t - summary.detect_s - BEFORE_S
    known = [*launched, past.launched] if past.launched is not None else launched
    return Story(
        job_id=past.job_id,
        summary=summary,
        standing=_standing(own[-1]),
        events=(*(e for e in past.notes if e.t >= since), *own),
        generations=(summary.generation, *(e.generation for e in launched)),
        placements={
            e.generation: Placement(slots=e.slots, nproc_per_node=past.nproc_per_node) for e in known
        },
        verdict=answers[-1].verdict if answers else None,
        carried_out=all(e.carried_out for e in decided),
        testing=bool(decided) and _finds_out(decided[-1]),
        steps=_steps_again(own, past),
    )


def _until_its_end(events: Sequence[ev.AnyEvent], place: int) -> Iterator[ev.AnyEvent]:
    for index in range(place, len(events)):
        event = events[index]
        if index > place and isinstance(event, ev.IncidentOpened):
            return
        yield event
        if isinstance(event, ev.IncidentClosed) or (isinstance(event, ev.RunEnded) and event.final):
            return


def _finds_out(decided: ev.Decided) -> bool:
    return any(isinstance(action, Diagnose | Replay) for action in decided.actions)


def _standing(last: ev.AnyEvent) -> Standing:
    match last:
        case ev.IncidentClosed():
            return Standing.OVER
        case ev.RunEnded():
            return Standing.ENDED
    return Standing.OPEN


def _steps_again(own: Iterable[ev.AnyEvent], past: _Past) -> int | None:
    """Steps that any generation had done before the incident and that were done once more in it."""
    best, reported = past.best, past.reported
    launched: dict[int, int] = {}
    again: dict[int, int] = {}
    for event in own:
        if isinstance(event, ev.GenerationLaunched):
            launched[event.generation] = event.restore_step
        elif isinstance(event, ev.FirstStep | ev.ProgressMade):
            reported = reported and event.reported
            if event.generation in launched:
                again[event.generation] = max(0, min(event.step, best) - launched[event.generation])
            else:  # heartbeats lag: how far the failed generation was is known a moment later
                best = max(best, event.step)
    return sum(again.values()) if reported else None
