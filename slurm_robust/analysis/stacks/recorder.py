"""What the flight recorder knows: which rank has not come to the operation in which others wait for it.

With NCCL a host enqueues on while its GPU waits, so how far hosts have come says nothing. What counts is the
oldest operation of a group that some rank has not completed. A rank that has not enqueued it holds the others
up; if all have, it is those that have it still ``scheduled`` while others have ``started`` it: their GPU
never came to it.

A rank that is awaited may itself wait for another one in another group. So at fault are those that others
wait for and that do not wait themselves; if all of these are in an operation that all its ranks have begun
and none ends, it is the communication of that group.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence

from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Collective, RankStacks
from slurm_robust.util.text import fold_ranks

_COMPLETED, _STARTED = "completed", "started"
_POINT_TO_POINT = re.compile(r"(^|[:_\s])(i?send|i?recv|coalesced$)")
_PEERS = re.compile(r"(\d+)\s*(->|<-)\s*(\d+)")
_HOSTS_OWN = "gloo:"
"""gloo's operations begin when they are enqueued, and are ``scheduled`` to their end."""


class Recorded(Record):
    """Whom the recorder blames."""

    ranks: frozenset[int]
    exact: bool
    """False if all have begun an operation that none of them ends."""
    reason: str


class _Question(Record):
    """The oldest operation of one process group that a rank has not completed."""

    operation: Collective
    waiting: frozenset[int]
    """Ranks that are in it."""
    awaited: frozenset[int]
    """Ranks that have not come to it."""
    odd: frozenset[int]
    """Ranks that have called another one in its place."""

    @property
    def what(self) -> str:
        return f"{self.operation.operation} {self.operation.sequence} of group {self.operation.group}"


def recorded(stacks: Sequence[RankStacks], is_busy: Callable[[int], bool]) -> Recorded | None:
    """Return whom the recorder blames; None for no rank. ``is_busy``: this rank's host does not wait."""
    groups, pairs = _records(stacks)
    every = [found for members in groups.values() if (found := _question(members)) is not None]
    for group in every:
        if group.odd:
            reason = f"{_ranks(group.odd)} called another operation than the others' {group.what}"
            return Recorded(ranks=group.odd, exact=True, reason=reason)
    held_up = [group for group in every if group.awaited]
    awaited = {rank: group for group in held_up for rank in group.awaited}
    blocked = frozenset().union(*(group.waiting for group in held_up), pairs)
    known = {stack.rank for stack in stacks if stack.collectives}
    asked = {*awaited, *(peer for peer in pairs.values() if peer is not None and peer in known)}
    roots = {rank for rank in asked if is_busy(rank) or rank not in blocked}
    stuck = [group for group in every if not group.awaited and group.waiting & roots]
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


def unclear(stacks: Sequence[RankStacks], ranks: Iterable[int]) -> frozenset[int]:
    """Return those of ``ranks`` whose host may wait for its GPU, whatever its calls look like.

    These are all whose GPU or library stands in an operation with others and, once there were such
    operations, those of which the recorder says nothing. Empty if no rank waits.
    """
    is_timed = _is_timed(stacks)
    held = {s.rank for s in stacks if any(is_in for _, is_in in _places(s.collectives, is_timed))}
    known = {stack.rank for stack in stacks if stack.collectives}
    records = [record for stack in stacks for record in stack.collectives]
    is_begun = any(record.state == _COMPLETED or record.sequence > 1 for record in records)
    return frozenset(held | (set(ranks) - known if held and is_begun else set()))


def _ranks(ranks: frozenset[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold_ranks(ranks)}"


_Key = tuple[str, int, int]
"""Key of a process group (:attr:`.Collective.key`)."""


class _Place(Record):
    """The place at which a rank stands in a group."""

    record: Collective
    is_in: bool
    """It waits there, and has not only enqueued the operation for later."""


_Members = dict[int, _Place | None]


def _is_timed(stacks: Iterable[RankStacks]) -> bool:
    """Return whether the recorder shows ``started``: only with TORCH_NCCL_ENABLE_TIMING."""
    return any(record.state == _STARTED for stack in stacks for record in stack.collectives)


def _places(records: Iterable[Collective], is_timed: bool) -> list[tuple[Collective, bool]]:
    """Return the records of one rank, and whether it is in that operation.

    If the recorder does not show what has started, a GPU is in what its host has enqueued first.
    """
    found, is_first = [], True
    for record in records:
        waits = record.state != _COMPLETED
        if record.operation.startswith(_HOSTS_OWN):
            found.append((record, waits))
            continue
        found.append((record, record.state == _STARTED if is_timed else waits and is_first))
        is_first = is_first and not waits
    return found


def _records(stacks: Sequence[RankStacks]) -> tuple[dict[_Key, _Members], dict[int, int | None]]:
    """Return each rank's place by group, and which rank waits for which in sends and receives.

    Groups with sends and receives have no common count of operations. For several in one kernel
    (``coalesced``) the recorder does not show the peers: None.
    """
    groups: defaultdict[_Key, _Members] = defaultdict(dict)
    pairs: dict[int, int | None] = {}
    uncounted: set[_Key] = set()
    known: dict[_Key, tuple[int, ...]] = {}
    with_records = {stack.rank: stack.collectives for stack in stacks if stack.collectives}
    is_timed = _is_timed(stacks)
    for rank, collectives in with_records.items():
        for record, is_in in _places(collectives, is_timed):
            key = record.key
            known.setdefault(key, record.ranks)
            if _POINT_TO_POINT.search(record.operation):
                uncounted.add(key)
                if is_in:
                    pairs[rank] = _peer(record)
                continue
            before = groups[key].get(rank)
            if before is None or before.record.newest < record.newest:
                groups[key][rank] = _Place(record=record, is_in=is_in)
    for key, members in groups.items():
        members |= {rank: None for rank in known[key] if rank in with_records and rank not in members}
    return {key: members for key, members in groups.items() if key not in uncounted}, pairs


def _peer(record: Collective) -> int | None:
    """Read ``recv 2<-1``: the numbers are places in the group, the waiting rank's own first."""
    found = _PEERS.search(record.operation)
    if found is None:
        return None
    peer = int(found[3])
    return record.ranks[peer] if peer < len(record.ranks) else peer


def _question(members: _Members) -> _Question | None:
    """Return the question; None if no rank waits in the group."""
    places = {rank: place for rank, place in members.items() if place is not None}
    open_ = {r: p for r, p in places.items() if p.record.state != _COMPLETED}
    if not open_:
        return None
    number = min(place.record.sequence for place in open_.values())
    there = {r: p for r, p in open_.items() if p.record.sequence == number}
    waiting = frozenset(rank for rank, place in there.items() if place.is_in)
    if not waiting:
        return None  # all that have enqueued it stand elsewhere
    absent = frozenset(r for r in members if r not in places or places[r].record.newest < number)
    counts = Counter(place.record.operation for place in there.values())
    usual, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    is_clear = 2 * count > len(there)
    return _Question(
        operation=next(place.record for place in there.values() if place.record.operation == usual),
        waiting=waiting,
        awaited=absent or frozenset(there) - waiting,
        odd=frozenset(r for r, p in there.items() if is_clear and p.record.operation != usual),
    )
