"""What a job has been through, counted event by event."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from msgspec import structs

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom, Verdict
from slurm_robust.model.totals import MAX_MARKS, IncidentMark, JobTotals, UpdateMark
from slurm_robust.model.updates import UpdateBook, UpdateResult
from slurm_robust.model.verdicts import drill_of, is_of_another


class Tally:
    """Counts the events of a journal, each once, in their order."""

    def __init__(self) -> None:
        self._counts: Counter[type] = Counter()
        self._incidents: Counter[Symptom] = Counter()
        self._actions: Counter[str] = Counter()
        self._takeovers = 0
        self._decisions: list[ev.Decided] = []  # on the newest incident
        self._uncounted: Symptom | None = None  # of the newest incident, which may be a drill's
        self._live: set[int] = set()  # drills that are not over
        self._drills = 0
        self._updates = UpdateBook()
        self._marks: deque[IncidentMark] = deque(maxlen=MAX_MARKS)
        self._verdict_of = 0  # the incident of the verdict below
        self._verdict: Verdict | None = None  # on the fault that began it

    def see(self, events: Iterable[ev.AnyEvent]) -> None:
        """Count what is new."""
        for event in events:
            self._counts[type(event)] += 1
            self._updates.read(event)
            match event:
                case ev.ControllerStarted():
                    self._takeovers += bool(event.taken_from)
                case ev.DrillPlanted():
                    self._live.add(event.drill)
                case ev.DrillOver():
                    self._live.discard(event.drill)
                case ev.IncidentOpened():
                    self._count()
                    self._decisions.clear()
                    self._uncounted = event.symptom
                    if not self._live:
                        self._count()
                    begun = event.t - event.detect_s
                    mark = IncidentMark(number=event.incident, symptom=event.symptom.value, begun=begun)
                    self._marks.append(mark)
                case ev.Decided():
                    if event.carried_out:
                        self._actions.update(str(action.__struct_config__.tag) for action in event.actions)
                    if event.verdict is not None:
                        # Another fault before the incident's end does not change its cause.
                        first = self._verdict if self._verdict_of == event.incident else None
                        if first is None or not is_of_another(first, event.verdict):
                            self._verdict_of, self._verdict = event.incident, event.verdict
                            self._change(event.incident, blame=event.verdict.blame.value)
                    self._decisions.append(event)
                    if drill_of(self._decisions):
                        self._change(event.incident, blame="drill")
                    else:
                        self._count()
                case ev.IncidentClosed():
                    self._count()
                    self._live.discard(drill_of(self._decisions))
                    self._change(event.incident, ended=event.t)
                case ev.RunEnded(final=True) if self._marks and self._marks[-1].ended is None:
                    self._count()
                    self._change(self._marks[-1].number, ended=event.t)

    def totals(self, classes: Mapping[TimeClass, int]) -> JobTotals:
        """Return what was counted; ``classes``: milliseconds by the newest ledger, none without one."""
        return JobTotals(
            classes={one.value: classes.get(one, 0) / 1000 for one in TimeClass if classes},
            incidents={symptom.value: self._incidents[symptom] for symptom in Symptom},
            actions=dict(sorted(self._actions.items())),
            launches=self._counts[ev.GenerationLaunched],
            evictions=self._counts[ev.NodeEvicted],
            requeues=self._counts[ev.RequeueStarted],
            takeovers=self._takeovers,
            marks=tuple(self._marks),
            drills=self._drills,
            updates=self._by_result(),
            update_marks=tuple(
                UpdateMark(number=row.number, release=row.release, applied=row.applied)
                for row in self._updates.rows
                if row.applied is not None
            )[-MAX_MARKS:],
        )

    def _by_result(self) -> dict[str, int]:
        found = Counter(row.result for row in self._updates.rows)
        return {result.value: found[result] for result in UpdateResult if found}

    def _count(self) -> None:
        """Count the newest incident, once: counters never go down, so only when its cause is known."""
        if self._uncounted is None:
            return
        if drill_of(self._decisions):
            self._drills += 1
        else:
            self._incidents[self._uncounted] += 1
        self._uncounted = None

    def _change(self, number: int, **changes: object) -> None:
        for place, mark in enumerate(self._marks):
            if mark.number == number:
                self._marks[place] = structs.replace(mark, **changes)
