"""A slowdown is sampled in several rounds: slow ranks are flagged again and again, chance ones are not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

from slurm_robust.analysis.stacks.groups import covering, node_count, nodes_of
from slurm_robust.analysis.stacks.localise import MOST_SHARE
from slurm_robust.model.layout import ParallelLayout
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Localisation
from slurm_robust.util.text import fold_ranks

CHANCE = 0.05
"""Several verdicts within a group are no verdict on the group if they fall there by chance so often."""


class _Candidate(Record):
    """Ranks that may be blamed; ``votes`` are the rounds whose verdict lies within them."""

    ranks: frozenset[int]
    group: str
    nodes: int
    votes: tuple[Localisation, ...]


def vote(
    rounds: Sequence[Localisation], layout: ParallelLayout, *, most_share: float = MOST_SHARE
) -> Localisation:
    """The smallest set of ranks that holds the verdicts of more than half of the rounds.

    It is what a round blamed, or a parallel group of at most ``most_share`` of the nodes with several such,
    if these are more than chance puts into a group of its size. Empty, with the reason, where there is none,
    or where two are equally small and equally often flagged.
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
    best, *others = sorted(candidates, key=_rank)
    if equal := [c for c in others if _size(c) == _size(best) and c.ranks != best.ranks]:
        sets = ", ".join(fold_ranks(c.ranks) for c in (best, *equal))
        return Localisation(reason=f"ranks {sets} are flagged equally often")
    return _verdict(best, len(rounds))


def _candidates(
    flagged: Sequence[Localisation], layout: ParallelLayout, most_share: float
) -> list[_Candidate]:
    """Each verdict, and each group that covers one and holds more of them than chance explains."""
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
    """The chance that this many verdicts on random nodes fall into one group with ``share`` of the nodes."""
    tail = range(votes, rounds + 1)
    return sum(math.comb(rounds, k) * share**k * (1 - share) ** (rounds - k) for k in tail) / share


def _size(candidate: _Candidate) -> tuple[int, int, int]:
    return candidate.nodes, len(candidate.ranks), -len(candidate.votes)


def _rank(candidate: _Candidate) -> tuple[object, ...]:
    return *_size(candidate), sorted(candidate.ranks)


def _verdict(best: _Candidate, rounds: int) -> Localisation:
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
    )
