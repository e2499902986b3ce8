"""What of a summary counts, once Slurm has been asked about the job. Pure.

A summary is the word of a user. It can only lie about that user's own job: which job it is, whose, and which
nodes the job held comes from Slurm; everything else is clamped to what is possible for that job. If Slurm's
accounting does not answer, nodes and times are the job's own word within these bounds, and the entry says so
(``verified``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import DRILL
from slurm_robust.model.jobsummary import (
    MAX_BLAMED,
    MAX_DETAIL,
    MAX_INCIDENTS,
    IncidentSummary,
    NodeWork,
    SpooledSummary,
)
from slurm_robust.model.record import Record
from slurm_robust.model.training import is_name
from slurm_robust.slurm.records import AccountingRow, SlurmNode, Switch
from slurm_robust.util.text import ascii_line

DAY_S = 86400.0

CLOCKS_S = 300.0
"""By how much the clocks of two nodes may differ."""

OLDEST_S = 2 * 365 * DAY_S
"""No job waits and runs for longer than this."""

CAUSES = ("node", "network", "code", "nobody", "undecided", DRILL)

OF_NODES = frozenset({"node", "network"})
"""Causes that count against the blamed nodes."""

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_CLASSES = frozenset(time.value for time in TimeClass)
_MAX_NUMBER = 2**31 - 1


class NodePlace(Record):
    """The type and rack of a node, "" if not known."""

    type: str = ""
    rack: str = ""


class JobEntry(Record):
    """A job as the index holds it. Times are in seconds, points in time since 1970."""

    cluster: str
    job_id: int
    submitted: int
    """With cluster and job id it tells jobs apart, since Slurm gives out job ids again."""
    uid: int
    user: str
    started: float
    wall_s: float
    since_start_s: float
    effective_s: float
    nodes: int
    generations: int
    verified: bool
    """Slurm's accounting has confirmed nodes and times of :attr:`work`."""
    array_task: str = ""
    training: str = ""
    ended: float | None = None
    exit_code: int | None = None
    write_s: float | None = None
    work: tuple[NodeWork, ...] = ()
    incidents: tuple[IncidentSummary, ...] = ()
    left_out: int = 0

    @property
    def work_s(self) -> float:
        """Node-seconds."""
        return sum(len(one.nodes) * (one.end - one.start) for one in self.work)


class _NodeDay(Record):
    """What a job adds to the account of one node on one day (UTC, counted from 1970)."""

    work_s: float = 0.0
    failures: int = 0
    """1 if the job blamed the node for an incident with cause ``node``. A job counts once against a node,
    however often it blamed it: who could write more would.
    """
    network: int = 0
    """The same for cause ``network``."""


def held_by(rows: Sequence[AccountingRow], submitted: float, t: float) -> tuple[NodeWork, ...]:
    """Return the nodes and times of a job by its accounting, of the runs between ``submitted`` and ``t``."""
    found = []
    for row in rows:
        if row.step or row.start_time is None or not row.nodes:
            continue
        end = min(row.end_time or t, t + CLOCKS_S)
        if row.start_time >= submitted - CLOCKS_S and end > row.start_time:
            found.append(NodeWork(nodes=row.nodes, start=row.start_time, end=end))
    return tuple(found)


def submitted_of(spooled: SpooledSummary, now: float) -> int:
    """Return when the job was submitted, in whole seconds; Slurm's word replaces what is impossible."""
    t = min(spooled.t, now + CLOCKS_S)
    said = spooled.summary.submitted
    latest = t if spooled.started is None else min(t, spooled.started + CLOCKS_S)
    if said is not None and t - OLDEST_S <= said <= latest:
        return int(said)
    return int(spooled.started if spooled.started is not None else t)


def accept(
    spooled: SpooledSummary,
    *,
    held: Sequence[NodeWork] | None,
    known: Collection[str] | None,
    cluster: str,
    now: float,
) -> JobEntry:
    """Return the entry of a job.

    ``held``: by :func:`held_by`, None if accounting does not answer. ``known``: all nodes of Slurm that
    the job may have held, None if Slurm does not answer. ``now``: seconds since 1970 by the collector's
    clock.
    """
    said = spooled.summary
    t = min(spooled.t, now + CLOCKS_S)
    submitted = submitted_of(spooled, now)

    def within(time: float) -> float:
        return min(max(time, float(submitted)), t)

    work = tuple(held) if held else tuple(_claimed(said.work, known, within))
    wall_s = _between(said.wall_s, t + CLOCKS_S - submitted)
    since_start_s = _between(said.since_start_s, wall_s)
    return JobEntry(
        cluster=ascii_line(spooled.cluster or cluster, 40),
        job_id=_whole(spooled.job_id),
        submitted=submitted,
        uid=_whole(spooled.uid),
        user=ascii_line(spooled.user, 64),
        array_task=ascii_line(said.array_task, 40),
        training=said.training if is_name(said.training) else "",
        started=within(said.started if said.started is not None else t),
        ended=None if said.ended is None else within(said.ended),
        exit_code=None if said.exit_code is None else max(-255, min(255, said.exit_code)),
        wall_s=wall_s,
        since_start_s=since_start_s,
        effective_s=_between(said.effective_s, since_start_s),
        nodes=min(_whole(said.nodes), len({name for one in work for name in one.nodes})),
        generations=_whole(said.generations),
        write_s=None if said.write_s is None else _between(said.write_s, wall_s),
        verified=bool(held),
        work=work,
        incidents=tuple(_possible(said.incidents, work, within, wall_s)),
        left_out=_whole(said.left_out),
    )


def shares_of(entry: JobEntry) -> dict[tuple[int, str], _NodeDay]:
    """Return what the job adds, by day and node."""
    found: dict[tuple[int, str], list[float]] = {}
    for one in entry.work:
        for day in range(int(one.start // DAY_S), int(one.end // DAY_S) + 1):
            seconds = min(one.end, (day + 1) * DAY_S) - max(one.start, day * DAY_S)
            if seconds > 0:
                for node in one.nodes:
                    found.setdefault((day, node), [0.0, 0, 0])[0] += seconds
    blamed: set[str] = set()
    for incident in entry.incidents:
        if incident.cause in OF_NODES:
            for node in incident.nodes:
                if node not in blamed:
                    blamed.add(node)
                    place = 1 if incident.cause == "node" else 2
                    found.setdefault((int(incident.t // DAY_S), node), [0.0, 0, 0])[place] += 1
    return {
        key: _NodeDay(work_s=work_s, failures=int(failures), network=int(network))
        for key, (work_s, failures, network) in found.items()
    }


def places_of(nodes: Iterable[SlurmNode], switches: Iterable[Switch], rack: str = "") -> dict[str, NodePlace]:
    """Type and rack of each node, by its GPUs and by the leaf switch that it hangs on.

    ``rack``: a regular expression whose first group finds the rack in a node's name; it wins over the switch.
    """
    leaf = {name: switch.name for switch in switches if switch.level == 0 for name in switch.nodes}
    return {
        node.name: NodePlace(type=_type_of(node), rack=_rack_in(node.name, rack) or leaf.get(node.name, ""))
        for node in nodes
        if "FUTURE" not in node.states
    }


def _type_of(node: SlurmNode) -> str:
    kinds = [f"{gres.count}x{gres.type or 'gpu'}" for gres in node.gres if gres.name == "gpu" and gres.count]
    return "+".join(kinds) or "cpu"


def _rack_in(name: str, rack: str) -> str:
    found = re.search(rack, name) if rack else None
    return (found[1] if found.re.groups else found[0]) or "" if found else ""


# -- what a job says of itself ------------------------------------------------------------------------------


def _claimed(
    work: Iterable[NodeWork], known: Collection[str] | None, within: Callable[[float], float]
) -> Iterator[NodeWork]:
    """Yield periods that follow each other, with nodes that there are."""
    latest = -1.0
    for one in sorted(work, key=lambda one: one.start):
        start, end = max(within(one.start), latest), within(one.end)
        if nodes := _real(one.nodes, known):
            latest = max(latest, end)
            if end > start:
                yield NodeWork(nodes=nodes, start=start, end=end)


def _real(names: Iterable[str], known: Collection[str] | None) -> tuple[str, ...]:
    return tuple(
        sorted(
            name
            for name in frozenset(names)
            if (name in known if known is not None else _NODE.fullmatch(name))
        )
    )


def _possible(
    incidents: Sequence[IncidentSummary],
    work: Sequence[NodeWork],
    within: Callable[[float], float],
    wall_s: float,
) -> Iterator[IncidentSummary]:
    held = frozenset(name for one in work for name in one.nodes)
    left_s = sum(len(one.nodes) * (one.end - one.start) for one in work)
    numbers: set[int] = set()
    for one in incidents[-MAX_INCIDENTS:]:
        if not 0 < one.number < _MAX_NUMBER or one.number in numbers:
            continue
        numbers.add(one.number)
        lost = _lost(one.lost_node_s, left_s)
        left_s -= sum(lost.values())
        yield IncidentSummary(
            number=one.number,
            t=within(one.t),
            symptom=ascii_line(one.symptom, 40),
            cause=one.cause if one.cause in CAUSES else "undecided",
            nodes=_real(one.nodes[:MAX_BLAMED], held),
            detail=ascii_line(one.detail, MAX_DETAIL),
            recover_s=None if one.recover_s is None else _between(one.recover_s, wall_s),
            lost_node_s=lost,
        )


def _lost(said: Mapping[str, float], most: float) -> dict[str, float]:
    """Return what was lost: all incidents of a job together cost no more than the job had."""
    found = {}
    for name, seconds in said.items():
        if name in _CLASSES and (seconds := _between(seconds, most)):
            found[name] = seconds
            most -= seconds
    return found


def _between(value: float, most: float) -> float:
    return min(max(0.0, value), max(0.0, most))


def _whole(value: int) -> int:
    return min(max(0, value), _MAX_NUMBER)
