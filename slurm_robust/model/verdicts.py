"""Which verdict of an incident tells what began it, and which drill, if any. Pure.

An incident is open until the first new step, and another fault may come before that: it adds signs and
actions, but the blame for the first one stays. A verdict that only knows more of the same fault takes the
place of the earlier verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Blame, Verdict

_FIRM = 3
"""Rungs up to this one have the evidence itself: a node that is named, the network, the code."""


def is_firm(verdict: Verdict) -> bool:
    """Return whether it blames a node or the code by more than suspicion."""
    return verdict.blame is not Blame.NOBODY and verdict.rung <= _FIRM and not verdict.unproven


def is_of_another(first: Verdict, later: Verdict) -> bool:
    """Return whether ``later`` is on another fault than ``first``, about which no more can be found out."""
    is_same = later.signature == first.signature or set(later.suspects) & set(first.suspects)
    return is_firm(first) and not is_same


def leading(verdicts: Sequence[Verdict]) -> tuple[Verdict | None, tuple[Verdict, ...]]:
    """Return the verdict on the fault that began the incident, and the verdicts on others, in order."""
    lead: Verdict | None = None
    others: list[Verdict] = []
    for verdict in verdicts:
        if lead is not None and is_of_another(lead, verdict):
            others.append(verdict)
        else:
            lead = verdict
    return lead, tuple(others)


def drill_of(decisions: Iterable[ev.Decided]) -> int:
    """Return the drill that caused an incident, by all decisions on it; 0 if one of them knows of none."""
    drills = {decided.drill for decided in decisions}
    return drills.pop() if len(drills) == 1 else 0


def drilled(events: Iterable[ev.AnyEvent]) -> dict[int, ev.DrillPlanted]:
    """Return the incidents of a journal that drills caused, each with its drill."""
    planted: dict[int, ev.DrillPlanted] = {}
    decided: dict[int, list[ev.Decided]] = {}
    for event in events:
        if isinstance(event, ev.DrillPlanted):
            planted[event.drill] = event
        elif isinstance(event, ev.Decided):
            decided.setdefault(event.incident, []).append(event)
    return {
        incident: planted[drill]
        for incident, decisions in decided.items()
        if (drill := drill_of(decisions)) in planted
    }
