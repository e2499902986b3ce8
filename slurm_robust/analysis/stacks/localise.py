"""The ranks at which a hang or slowdown sits, by what all ranks do at one moment, or in several sample
rounds. Pure.

All others wait for the rank that is stuck, so what most ranks do is healthy and the others are outliers. What
names a rank exactly goes first: a process that is halted, the flight recorder, a rank that does something of
its own while the others wait. Else the smallest parallel group that covers the outliers is blamed.
docs/stacks.md has the rules with their reasons.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, combinations, product

from msgspec import structs

from slurm_robust.analysis.stacks.activity import Activity, is_point_to_point
from slurm_robust.analysis.stacks.ranks import RankView, shows_libraries, views, without_libraries
from slurm_robust.analysis.stacks.recorder import recorded, unclear
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation, RankStacks
from slurm_robust.util.text import count, fold_ranks

MAX_SHARE = 0.25
"""Share of all nodes: more than these are never blamed together."""

DOMINANT = 0.5
"""What this share of the ranks does, relative to what most do, is as healthy."""

STAGE_SHARE = 0.75
"""What this share of the ranks of one pipeline stage does belongs to the stage: its code is another one."""

_HALTED = (Activity.STOPPED, Activity.GONE)
_LIKE_A_WAIT = (Activity.COMPUTE, Activity.DEVICE, Activity.SILENT)
_OF_STORAGE = (Activity.DATA, Activity.IO, Activity.CHECKPOINT, Activity.KERNEL)
# How sure it is that a rank that does this while all others wait is at fault; storage has other victims too.
_SURE = {
    Activity.STOPPED: 0.95,
    Activity.GONE: 0.95,
    Activity.KERNEL: 0.85,
    Activity.COMPUTE: 0.8,
    Activity.SILENT: 0.7,
    Activity.DATA: 0.7,
    Activity.IO: 0.6,
    Activity.CHECKPOINT: 0.6,
}


def localise(
    stacks: Sequence[RankStacks],
    layout: ParallelLayout,
    missing: Collection[int] = (),
    *,
    most_share: float = MAX_SHARE,
    moving: bool = False,
) -> Localisation:
    """Return the ranks to blame, by the stacks of all of ``layout``; agents of ``missing`` were silent.

    A group is blamed if it has at most ``most_share`` of the nodes; ranks named exactly also if they are on
    one node, or in one group and on less than half of the nodes. Without such ``ranks``, the reason says why.
    ``moving``: training goes on, so that most ranks may compute while one only waits for them.
    """
    # What only some show must not make them differ from the others, but it may excuse them.
    seen = views((without_libraries(s) if s.native else s for s in stacks), layout, missing)
    inside = views((s for s in stacks if s.native), layout)
    taken = sorted((s for s in stacks if s.rank in seen), key=lambda s: s.rank)
    # While training goes on an operation may be on its way by chance, and its rank may compute anyway.
    may_wait = frozenset() if moving else unclear(taken, seen)
    may_wait |= {rank for rank, view in inside.items() if view.activity.waits}
    scene = _Scene(seen, layout, most_share, may_wait, _working(taken, seen, inside))
    if all(view.activity is Activity.SILENT for view in scene.views.values()):
        return scene.nobody("no stacks could be taken")
    named = _halted(scene) or _absent(scene, taken) or _behind(scene, taken, moving) or _elsewhere(scene)
    return named or _differing(scene, moving)


class _Scene:
    """All ranks at one moment."""

    def __init__(
        self,
        views: Mapping[int, RankView],
        layout: ParallelLayout,
        most_share: float,
        unclear: frozenset[int],
        working: frozenset[int],
    ) -> None:
        self.views = views
        self.working = working
        self.layout = layout
        self.most_share = most_share
        self.unclear = frozenset(rank for rank in unclear if views[rank].activity in _LIKE_A_WAIT)
        """Ranks whose calls may be a wait for their GPU: a host that waits inside a call in C, such as
        ``loss.item()``, is seen like one that computes."""
        self.keys = {rank: view.key for rank, view in views.items()}

    @cached_property
    def healthy(self) -> frozenset[int]:
        """Ranks that do what most do, or what nearly all of their pipeline stage do in every pipeline.

        And those of which it is unclear what they do.
        """
        counts = Counter(self.keys.values())
        largest = max(counts.values())
        usual = {key for key, count in counts.items() if count >= DOMINANT * largest}
        stages: defaultdict[int, list[int]] = defaultdict(list)
        stage_of = _stages(self.layout)
        for rank in self.views:
            stages[stage_of(rank)].append(rank)
        replicas = dict(self.layout.sizes).get("dp", 1)
        found = {rank for rank, key in self.keys.items() if key in usual} | self.unclear
        for ranks in stages.values() if replicas > 1 else ():
            key, count = Counter(self.keys[rank] for rank in ranks).most_common(1)[0]
            if count >= STAGE_SHARE * len(ranks):
                found.update(rank for rank in ranks if self.keys[rank] == key)
        return frozenset(found)

    @property
    def outliers(self) -> frozenset[int]:
        return frozenset(self.views) - self.healthy

    def doing(self, *activities: Activity) -> frozenset[int]:
        """Return the ranks with one of these activities."""
        return frozenset(rank for rank, view in self.views.items() if view.activity in activities)

    def waiting(self) -> frozenset[int]:
        """Return the ranks that wait, or may wait, for other ranks."""
        return self.unclear | {rank for rank, view in self.views.items() if view.activity.waits}

    def describe(self, ranks: Collection[int]) -> str:
        """Return ``rank 5 computes in forward train.py:12``; of several the most frequent."""
        counts = Counter(self.views[rank].describe() for rank in ranks)
        text, _ = min(counts.items(), key=lambda item: (-item[1], item[0]))
        several = len(ranks) > 1
        more = f" and {count(len(counts) - 1, 'other stack')}" if len(counts) > 1 else ""
        return f"{'ranks' if several else 'rank'} {fold_ranks(ranks)}: {text}{more}"

    def most(self) -> str:
        """Return what most of the others do."""
        return f"{len(self.healthy)} of {len(self.views)} ranks do what most do"

    def nobody(self, reason: str, ranks: Collection[int] = ()) -> Localisation:
        """Return no verdict; ``ranks`` are in question."""
        outliers = tuple(sorted(self.outliers.union(ranks)))
        return Localisation(outliers=outliers, healthy=len(self.healthy), reason=reason)

    def exact(self, ranks: Collection[int], confidence: float, reason: str) -> Localisation:
        """Return these ranks, if they are few enough."""
        if not allowed(ranks, self.layout, self.most_share):
            return self.nobody(f"{reason}: {too_many(ranks, self.layout)}, so the cause is a common one")
        return Localisation(
            outliers=tuple(sorted(self.outliers | set(ranks))),
            ranks=tuple(sorted(ranks)),
            exact=True,
            healthy=len(self.healthy - set(ranks)),
            confidence=confidence,
            reason=reason,
            stack=self.views[min(ranks)].describe(),
            halted=set(ranks) <= self.doing(*_HALTED),
        )

    def group(self, ranks: Collection[int], reason: str, *, silent: bool = False) -> Localisation:
        """Return the smallest group that covers these ranks, if there is one that is small enough."""
        total = node_count(self.layout)
        groups = covering(ranks, self.layout, self.most_share * total)
        if not groups:
            text = f"no parallel group of at most {self.most_share:.0%} of the nodes covers them"
            return self.nobody(f"{reason}; {text}", ranks)
        found = groups[0]
        return Localisation(
            outliers=tuple(sorted(self.outliers | set(ranks))),
            ranks=tuple(sorted(found.ranks)),
            group=found.name,
            healthy=len(self.healthy - set(ranks)),
            confidence=0.4 if silent else round(0.4 + 0.4 * len(ranks) / len(found.ranks), 2),
            reason=f"{reason}; the smallest group with all of them is {found.name}",
            stack=self.views[min(ranks)].describe(),
            silent=silent,
        )


def allowed(ranks: Collection[int], layout: ParallelLayout, most_share: float) -> bool:
    """Return whether this many ranks that are named exactly may be blamed."""
    count, total = len(nodes_of(ranks, layout)), node_count(layout)
    if count <= max(1.0, most_share * total):
        return True
    return 2 * count < total and bool(covering(ranks, layout, (total - 1) / 2))


def too_many(ranks: Collection[int], layout: ParallelLayout) -> str:
    """Return ``they are on 5 of 8 nodes``."""
    return f"they are on {len(nodes_of(ranks, layout))} of {node_count(layout)} nodes"


def _stages(layout: ParallelLayout) -> Callable[[int], int]:
    """Return the pipeline stage of a rank."""
    stride = 1
    for name, size in layout.sizes:
        if name == "pp":
            return lambda rank: rank // stride % size
        stride *= size
    return lambda rank: 0


def _halted(scene: _Scene) -> Localisation | None:
    """Return the halted ranks: a process that is stopped or dead cannot go on, whatever the others do."""
    ranks = scene.doing(*_HALTED)
    return scene.exact(ranks, _SURE[Activity.STOPPED], scene.describe(ranks)) if ranks else None


def _absent(scene: _Scene, stacks: Sequence[RankStacks]) -> Localisation | None:
    """Return the ranks of which neither the agent nor NCCL's RAS hears: two independent witnesses."""
    missed = {
        absent.rank
        for stack in stacks
        for absent in stack.absent
        if absent.size == scene.layout.world_size  # ranks of other communicators are none of the job's
    }
    ranks = missed & scene.doing(Activity.SILENT)
    if not ranks:
        return None
    return scene.exact(ranks, _SURE[Activity.KERNEL], f"NCCL RAS misses them; {scene.describe(ranks)}")


def _working(
    stacks: Iterable[RankStacks], seen: Mapping[int, RankView], inside: Mapping[int, RankView]
) -> frozenset[int]:
    """Return the ranks that do something of their own beyond doubt, by the calls in their libraries, too.

    Without those a wait for the GPU looks like a computation, and whoever sleeps may wait in a library.
    """
    computing = {
        stack.rank
        for stack in stacks
        if stack.native and shows_libraries(stack) and inside[stack.rank].activity is Activity.COMPUTE
    }
    computing = {rank for rank in computing if not inside[rank].sleeps}
    return frozenset(computing | {rank for rank, view in seen.items() if view.activity in _OF_STORAGE})


def _behind(scene: _Scene, stacks: Sequence[RankStacks], moving: bool) -> Localisation | None:
    """Return the ranks that have not come to a collective, by the flight recorder."""
    waiting = scene.waiting()
    # While training goes on, silence and nothing open say nothing of who is slow: recorders learn of what has
    # ended up to a second later.
    given = [structs.replace(stack, idle=()) for stack in stacks] if moving else stacks
    found = recorded(
        given,
        lambda rank: rank not in waiting and rank not in scene.healthy,
        lambda rank: rank in scene.working,
    )
    if found is None or not found.ranks <= scene.views.keys():
        return None
    silent = scene.views.keys() - {stack.rank for stack in stacks if stack.collectives or stack.idle}
    # If most recorders do not answer, it is rather that they are off.
    if found.silent and (moving or 2 * len(silent) >= len(scene.views)):
        return None
    reason = f"flight recorder: {found.reason}"
    # nccl2 shows several sends and receives in one kernel as ended while they wait.
    if found.unseen and any(silent & _members(rank, ("pp",), scene.layout) for rank in found.ranks):
        return scene.nobody(
            f"{reason}; they may wait for a rank of their pipeline that is silent", found.ranks
        )
    # Nodes whose ranks all wait in what the recorder does not show wait for each other: one is at fault.
    wait = all(scene.views[rank].activity.waits for rank in found.ranks)
    if not found.exact or (wait and len(nodes_of(found.ranks, scene.layout)) > 1):
        reason = f"{reason}; {scene.describe(found.ranks)}" if wait else reason
        return scene.group(found.ranks, reason, silent=found.silent)
    return scene.exact(found.ranks, 0.9, f"{reason}; {scene.describe(found.ranks)}")


def _elsewhere(scene: _Scene) -> Localisation | None:
    """Return the ranks that do something of their own while at least half of all ranks wait for peers."""
    waiting = scene.waiting()
    ranks = frozenset(scene.views) - waiting
    if not ranks or 2 * len(waiting) < len(scene.views):
        return None
    reason = f"{len(waiting)} of {len(scene.views)} ranks wait; {scene.describe(ranks)}"
    nodes, total = len(nodes_of(ranks, scene.layout)), node_count(scene.layout)
    if nodes > 1 and ranks & scene.doing(*_OF_STORAGE) and not covering(ranks, scene.layout, total / 2):
        return scene.nobody(f"{reason}: {nodes} nodes of no common group, so it is rather the storage")
    return scene.exact(ranks, min(_SURE.get(scene.views[rank].activity, 0.7) for rank in ranks), reason)


def _differing(scene: _Scene, moving: bool) -> Localisation:
    """Return the ranks that do something else than most."""
    ranks = scene.outliers
    if not ranks:
        view = scene.views[min(scene.views)]
        count = len(set(scene.keys.values()))
        same = f"all ranks do the same: {view.describe()}; the cause is a common one"
        return scene.nobody(same if count == 1 else f"the ranks are in {count} places, none of them unusual")
    if 2 * len(scene.healthy) < len(scene.views):
        return scene.nobody(f"only {scene.most()}: no rank stands out")
    reason = f"{scene.most()}; {scene.describe(ranks)}"
    # In a standstill the others wait, unseen, and the rank that is seen to wait may be elsewhere.
    if moving and ranks <= scene.waiting() and not scene.healthy & scene.waiting():
        return scene.nobody(f"{reason}: waiting for the others is not a fault")
    pair = _pair(scene, ranks)
    if pair is not None and allowed(pair, scene.layout, scene.most_share):
        return Localisation(
            outliers=tuple(sorted(ranks)),
            ranks=tuple(sorted(pair)),
            group=f"pair {fold_ranks(pair)}",
            healthy=len(scene.healthy),
            confidence=0.6,
            reason=f"{reason}; they send to each other",
            stack=scene.views[min(pair)].describe(),
        )
    return scene.group(ranks, reason)


def _pair(scene: _Scene, ranks: frozenset[int]) -> frozenset[int] | None:
    """Return ``ranks``, if they are the two ends of a send: on two nodes, neighbours in one pipeline."""
    if len(nodes_of(ranks, scene.layout)) != 2:
        return None
    if not all(is_point_to_point(scene.views[rank].form) for rank in ranks):
        return None
    places = [scene.layout.coordinates(rank) for rank in sorted(ranks)]
    stages = {place.pop("pp", 0) for place in places}
    size = dict(scene.layout.sizes).get("pp", 1)
    near = len(stages) == 2 and (max(stages) - min(stages)) in (1, size - 1)
    same_pipeline = len({tuple(v for k, v in place.items() if k != "tp") for place in places}) == 1
    return ranks if near and same_pipeline else None


# -- parallel groups, as they are evicted: whole nodes ----------------------------------------------


class RankGroup(Record):
    """A parallel group, rounded up to whole nodes."""

    dimensions: str
    """Along which its ranks differ, as ``pp`` or ``tp-pp``; ``node`` for one node."""
    ranks: frozenset[int]
    """With those that only share a node with the group."""
    nodes: int
    """How many it is on."""
    size: int
    """How many ranks it has itself."""

    @property
    def name(self) -> str:
        """``pp 24-31``."""
        return f"{self.dimensions} {fold_ranks(self.ranks)}"


def nodes_of(ranks: Iterable[int], layout: ParallelLayout) -> frozenset[int]:
    """Return the slots on which ``ranks`` run."""
    return frozenset(rank // layout.nproc_per_node for rank in ranks)


def node_count(layout: ParallelLayout) -> int:
    """Return how many nodes the world has."""
    return math.ceil(layout.world_size / layout.nproc_per_node)


def covering(ranks: Collection[int], layout: ParallelLayout, most_nodes: float) -> list[RankGroup]:
    """Return all groups of at most ``most_nodes`` nodes that hold ``ranks``, the smallest first.

    Among equals those of fewer dimensions come first, then the one that changes faster with the rank.
    """
    wanted = nodes_of(ranks, layout)
    if not wanted or len(wanted) > most_nodes:
        return []
    first = _ranks_on(min(wanted), layout)
    found: dict[tuple[str, frozenset[int]], RankGroup] = {}
    if len(wanted) == 1:
        found["node", frozenset(first)] = RankGroup(
            dimensions="node", ranks=frozenset(first), nodes=1, size=len(first)
        )
    for names, rank in product(_combinations(layout, len(first), most_nodes), first):
        raw = _members(rank, names, layout)
        nodes = nodes_of(raw, layout)
        # A part of a node is evicted as the node.
        if wanted <= nodes and len(nodes) <= most_nodes and (len(nodes) > 1 or len(raw) == len(first)):
            whole = frozenset(chain.from_iterable(_ranks_on(n, layout) for n in nodes))
            group = RankGroup(dimensions="-".join(names), ranks=whole, nodes=len(nodes), size=len(raw))
            found.setdefault((group.dimensions, whole), group)
    order = [name for name, _ in layout.sizes]

    def rank_of(group: RankGroup) -> tuple[object, ...]:
        names = group.dimensions.split("-")
        places = [order.index(name) if name in order else len(order) for name in names]
        return group.nodes, group.size, len(names), places, sorted(group.ranks)

    return sorted(found.values(), key=rank_of)


def _combinations(layout: ParallelLayout, per_node: int, most_nodes: float) -> Iterator[tuple[str, ...]]:
    """Yield the dimensions whose groups may fit into ``most_nodes``; never all, which would be the world."""
    sizes = {name: size for name, size in layout.sizes if size > 1}
    for length in range(1, len(sizes)):
        for names in combinations(sizes, length):
            if math.prod(sizes[name] for name in names) <= most_nodes * per_node:
                yield names


def _members(rank: int, names: Collection[str], layout: ParallelLayout) -> set[int]:
    """Return the ranks that differ from ``rank`` in the dimensions ``names`` only."""
    found, stride = {rank}, 1
    for name, size in layout.sizes:
        if name in names:
            found = {r - r // stride % size * stride + i * stride for r in found for i in range(size)}
        stride *= size
    return found


def _ranks_on(node: int, layout: ParallelLayout) -> range:
    first = node * layout.nproc_per_node
    return range(first, min(first + layout.nproc_per_node, layout.world_size))


# -- several rounds: a slow rank is flagged again and again, a chance one is not ---------------------

CHANCE = 0.05
"""Several verdicts within a group are no verdict on the group if they fall there by chance so often."""


class _Candidate(Record):
    """Ranks that may be blamed."""

    ranks: frozenset[int]
    group: str
    nodes: int
    votes: tuple[Localisation, ...]
    """The rounds whose verdict lies within ``ranks``."""


def vote(
    rounds: Sequence[Localisation], layout: ParallelLayout, *, most_share: float = MAX_SHARE
) -> Localisation:
    """Return the smallest set of ranks that holds the verdicts of more than half of the rounds.

    It is what a round blamed, or a parallel group of at most ``most_share`` of the nodes with several such,
    if these are more than chance puts into a group of its size. Empty, with the reason, if there is none, or
    if two are equally small and equally often flagged.
    """
    flagged = [found for found in rounds if found.ranks]
    candidates = [c for c in _candidates(flagged, layout, most_share) if 2 * len(c.votes) > len(rounds)]
    if not candidates:
        ranks = sorted(set(chain.from_iterable(found.ranks for found in flagged)))
        text = f"no majority: {len(flagged)} of {len(rounds)} sample rounds flagged ranks" + (
            f" (ranks {fold_ranks(ranks)}), none often enough" if ranks else ""
        )
        why = next((found.reason for found in reversed(rounds) if not found.ranks), "")
        return Localisation(reason=text + (f"; {why}" if why else ""))
    best, *others = sorted(candidates, key=lambda c: (*_smallness(c), sorted(c.ranks)))
    if equal := [c for c in others if _smallness(c) == _smallness(best) and c.ranks != best.ranks]:
        sets = ", ".join(fold_ranks(c.ranks) for c in (best, *equal))
        return Localisation(reason=f"ranks {sets} are flagged equally often")
    return _of_rounds(best, len(rounds))


def _candidates(
    flagged: Sequence[Localisation], layout: ParallelLayout, most_share: float
) -> list[_Candidate]:
    """Return each verdict, and each group that covers one and holds more of them than chance explains."""
    total = node_count(layout)
    blamed = {frozenset(found.ranks): found.group for found in flagged}
    sets = dict(blamed)
    for ranks in blamed:
        for group in covering(ranks, layout, most_share * total):
            sets.setdefault(group.ranks, group.name)
    found = [
        _Candidate(
            ranks=ranks,
            group=group,
            nodes=len(nodes_of(ranks, layout)),
            votes=tuple(found for found in flagged if ranks.issuperset(found.ranks)),
        )
        for ranks, group in sets.items()
    ]
    return [
        c
        for c in found
        if c.ranks in blamed or _by_chance(len(c.votes), len(flagged), c.nodes / total) < CHANCE
    ]


def _by_chance(votes: int, rounds: int, share: float) -> float:
    """Return the chance that this many verdicts on random nodes fall into a group with that ``share``."""
    tail = range(votes, rounds + 1)
    return sum(math.comb(rounds, k) * share**k * (1 - share) ** (rounds - k) for k in tail) / share


def _smallness(candidate: _Candidate) -> tuple[int, int, int]:
    return candidate.nodes, len(candidate.ranks), -len(candidate.votes)


def _of_rounds(best: _Candidate, rounds: int) -> Localisation:
    named = frozenset(chain.from_iterable(found.ranks for found in best.votes))
    last = best.votes[-1]
    exact = named == best.ranks and all(found.exact for found in best.votes)
    share = len(best.votes) / rounds
    return Localisation(
        outliers=tuple(sorted(set(chain.from_iterable(found.outliers for found in best.votes)))),
        ranks=tuple(sorted(best.ranks)),
        group="" if exact else best.group,
        exact=exact,
        healthy=min(found.healthy for found in best.votes),
        confidence=round(share * sum(found.confidence for found in best.votes) / len(best.votes), 2),
        reason=f"flagged in {len(best.votes)} of {rounds} sample rounds: {last.reason}",
        stack=last.stack,
        silent=any(found.silent for found in best.votes),
    )
