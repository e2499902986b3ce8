"""What the flight recorder knows: which rank has not come to the operation in which others wait for it.

A rank that is behind may itself wait for another one in another group. So at fault are those that somebody
waits for and who wait for nobody; where all of these are in an operation that all its ranks have begun and
none ends, it is the communication of that group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from slurm_robust.analysis.stacks.groups import fold
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Collective, RankStacks

_COMPLETED = "completed"
_POINT_TO_POINT = re.compile(r"(^|[:_\s])(i?send|i?recv|coalesced$)")
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")


class Recorded(Record):
    """``ranks`` at fault; not ``exact`` where all have begun an operation that none of them ends."""

    ranks: frozenset[int]
    exact: bool
    reason: str


class _Progress(Record):
    """One process group: who is in its newest operation, who has not come to it, who is in another one."""

    newest: Collective
    waiting: frozenset[int]
    behind: frozenset[int]
    odd: frozenset[int]

    @property
    def what(self) -> str:
        return f"{self.newest.operation} {self.newest.sequence} of group {self.newest.group}"


def recorded(stacks: Iterable[RankStacks], is_busy: Callable[[int], bool]) -> Recorded | None:
    """Whom the recorder blames; None when it names nobody. ``is_busy``: this rank's host waits for nobody."""
    groups, pairs = _records(stacks)
    every = [found for members in groups.values() if (found := _progress(members)) is not None]
    for group in every:
        if group.odd:
            reason = f"{_ranks(group.odd)} called another operation than the others' {group.what}"
            return Recorded(ranks=group.odd, exact=True, reason=reason)
    held_up = [group for group in every if group.behind]
    awaited = {rank: group for group in held_up for rank in group.behind}
    blocked = frozenset().union(*(group.waiting for group in held_up), pairs)
    asked = {*awaited, *(peer for peer in pairs.values() if peer is not None)}
    roots = {rank for rank in asked if is_busy(rank) or rank not in blocked}
    stuck = [group for group in every if not group.behind and group.waiting & roots]
    inside = frozenset(rank for group in stuck for rank in group.waiting if not is_busy(rank))
    if named := frozenset(roots - inside):
        what = next((awaited[rank].what for rank in sorted(named) if rank in awaited), "a send or receive")
        return Recorded(ranks=named, exact=True, reason=f"{_ranks(named)} did not come to {what}")
    if inside:
        reason = f"{_ranks(inside)} have all begun {stuck[0].what} and none ends it"
        return Recorded(ranks=inside, exact=False, reason=reason)
    if both := frozenset(
        rank for rank, peer in pairs.items() if peer is not None and pairs.get(peer) == rank
    ):
        reason = f"{_ranks(both)} have begun to send to and receive from each other and do not end"
        return Recorded(ranks=both, exact=False, reason=reason)
    return None


def _ranks(ranks: frozenset[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold(ranks)}"


# A group's name, its first rank and its size: to compare all ranks of large groups would take seconds.
_Key = tuple[str, int, int]
_Members = dict[int, Collective | None]


def _records(stacks: Iterable[RankStacks]) -> tuple[dict[_Key, _Members], dict[int, int | None]]:
    """The newest record of each rank by group, and who waits for whom in sends and receives.

    Groups with sends and receives have no common count of operations. Of several in one kernel
    (``coalesced``) the recorder does not tell the peers: None.
    """
    groups: defaultdict[_Key, _Members] = defaultdict(dict)
    pairs: dict[int, int | None] = {}
    uncounted: set[_Key] = set()
    known: dict[_Key, tuple[int, ...]] = {}
    with_records = {stack.rank: stack.collectives for stack in stacks if stack.collectives}
    for rank, collectives in with_records.items():
        for record in collectives:
            key = record.group, record.ranks[0] if record.ranks else -1, len(record.ranks)
            known.setdefault(key, record.ranks)
            if _POINT_TO_POINT.search(record.operation):
                uncounted.add(key)
                if record.state != _COMPLETED:
                    pairs[rank] = _peer(record)
                continue
            before = groups[key].get(rank)
            if before is None or before.sequence < record.sequence:
                groups[key][rank] = record
    for key, members in groups.items():
        members |= {rank: None for rank in known[key] if rank in with_records and rank not in members}
    return {key: members for key, members in groups.items() if key not in uncounted}, pairs


def _peer(record: Collective) -> int | None:
    """``recv 2<-1``: the numbers are places in the group, the waiting rank's own first."""
    found = _PEERS.search(record.operation)
    if found is None:
        return None
    peer = int(found[3])
    return record.ranks[peer] if peer < len(record.ranks) else peer


def _progress(members: _Members) -> _Progress | None:
    """None where nobody waits in the group's newest operation."""
    sequence = max(record.sequence for record in members.values() if record is not None)
    newest = {r: c for r, c in members.items() if c is not None and c.sequence == sequence}
    waiting = {rank: record for rank, record in newest.items() if record.state != _COMPLETED}
    if not waiting:
        return None
    counts = Counter(record.operation for record in newest.values())
    usual, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    is_clear = 2 * count > len(newest)
    return _Progress(
        newest=next(record for record in newest.values() if record.operation == usual),
        waiting=frozenset(waiting),
        behind=frozenset(members) - frozenset(newest),
        odd=frozenset(r for r, c in newest.items() if is_clear and c.operation != usual),
    )
