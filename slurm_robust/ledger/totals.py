"""What a job has been through, counted from its journal and its ledger. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import Summary
from slurm_robust.model import events as ev
from slurm_robust.model.incident import Symptom
from slurm_robust.model.totals import MOST_MARKS, IncidentMark, JobTotals


def totals_of(events: Sequence[ev.AnyEvent], found: Summary) -> JobTotals:
    """The totals of a journal; ``found`` is the summary of its ledger."""
    counts = Counter(type(event) for event in events)
    incidents = Counter(event.symptom for event in events if isinstance(event, ev.IncidentOpened))
    actions = Counter(
        action.__struct_config__.tag
        for event in events
        if isinstance(event, ev.Decided) and event.carried_out
        for action in event.actions
    )
    return JobTotals(
        classes={one.value: found.classes.get(one, 0) / 1000 for one in TimeClass},
        incidents={symptom.value: incidents[symptom] for symptom in Symptom},
        actions={str(name): number for name, number in sorted(actions.items())},
        launches=counts[ev.GenerationLaunched],
        evictions=counts[ev.NodeEvicted],
        requeues=counts[ev.RequeueStarted],
        takeovers=sum(bool(e.taken_from) for e in events if isinstance(e, ev.ControllerStarted)),
        marks=_marks(events),
    )


def _marks(events: Sequence[ev.AnyEvent]) -> tuple[IncidentMark, ...]:
    opened = [event for event in events if isinstance(event, ev.IncidentOpened)][-MOST_MARKS:]
    blamed: dict[int, str] = {}
    ended: dict[int, float] = {}
    newest = 0
    for event in events:
        if isinstance(event, ev.IncidentOpened):
            newest = event.incident
        elif isinstance(event, ev.Decided) and event.verdict is not None:
            blamed[event.incident] = event.verdict.blame.value
        elif isinstance(event, ev.IncidentClosed):
            ended[event.incident] = event.t
        elif isinstance(event, ev.RunEnded) and event.final and newest:
            ended.setdefault(newest, event.t)
    return tuple(
        IncidentMark(
            number=one.incident,
            symptom=one.symptom.value,
            blame=blamed.get(one.incident, ""),
            begun=one.t - one.detect_s,
            ended=ended.get(one.incident),
        )
        for one in opened
    )
