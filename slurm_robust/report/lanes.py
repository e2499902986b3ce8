"""Who held each slot of a job, and who stood by: the lanes of the timeline. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.report.nodelines import NodeActivity, NodeLine
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import fold_ranks

MAX_EACH = 64
"""With more slots than this, those that changed hands at the same moments share one lane."""


class NodeBar(Record):
    """A time in which nodes did one thing; seconds since 1970 by slurmctld's clock."""

    begin: float
    end: float
    nodes: str
    """As a hostlist."""
    doing: NodeActivity
    evicted: bool = False
    """It ended because the node was evicted."""


class Lane(Record):
    """One row of the timeline."""

    slots: str
    """The slots of which it is the lane, as ``0`` or ``2-63``; "" for nodes beside them."""
    count: int
    """How many slots that are."""
    bars: tuple[NodeBar, ...]


def lanes(
    events: Sequence[ev.AnyEvent], times: Sequence[float], end: float, nodes: Iterable[NodeLine]
) -> tuple[Lane, ...]:
    """Return the lanes of the slots in their order, then those of the nodes beside them."""
    sweep = _Slots()
    for t, event in zip(times, events, strict=True):
        sweep.take(event, t)
    sweep.empty(end)
    return *_of_slots(sweep.held), *_beside(nodes)


def _of_slots(held: dict[int, list[tuple[float, float, str, bool]]]) -> Iterator[Lane]:
    alike: dict[object, list[int]] = defaultdict(list)
    for slot in sorted(held):
        moments = tuple((begin, end, evicted) for begin, end, _, evicted in held[slot])
        alike[moments if len(held) > MAX_EACH else slot].append(slot)
    # What most slots did comes first, if some share a lane.
    for slots in sorted(alike.values(), key=lambda slots: -len(slots)):
        bars = tuple(
            NodeBar(
                begin=begin,
                end=end,
                nodes=fold([held[s][place][2] for s in slots]),
                doing=NodeActivity.SLOT,
                evicted=evicted,
            )
            for place, (begin, end, _, evicted) in enumerate(held[slots[0]])
        )
        yield Lane(slots=fold_ranks(slots), count=len(slots), bars=bars)


def _beside(nodes: Iterable[NodeLine]) -> Iterator[Lane]:
    """Yield as few lanes as show all nodes without a slot beside each other."""
    bars = [
        NodeBar(begin=piece.begin, end=piece.end, nodes=line.nodes, doing=piece.doing)
        for line in nodes
        for piece in line.pieces
        if piece.doing is not NodeActivity.SLOT
    ]
    rows: list[list[NodeBar]] = []
    for bar in sorted(bars, key=lambda bar: (bar.begin, bar.nodes)):
        # The same nodes go on in their lane; else the first one that is free.
        free = [row for row in rows if row[-1].end <= bar.begin]
        row = next((row for row in free if row[-1].nodes == bar.nodes), free[0] if free else None)
        if row is None:
            rows.append(row := [])
        row.append(bar)
    for row in rows:
        yield Lane(slots="", count=0, bars=tuple(row))


class _Slots:
    """Goes once through the events, and knows who holds each slot at that moment."""

    def __init__(self) -> None:
        self.held: dict[int, list[tuple[float, float, str, bool]]] = {}
        self._now: dict[int, tuple[str, float]] = {}

    def take(self, event: ev.AnyEvent, t: float) -> None:
        match event:
            case ev.AllocationTaken():
                self.empty(t)
                self._fill(event.slots, t)
            case ev.GenerationLaunched():
                self._fill(event.slots, t)
            case ev.NodeEvicted():
                for slot in [slot for slot, (node, _) in self._now.items() if node == event.node]:
                    self._leave(slot, t, evicted=True)
            case ev.RequeueStarted() | ev.RunEnded():
                self.empty(t)

    def empty(self, t: float) -> None:
        """Leave all slots."""
        for slot in list(self._now):
            self._leave(slot, t)

    def _fill(self, nodes: Sequence[str], t: float) -> None:
        for slot in [slot for slot in self._now if slot >= len(nodes)]:
            self._leave(slot, t)
        for slot, node in enumerate(nodes):
            if self._now.get(slot, ("", 0.0))[0] != node:
                self._leave(slot, t)
                self._now[slot] = node, t

    def _leave(self, slot: int, t: float, *, evicted: bool = False) -> None:
        node, since = self._now.pop(slot, ("", t))
        if t > since:
            self.held.setdefault(slot, []).append((round(since, 1), round(t, 1), node, evicted))
