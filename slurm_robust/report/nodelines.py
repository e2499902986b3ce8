"""What each node of a job did, and when: the rows of the timeline and of the table of nodes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

from slurm_robust.ledger.summary import IncidentCost, Lost
from slurm_robust.model import events as ev
from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold


class NodeActivity(str, Enum):
    """What a node is to the job."""

    SLOT = "slot"
    """It holds a slot: its ranks are part of the world."""
    STANDBY = "standby"
    """It stands by."""
    ASIDE = "set aside"
    """A standby that does not answer."""
    EVICTED = "evicted"
    """The job holds it, and does not use it any more."""


class NodeSpan(Record):
    """A time in which a node did one thing; seconds since 1970 by slurmctld's clock."""

    begin: float
    end: float
    doing: NodeActivity


class NodeLine(Record):
    """Nodes that all did the same at the same times."""

    nodes: str
    """As a hostlist."""
    count: int
    pieces: tuple[NodeSpan, ...]
    slot_s: float
    """Seconds in which one of them held a slot."""
    standby_s: float
    incidents: tuple[int, ...]
    """Numbers of the incidents for which it was blamed."""
    evicted: str
    """Why, "" if it was not."""
    given_back: str
    """How it left the allocation while the job went on, "" if it did not."""
    lost: Lost
    """Lost time of these incidents; several blamed nodes share it."""


def node_lines(
    events: Sequence[ev.AnyEvent],
    times: Sequence[float],
    end: float,
    costs: Sequence[IncidentCost],
    by_node: Mapping[str, Lost],
) -> tuple[NodeLine, ...]:
    """Return a line for each set of nodes that are alike: those with incidents first."""
    sweep = _Sweep()
    for t, event in zip(times, events, strict=True):
        sweep.take(event, t)
    sweep.all_leave(end)
    blamed: dict[str, list[int]] = defaultdict(list)
    for cost in costs:
        for node in cost.nodes:
            blamed[node].append(cost.number)
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for node in dict.fromkeys((*sweep.pieces, *blamed, *sweep.evicted)):
        what = tuple(sweep.pieces.get(node, ())), tuple(blamed.get(node, ()))
        alike[(*what, sweep.evicted.get(node, ""), sweep.given_back.get(node, ""))].append(node)
    lines = []
    for nodes in alike.values():
        spans = tuple(sweep.pieces.get(nodes[0], ()))
        line = NodeLine(
            nodes=fold(nodes),
            count=len(nodes),
            pieces=spans,
            slot_s=_lasted(spans, NodeActivity.SLOT),
            standby_s=_lasted(spans, NodeActivity.STANDBY),
            incidents=tuple(blamed.get(nodes[0], ())),
            evicted=sweep.evicted.get(nodes[0], ""),
            given_back=sweep.given_back.get(nodes[0], ""),
            lost=sum((by_node[node] for node in nodes if node in by_node), Lost()),
        )
        lines.append(line)
    return tuple(sorted(lines, key=lambda line: (not line.incidents, not line.evicted, -line.count)))


def _lasted(pieces: Iterable[NodeSpan], doing: NodeActivity) -> float:
    return round(sum(piece.end - piece.begin for piece in pieces if piece.doing is doing), 1)


class _Sweep:
    """Goes once through the events, and knows what each node does at that moment."""

    def __init__(self) -> None:
        self.pieces: dict[str, list[NodeSpan]] = {}
        self.evicted: dict[str, str] = {}
        self.given_back: dict[str, str] = {}
        self._now: dict[str, tuple[NodeActivity, float]] = {}
        self._lent: dict[int, str] = {}

    def take(self, event: ev.AnyEvent, t: float) -> None:
        match event:
            case ev.ProgressMade():
                pass
            case ev.AllocationTaken():
                for node in self._now.keys() - set(event.nodes):
                    self._leaves(node, t)
                self._do(event.spares, NodeActivity.STANDBY, t)
                self._do(event.slots, NodeActivity.SLOT, t)
            case ev.GenerationLaunched():
                free = [n for n, (doing, _) in self._now.items() if doing is NodeActivity.SLOT]
                self._do(set(free) - set(event.slots), NodeActivity.STANDBY, t)
                self._do(event.slots, NodeActivity.SLOT, t)
            case ev.RequeueStarted() | ev.RunEnded():
                self.all_leave(t)
            case ev.NodeEvicted():
                self.evicted[event.node] = event.reason
                self._do((event.node,) if event.node in self._now else (), NodeActivity.EVICTED, t)
            case ev.NodeGivenBack():
                self.given_back[event.node] = event.how
                self._leaves(event.node, t)
            case ev.SpareSetAside():
                self._do((event.node,), NodeActivity.ASIDE, t)
            case ev.SpareAnswers():
                self._do((event.node,), NodeActivity.STANDBY, t)
            case ev.CompanionStarted():
                self._lent[event.job_id] = event.node
                self._do((event.node,), NodeActivity.STANDBY, t)
            case ev.CompanionEnded():
                self._leaves(self._lent.pop(event.job_id, ""), t)

    def all_leave(self, t: float) -> None:
        """End the allocation."""
        for node in list(self._now):
            self._leaves(node, t)

    def _do(self, nodes: Iterable[str], doing: NodeActivity, t: float) -> None:
        for node in nodes:
            known = self._now.get(node)
            if known is None or known[0] is not doing:
                self._leaves(node, t)
                self._now[node] = doing, t

    def _leaves(self, node: str, t: float) -> None:
        known = self._now.pop(node, None)
        if known is not None and t > known[1]:
            piece = NodeSpan(begin=round(known[1], 1), end=round(t, 1), doing=known[0])
            self.pieces.setdefault(node, []).append(piece)
