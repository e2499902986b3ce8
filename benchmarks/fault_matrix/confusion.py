"""From outcomes to marks, the confusion table and the figures. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.fault_matrix.outcomes import OBSERVE, Outcome

THE_NODE, WITH_OTHERS, ANOTHER, NOBODY = "the node", "the node and others", "another node", "nobody"
COLUMNS = (THE_NODE, WITH_OTHERS, ANOTHER, NOBODY)


@dataclass(frozen=True)
class Marks:
    """What was right. None: nothing to be right or wrong."""

    symptom: bool
    blame: bool
    actions: bool
    in_time: bool | None
    root: bool | None
    untouched: bool | None
    went_on: bool | None

    @property
    def right(self) -> bool:
        """Verdict, action and its effect, whatever time they took."""
        verdict = self.symptom and self.blame and self.actions
        return verdict and self.untouched is not False and self.went_on is not False


def marks(found: Outcome) -> Marks:
    """Of one outcome."""
    expected = found.expected
    symptom = found.symptom in expected.symptoms if expected.symptoms else found.symptom is None
    late = found.detect_s is None or (expected.detect_s is not None and found.detect_s > expected.detect_s)
    return Marks(
        symptom=symptom,
        blame=column(found) == (THE_NODE if expected.node else NOBODY),
        actions=set(found.actions) == set(expected.actions),
        in_time=not late if expected.detect_s is not None else None,
        root=_root(found),
        untouched=not found.carried_out and not found.evicted if found.mode == OBSERVE else None,
        went_on=found.went_on if found.mode != OBSERVE else None,
    )


def column(found: Outcome) -> str:
    """Who was blamed, as seen from the node with the fault."""
    blamed = {*found.blamed, *found.evicted}
    if not blamed:
        return NOBODY
    if found.node not in blamed or not found.expected.node:
        return ANOTHER if found.node not in blamed else THE_NODE
    return THE_NODE if blamed == {found.node} else WITH_OTHERS


def table(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], int]:
    """How often a column was found where (the node, nobody) was expected."""
    return dict(Counter((THE_NODE if o.expected.node else NOBODY, column(o)) for o in outcomes))


def innocents(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Where somebody was evicted, or would be, for nothing: no node was at fault, or another one was."""
    wrong = (ANOTHER, THE_NODE)
    return tuple(o for o in outcomes if column(o) == ANOTHER or (not o.expected.node and column(o) in wrong))


def over_evictions(outcomes: Sequence[Outcome]) -> int:
    """How many healthy nodes went together with the one at fault, as parts of its group."""
    return sum(len({*o.blamed, *o.evicted} - {o.node}) for o in outcomes if column(o) == WITH_OTHERS)


@dataclass(frozen=True)
class Figures:
    """Of all outcomes of a mode. Medians in seconds, None without any."""

    cases: int
    right: int
    blame: int
    root: tuple[int, int]
    in_time: tuple[int, int]
    innocents: int
    over_evictions: int
    detect_s: float | None
    decide_s: float | None
    place_s: float | None


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """The sums, and the medians of the times."""
    found = [marks(o) for o in outcomes]
    roots = [m.root for m in found if m.root is not None]
    times = [m.in_time for m in found if m.in_time is not None]
    return Figures(
        cases=len(outcomes),
        right=sum(m.right for m in found),
        blame=sum(m.blame for m in found),
        root=(sum(roots), len(roots)),
        in_time=(sum(times), len(times)),
        innocents=len(innocents(outcomes)),
        over_evictions=over_evictions(outcomes),
        detect_s=_median([o.detect_s for o in outcomes]),
        decide_s=_median([o.decide_s for o in outcomes]),
        place_s=_median([o.place_s for o in outcomes]),
    )


def _root(found: Outcome) -> bool | None:
    """Whether the rank with the fault is named, or its node where a fault is a node's and no rank's."""
    if not found.expected.symptoms or found.expected.everywhere:
        return None
    if found.ranks:
        return found.rank in found.ranks
    return column(found) == THE_NODE


def _median(seconds: Sequence[float | None]) -> float | None:
    known = [s for s in seconds if s is not None]
    return median(known) if known else None
