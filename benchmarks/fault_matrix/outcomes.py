"""What a planted fault should lead to, and what the job's journal says that it has led to. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from slurm_robust.model import events as ev
from slurm_robust.model.incident import Action, Symptom, finds_out_more

E = TypeVar("E")

OBSERVE = "observe"
RESTART = ("restart",)
EVICT = ("evict", "replace", "restart")
MOVE = ("replace", "restart")
TESTED = ("diagnose", *EVICT)

_RANKS = re.compile(r"\branks? (\d+(?:(?:-|, ?)\d+)*)")


@dataclass(frozen=True)
class Expected:
    """What is right: any of ``symptoms`` (none: no incident at all), and these kinds of actions.

    ``node``: the node with the fault is to blame; else nobody is. ``detect_s``: most seconds from the fault
    until the incident is open. ``everywhere``: all ranks show it, so none is the root. ``observed``: the
    actions in observe mode where they differ; they blame nobody.
    """

    symptoms: tuple[Symptom, ...] = ()
    actions: tuple[str, ...] = ()
    node: bool = False
    everywhere: bool = False
    detect_s: float | None = None
    observed: tuple[str, ...] = ()

    def in_mode(self, mode: str) -> Expected:
        """In observe mode nothing is tested, so a decision to test is the last one and blames nobody."""
        if mode == OBSERVE and "diagnose" in self.actions:
            return replace(self, actions=("diagnose",), node=False)
        if mode == OBSERVE and self.observed:
            return replace(self, actions=self.observed, node=False)
        return self


@dataclass(frozen=True)
class Outcome:
    """What followed from one fault. ``rank`` and ``node`` have it; times are in seconds.

    ``ranks`` are those that the verdict's words name, ``blamed`` its suspects, ``evicted`` who was evicted.
    ``carried_out``: whether the decisions were. ``went_on``: training made new steps afterwards.
    """

    case: str
    mode: str
    rank: int
    node: str
    expected: Expected
    symptom: Symptom | None = None
    detail: str = ""
    actions: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    evicted: tuple[str, ...] = ()
    carried_out: bool = False
    detect_s: float | None = None
    decide_s: float | None = None
    place_s: float | None = None
    went_on: bool = False


def decided(events: Iterable[ev.AnyEvent]) -> ev.Decided | None:
    """The first decision that does not only ask for more; in observe mode any, since nothing more follows."""
    found = (e for e in events if isinstance(e, ev.Decided))
    return next((e for e in found if not e.carried_out or not finds_out_more(e.actions)), None)


def read(planted: Outcome, events: Sequence[ev.AnyEvent], at: float) -> Outcome:
    """``planted`` with what followed: ``events`` since the fault, which began at ``at``, ``time.time()``."""
    opened = next(iter(_of(events, ev.IncidentOpened)), None)
    decisions = _of(events, ev.Decided)
    last = decided(events)
    evicted = tuple(e.node for e in _of(events, ev.NodeEvicted))
    if opened is None:
        blamed = tuple(n for d in decisions if d.verdict for n in d.verdict.suspects)
        actions = tuple(kind(a) for d in decisions for a in d.actions)
        return replace(planted, evicted=evicted, blamed=blamed, actions=actions)
    return replace(
        planted,
        symptom=opened.symptom,
        detail=last.reason if last else opened.detail,
        actions=tuple(dict.fromkeys(kind(a) for d in decisions for a in d.actions)),
        blamed=last.verdict.suspects if last and last.verdict else (),
        ranks=_ranks(opened, last),
        evicted=evicted,
        carried_out=any(d.carried_out for d in decisions),
        detect_s=opened.t - at,
        decide_s=last.t - opened.t if last else None,
    )


def kind(action: Action) -> str:
    """The action's name, as the journal has it."""
    return str(action.__struct_config__.tag)


def ranks_in(words: str) -> tuple[int, ...]:
    """The first ranks that a text names: ``rank 3``, ``ranks 0-3, 6``."""
    found = _RANKS.search(words)
    if found is None:
        return ()
    ends = (part.partition("-") for part in found[1].replace(" ", "").split(","))
    return tuple(rank for low, _, high in ends for rank in range(int(low), int(high or low) + 1))


def _ranks(opened: ev.IncidentOpened, last: ev.Decided | None) -> tuple[int, ...]:
    """The detail of a hang or slowdown names the ranks behind; the verdict adds which of them is at fault."""
    if last is None or last.verdict is None:
        return ()
    return ranks_in(last.verdict.reason.replace(opened.detail, "")) or ranks_in(last.verdict.reason)


def _of(events: Iterable[ev.AnyEvent], wanted: type[E]) -> list[E]:
    return [event for event in events if isinstance(event, wanted)]
