"""Dual-phase replay: which groups of nodes to form, which are faulty, whom the faulty ones share. Pure.

Group testing after Algorithm 1 of the ByteRobust paper (arXiv 2509.16293): all nodes replay the same few
steps of training in small groups, twice, in groups that are crossed: two nodes of one horizontal group are in
different vertical ones. The faulty node is what the faulty groups of both phases have in common.
docs/diagnostics.md#replay says what a script must do for it, and what it cannot find.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from enum import Enum

from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.util.hostlist import fold

TEST = "replay"
"""Name of the test in a :class:`~slurm_robust.model.incident.Diagnosis`."""

# With fewer groups than this, none has a majority against it.
_MIN_GROUPS = 3


class CannotReplay(ValueError):
    """The nodes do not make two groups that hold the model, so there is nothing to compare."""


class ReplayPhase(str, Enum):
    """Neighbours first (x div m), then every n-th (x mod n)."""

    HORIZONTAL = "horizontal"
    VERTICAL = "vertical"


# -- groups -------------------------------------------------------------------------------------------------


class Grid(Record):
    """``units`` in ``n`` groups of ``m``, and what is left in a shorter one.

    A *unit* is a node, or the neighbours that hold one tensor parallel group together; they are numbered in
    the order of the slots.
    """

    units: int
    m: int
    k: int = 1
    """The data parallel size inside a group."""
    unit_nodes: int = 1
    """Nodes of a unit."""

    @property
    def n(self) -> int:
        """Number of groups, without the shorter one."""
        return self.units // self.m

    @property
    def rest(self) -> int:
        """Units of the shorter group, 0 for none."""
        return self.units % self.m

    @property
    def is_unique(self) -> bool:
        """Whether two crossing groups share one unit at most (m <= n)."""
        return self.m <= self.n

    def holds_model(self, units: int) -> bool:
        """Return whether a group of this many units makes whole replicas of the model."""
        return units * self.k % self.m == 0


def fit(nodes: int, layout: ParallelLayout) -> Grid:
    """Return how to divide this many nodes, with all parallel sizes kept but that of data parallelism.

    m = k * (ranks of one replica of the model) / (ranks of a unit). From the possible sizes it takes those
    with enough groups for a majority, then with m <= n, with k >= 2 (else no gradients are exchanged),
    without a rest, and the smallest. A replica that fits into a unit leaves m free: then as near to a square
    as it goes. Raises :class:`CannotReplay`.
    """
    sizes = dict(layout.sizes)
    tp, replica = sizes.get("tp", 1), layout.world_size // sizes.get("dp", 1)
    across = tp > layout.nproc_per_node and tp % layout.nproc_per_node == 0
    unit_nodes = tp // layout.nproc_per_node if across else 1
    unit = unit_nodes * layout.nproc_per_node
    common = math.gcd(replica, unit)
    least_m, least_k = replica // common, unit // common
    units = nodes // unit_nodes
    count = units // (2 * least_m)
    if count == 0:
        raise CannotReplay(
            f"{nodes} nodes make fewer than two groups of {least_m * unit_nodes}, "
            f"which is what one replica of the model needs: there is nothing to compare"
        )
    grids = [
        Grid(units=units, m=j * least_m, k=j * least_k, unit_nodes=unit_nodes) for j in range(1, count + 1)
    ]

    def key(grid: Grid) -> tuple[bool, bool, bool, bool, int]:
        must = (grid.n < _MIN_GROUPS, not grid.is_unique)
        if least_m == 1:
            return (*must, False, False, -grid.m)
        return (*must, grid.k < 2, grid.rest > 0, grid.m)

    return min(grids, key=key)


def groups(phase: ReplayPhase, grid: Grid) -> tuple[tuple[int, ...], ...]:
    """Return the units of each group; the last one is the shorter, if there is a rest.

    Without a rest this is x div m and x mod n. With one, the vertical rest takes one unit of each of the
    first horizontal groups, so that no unit is in the shorter group twice: that group has none of its size to
    be compared with.
    """
    m, n = grid.m, grid.n
    if phase is ReplayPhase.HORIZONTAL:
        rest = tuple(range(m * n, grid.units))
        full = [tuple(range(a * m, a * m + m)) for a in range(n)]
    else:
        column_by_column = sorted(range(m * n), key=lambda x: (x % m, x))
        rest = tuple(sorted(column_by_column[: grid.rest]))
        others = [x for x in range(grid.units) if x not in rest]
        full = [tuple(others[b::n]) for b in range(n)]
    return (*full, rest) if rest else tuple(full)


def nodes_of(grid: Grid, units: Sequence[int], nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that make these units; ``nodes`` are all, in the order of their slots."""
    size = grid.unit_nodes
    return tuple(node for x in units for node in nodes[x * size : (x + 1) * size])


class Intersection(Record):
    """``units`` that the faulty groups of both phases have in common."""

    units: tuple[int, ...]
    a: tuple[int, ...]
    """Numbers of the faulty horizontal groups."""
    b: tuple[int, ...]
    """Numbers of the faulty vertical groups."""
    is_ambiguous: bool
    """More than one unit, or more than one faulty group in a phase: then of several faulty nodes one in a
    shorter group may be missing."""


def intersect(grid: Grid, horizontal: Sequence[Outcome], vertical: Sequence[Outcome]) -> Intersection:
    """Return the nodes in a faulty group of both phases; ``horizontal[a]`` is the outcome of group a.

    Several faulty groups give the cross product, limited to cells that hold units. If no unit was in a faulty
    group twice: those in a faulty group of one phase that the other could not judge though it judged others.
    """
    a = tuple(i for i, outcome in enumerate(horizontal) if outcome is Outcome.FAIL)
    b = tuple(i for i, outcome in enumerate(vertical) if outcome is Outcome.FAIL)
    rows = _by_unit(groups(ReplayPhase.HORIZONTAL, grid), horizontal)
    columns = _by_unit(groups(ReplayPhase.VERTICAL, grid), vertical)
    seen = {x: {rows[x], columns[x]} for x in range(grid.units)}
    units = tuple(x for x in seen if seen[x] == {Outcome.FAIL})
    if not units and Outcome.PASS in horizontal and Outcome.PASS in vertical:
        units = tuple(x for x in seen if seen[x] == {Outcome.FAIL, Outcome.UNKNOWN})
    return Intersection(units=units, a=a, b=b, is_ambiguous=max(len(units), len(a), len(b)) > 1)


def _by_unit(parts: Sequence[Sequence[int]], outcomes: Sequence[Outcome]) -> dict[int, Outcome]:
    return {x: outcome for part, outcome in zip(parts, outcomes, strict=True) for x in part}


# -- the oracle ---------------------------------------------------------------------------------------------


class GroupRun(Record):
    """What one group did."""

    nodes: tuple[str, ...]
    steps: tuple[str, ...] = ()
    """A digest of the losses and gradients of all its ranks, for each step."""
    kind: str = ""
    """What makes runs comparable: sizes and hardware."""
    trouble: str = ""
    """How it failed by itself (crash, no result in time, NaN), "" if it did not."""
    left_out: str = ""
    """Why it did not run at all."""


class GroupSeen(Record):
    """The verdict of the oracle on one group."""

    nodes: tuple[str, ...]
    outcome: Outcome
    text: str = ""
    """Says briefly what is wrong, "" if nothing is."""


def judge(runs: Sequence[GroupRun]) -> tuple[GroupSeen, ...]:
    """Return which groups of a phase are faulty: those that failed or whose bits most others lack.

    There is no verdict if more than half of the groups failed, because then the script is to blame, nor for
    groups of one kind among which no bits have a majority.
    """
    ran = [run for run in runs if not run.left_out]
    sound = [run for run in ran if not run.trouble]
    majorities = {kind: _majority([r for r in sound if r.kind == kind]) for kind in {r.kind for r in sound}}
    by_script = 2 * (len(ran) - len(sound)) > len(ran)
    return tuple(_seen(run, majorities.get(run.kind), by_script) for run in runs)


def _majority(runs: Sequence[GroupRun]) -> tuple[str, ...] | None:
    """Return what more than half of ``runs`` computed; None if no bits have one, and for a single run."""
    steps, count = Counter(run.steps for run in runs).most_common(1)[0]
    return steps if count > 1 and 2 * count > len(runs) else None


def _seen(run: GroupRun, majority: tuple[str, ...] | None, by_script: bool) -> GroupSeen:
    outcome, text = Outcome.PASS, ""
    if run.left_out:
        outcome, text = Outcome.UNKNOWN, run.left_out
    elif by_script:
        outcome, text = Outcome.UNKNOWN, run.trouble or "ran, though most groups failed"
    elif run.trouble:
        outcome, text = Outcome.FAIL, run.trouble
    elif majority is None:
        outcome, text = Outcome.UNKNOWN, "no majority to compare its bits with"
    elif run.steps != majority:
        outcome, text = Outcome.FAIL, _difference(run.steps, majority)
    return GroupSeen(nodes=run.nodes, outcome=outcome, text=text)


def _difference(steps: Sequence[str], majority: Sequence[str]) -> str:
    for number, (own, others) in enumerate(zip(steps, majority, strict=False)):
        if own != others:
            return f"other bits than the majority from step {number} on"
    return f"{len(steps)} steps where the majority made {len(majority)}"


# -- the verdict --------------------------------------------------------------------------------------------


class ReplayVerdict(Record):
    """What a replay has shown. ``is_ambiguous``, ``a`` and ``b`` are as in :class:`Intersection`."""

    reason: str
    """In words for people."""
    suspects: tuple[str, ...] = ()
    """Nodes."""
    is_ambiguous: bool = False
    a: tuple[int, ...] = ()
    b: tuple[int, ...] = ()
    horizontal: tuple[GroupSeen, ...] = ()
    """What was seen of each group; empty if the phase was not run."""
    vertical: tuple[GroupSeen, ...] = ()
    """The same."""
    took_s: float = 0.0

    def diagnosis(self) -> Diagnosis:
        """Return the same as results of a test, two for each node that took part in both phases."""
        results = [
            TestResult(
                test=f"{TEST}, {phase.value}",
                node=node,
                outcome=seen.outcome,
                text=seen.text,
                peers=tuple(peer for peer in seen.nodes if peer != node),
                took_s=self.took_s,
            )
            for phase, groups_seen in (
                (ReplayPhase.HORIZONTAL, self.horizontal),
                (ReplayPhase.VERTICAL, self.vertical),
            )
            for seen in groups_seen
            for node in seen.nodes
        ]
        left_out = {} if results else {TEST: self.reason}
        return Diagnosis(
            results=tuple(results), suspects=self.suspects, reason=self.reason, left_out=left_out
        )


def is_settled(horizontal: Sequence[GroupSeen]) -> bool:
    """Return whether the vertical phase can name no node any more: no group failed, or none was judged."""
    outcomes = {seen.outcome for seen in horizontal}
    return outcomes == {Outcome.PASS} or outcomes == {Outcome.UNKNOWN}


def conclude(
    grid: Grid, nodes: Sequence[str], horizontal: Sequence[GroupSeen], vertical: Sequence[GroupSeen] = ()
) -> ReplayVerdict:
    """Return the verdict of both phases; ``vertical`` is empty if :func:`is_settled` made it needless."""
    if not vertical:
        return ReplayVerdict(reason=_of_one_phase(horizontal), horizontal=tuple(horizontal))
    found = intersect(grid, [seen.outcome for seen in horizontal], [seen.outcome for seen in vertical])
    suspects = nodes_of(grid, found.units, nodes)
    parts = [
        f"{phase.value} group {number} ({fold(seen[number].nodes)}: {seen[number].text})"
        for phase, seen, numbers in (
            (ReplayPhase.HORIZONTAL, horizontal, found.a),
            (ReplayPhase.VERTICAL, vertical, found.b),
        )
        for number in numbers
    ]
    if suspects:
        reason = f"{fold(suspects)}: common to {' and '.join(parts)}"
        reason += "; more than one node or group, so some may be innocent" if found.is_ambiguous else ""
    elif parts:
        reason = f"no node is common to the faulty groups of both phases: {' and '.join(parts)}; "
        reason += "the fault did not show twice, or there are several"
    else:
        reason = "neither phase found a faulty group; where not all groups agreed there was no majority"
    return ReplayVerdict(
        suspects=suspects,
        reason=reason,
        is_ambiguous=found.is_ambiguous,
        a=found.a,
        b=found.b,
        horizontal=tuple(horizontal),
        vertical=tuple(vertical),
    )


def _of_one_phase(horizontal: Sequence[GroupSeen]) -> str:
    if all(seen.outcome is Outcome.PASS for seen in horizontal):
        return f"all {len(horizontal)} groups computed the same bits: the fault does not show in a replay"
    texts = Counter(seen.text for seen in horizontal)
    (text, count), *_ = texts.most_common(1)
    return f"no verdict: in {count} of {len(horizontal)} groups: {text}; this speaks against no node"
