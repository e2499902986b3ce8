"""What the flight recorder knows: which rank has not come to the operation in which others wait for it.

With NCCL a host enqueues on while its GPU waits, so how far hosts have come says nothing. What counts is the
oldest operation of a group that some rank has not completed. A rank that has not enqueued it holds the others
up; if all have, it is those that have it still ``scheduled`` while others have ``started`` it: their GPU
never came to it.

A rank that is awaited may itself wait for another one in another group. So at fault are those that others
wait for and that do not wait themselves; if all of these are in an operation that all its ranks have begun
and none ends, it is the communication of that group.

A rank whose recorder has answered and shows nothing open has not come, or has ended the operation before the
others: it is awaited, though not exactly. One whose recorder does not answer is no witness: of an operation
that all others of its group have begun it may be the cause, so nobody else is named for it.
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
_HOSTS_OWN = "gloo"
"""Its operations begin when they are enqueued, and are ``scheduled`` to their end."""


class Blamed(Record):
    """Whom the recorder blames."""

    ranks: frozenset[int]
    exact: bool
    """False if all have begun an operation that none of them ends, or if they may have ended it."""
    reason: str
    silent: bool = False
    """Nothing is heard of them; the others of their group wait."""
    unseen: bool = False
    """They may wait in what their recorders do not show, since these do not show what has ended."""


class _Question(Record):
    """The oldest operation of one process group that a rank has not completed."""

    operation: Collective
    waiting: frozenset[int]
    """Ranks that are in it."""
    awaited: frozenset[int]
    """Ranks that have not come to it."""
    idle: frozenset[int]
    """Those of them that have nothing open, and may also have ended it."""
    odd: frozenset[int]
    """Ranks that have called another one in its place."""
    silent: frozenset[int]
    """Ranks of which nothing is known."""

    @property
    def what(self) -> str:
        return f"{self.operation.operation} {self.operation.sequence} of group {self.operation.group}"


def recorded(
    stacks: Sequence[RankStacks], is_busy: Callable[[int], bool], shows_work: Callable[[int], bool]
) -> Blamed | None:
    """Return whom the recorder blames; None for no rank.

    ``is_busy``: this rank's host does not seem to wait; ``shows_work``: its calls leave no doubt of that.
    """
    records = _Records(stacks)
    pairs = records.pairs
    every = [found for group in records.groups.values() if (found := _question(group)) is not None]
    for group in every:
        if group.odd:
            reason = f"{_ranks(group.odd)} called another operation than the others' {group.what}"
            return Blamed(ranks=group.odd, exact=True, reason=reason)
    held_up = [group for group in every if group.awaited]
    awaited = {rank: group for group in held_up for rank in group.awaited}
    blocked = frozenset().union(*(group.waiting for group in held_up), pairs)
    heard, idle, unheard = records.peers()
    asked = {*awaited, *heard}
    roots = {rank for rank in asked if is_busy(rank) or rank not in blocked}
    stuck = [group for group in every if not group.awaited and group.waiting & roots]
    inside = frozenset(rank for group in stuck for rank in group.waiting if not is_busy(rank))
    if named := frozenset(roots - inside):
        come = frozenset().union(*(group.awaited - group.idle for group in held_up), heard - idle)
        sure = frozenset(rank for rank in named if rank in come or shows_work(rank))
        named = sure or named
        what = next((awaited[rank].what for rank in sorted(named) if rank in awaited), "a send or receive")
        doubt = "" if sure else " or have ended it before the others: they have nothing open"
        reason = f"{_ranks(named)} did not come to {what}{doubt}"
        return Blamed(ranks=named, exact=bool(sure), unseen=not sure, reason=reason)
    whole = [group for group in stuck if not group.silent]
    if begun := inside & frozenset().union(*(group.waiting for group in whole)):
        reason = f"{_ranks(begun)} have all begun {whole[0].what} and none ends it"
        unseen = not records.shows_ended(whole[0].operation.library)
        return Blamed(ranks=begun, exact=False, unseen=unseen, reason=reason)
    # Who is in a kernel of several waits for any of its peers.
    facing = {rank for rank, peers in pairs.items() if len(peers) == 1 and rank in pairs.get(min(peers), ())}
    silent = frozenset().union(*(group.silent for group in stuck))
    if both := records.ends() or frozenset(facing if not silent | unheard else ()):
        reason = f"{_ranks(both)} have begun to send to and receive from each other and do not end"
        return Blamed(ranks=both, exact=False, reason=reason)
    if silent:
        reason = (
            f"{_ranks(inside)} have begun {stuck[0].what}, which does not end, and no recorder answers of "
            f"{_ranks(silent)}, which belong to it"
        )
        return Blamed(ranks=silent, exact=False, reason=reason, silent=True)
    if unheard:
        reason = f"others wait to send to or receive from {_ranks(unheard)}, of which no recorder answers"
        return Blamed(ranks=unheard, exact=False, reason=reason, silent=True)
    return None


def unclear(stacks: Sequence[RankStacks], ranks: Iterable[int]) -> frozenset[int]:
    """Return those of ``ranks`` whose host may wait for its GPU, whatever its calls look like.

    These are all whose GPU or library stands in an operation with others and, once there were such
    operations, those of which the recorder says nothing. Empty if no rank waits.
    """
    timed = _timed(stacks)
    held = {s.rank: [r.library for r, is_in in _places(s.collectives, timed) if is_in] for s in stacks}
    held = {rank: libraries for rank, libraries in held.items() if libraries}
    on_gpus = {library for libraries in held.values() for library in libraries} - {_HOSTS_OWN}
    # What gloo's recorder says of a rank says nothing of its GPU.
    known = {s.rank for s in stacks for r in s.collectives if not on_gpus or r.library != _HOSTS_OWN}
    records = (record for stack in stacks for record in stack.collectives)
    is_begun = any(record.state == _COMPLETED or record.sequence > 1 for record in records)
    return frozenset(held.keys() | (set(ranks) - known if held and is_begun else set()))


def _ranks(ranks: frozenset[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {fold_ranks(ranks)}"


_Key = tuple[str, int, int, str]
"""Key of a process group (:attr:`.Collective.key`)."""


class _Place(Record):
    """The place at which a rank stands in a group."""

    record: Collective
    is_in: bool
    """It waits there, and has not only enqueued the operation for later."""


class _Group:
    """A process group, and what its ranks have said of it."""

    def __init__(self, example: Collective) -> None:
        self.example = example
        self.ranks = frozenset(example.ranks)
        self.places: dict[int, _Place] = {}
        self.absent: set[int] = set()
        """Ranks whose recorder shows what has ended, and nothing of this group."""
        self.idle: set[int] = set()
        """Ranks whose recorder has nothing open, and does not show what has ended."""

    @property
    def silent(self) -> frozenset[int]:
        return self.ranks - self.places.keys() - self.absent - self.idle


def _timed(stacks: Iterable[RankStacks]) -> set[str]:
    """Return the libraries whose recorder shows ``started``: NCCL's with TORCH_NCCL_ENABLE_TIMING."""
    return {record.library for stack in stacks for record in stack.collectives if record.state == _STARTED}


def _places(records: Iterable[Collective], timed: set[str]) -> list[tuple[Collective, bool]]:
    """Return the records of one rank, and whether it is in that operation.

    If the recorder does not show what has started, a GPU is in what its host has enqueued first.
    """
    found, is_first = [], True
    for record in records:
        waits = record.state != _COMPLETED
        if record.library == _HOSTS_OWN:
            found.append((record, waits))
            continue
        is_in = record.state == _STARTED if record.library in timed else waits and is_first
        found.append((record, is_in))
        is_first = is_first and not waits
    return found


class _Records:
    """What the recorders of all ranks say."""

    def __init__(self, stacks: Sequence[RankStacks]) -> None:
        self.groups: dict[_Key, _Group] = {}
        """Without those of sends and receives, which have no common count of operations."""
        self.pairs: dict[int, frozenset[int]] = {}
        """Whom each rank waits for that is in a send or receive; empty if that is not known."""
        # By rank: the send or receive it is in; the libraries whose recorders show operations, and which
        # of them show some that have ended; the groups in which nothing but sends or receives may be open.
        self._in: dict[int, Collective] = {}
        self._libraries: defaultdict[int, set[str]] = defaultdict(set)
        self._whole: defaultdict[int, set[str]] = defaultdict(set)
        self._mentioned: defaultdict[int, set[str]] = defaultdict(set)
        # By group: the ranks with sends or receives that are open.
        self._open: defaultdict[_Key, set[int]] = defaultdict(set)
        timed = _timed(stacks)
        for stack in stacks:
            rank = stack.rank
            self._mentioned[rank].update(stack.idle)
            for record, is_in in _places(stack.collectives, timed):
                key = record.key
                library = key[-1]
                self._libraries[rank].add(library)
                if record.state == _COMPLETED:
                    self._whole[rank].add(library)
                if _POINT_TO_POINT.search(record.operation):
                    self._mentioned[rank].add(record.recorded_as)
                    self._open[key].update([rank] if record.state != _COMPLETED else [])
                    if is_in:
                        self.pairs[rank], self._in[rank] = _peers(record), record
                    continue
                if (group := self.groups.get(key)) is None:
                    group = self.groups[key] = _Group(record)
                before = group.places.get(rank)
                if before is None or before.record.newest < record.newest:
                    group.places[rank] = _Place(record=record, is_in=is_in)
        for key in self._open:
            self.groups.pop(key, None)
        for group in self.groups.values():
            for rank in group.ranks - group.places.keys():
                if (is_idle := self._is_idle(rank, group.example)) is not None:
                    (group.idle if is_idle else group.absent).add(rank)

    def peers(self) -> tuple[frozenset[int], frozenset[int], frozenset[int]]:
        """Return those for whom others wait in sends and receives: heard, idle of those, and not heard."""
        heard, idle, unheard = set[int](), set[int](), set[int]()
        for rank, peers in self.pairs.items():
            record = self._in[rank]
            for peer in peers:
                is_idle = peer not in self._open[record.key] and self._is_idle(peer, record)
                (unheard if is_idle is None else heard).add(peer)
                if is_idle:
                    idle.add(peer)
        return frozenset(heard), frozenset(idle), frozenset(unheard)

    def ends(self) -> frozenset[int]:
        """Return both ends of sends that both have begun."""
        return frozenset(
            rank
            for rank, peers in self.pairs.items()
            for peer in peers
            if len(peers) == 1
            and self.pairs.get(peer) == frozenset((rank,))
            and self._sends(rank) != self._sends(peer)
        )

    def shows_ended(self, library: str) -> bool:
        """Return whether any recorder of this library shows operations that have ended."""
        return any(library in libraries for libraries in self._whole.values())

    def _sends(self, rank: int) -> bool:
        return "send" in self._in[rank].operation

    def _is_idle(self, rank: int, record: Collective) -> bool | None:
        """Return whether a rank without this operation may have ended it; None if nothing is heard of it."""
        library, group = record.library, record.recorded_as
        if library in self._whole[rank]:
            return False
        if group in self._mentioned[rank]:
            return True
        return False if library in self._libraries[rank] else None


def _peers(record: Collective) -> frozenset[int]:
    """Read ``recv 2<-1``: the numbers are places in the group, the waiting rank's own first."""
    found = _PEERS.search(record.operation)
    places = record.peers or ((int(found[3]),) if found else ())
    return frozenset(record.ranks[place] if place < len(record.ranks) else place for place in places)


def _question(group: _Group) -> _Question | None:
    """Return the question; None if no rank waits in the group."""
    open_ = {r: p for r, p in group.places.items() if p.record.state != _COMPLETED}
    if not open_:
        return None
    number = min(place.record.sequence for place in open_.values())
    there = {r: p for r, p in open_.items() if p.record.sequence == number}
    waiting = frozenset(rank for rank, place in there.items() if place.is_in)
    if not waiting:
        return None  # all that have enqueued it stand elsewhere
    behind = {rank for rank, place in group.places.items() if place.record.newest < number}
    counts = Counter(place.record.operation for place in there.values())
    usual, count = min(counts.items(), key=lambda item: (-item[1], item[0]))
    is_clear = 2 * count > len(there) + len(group.silent)
    return _Question(
        operation=next(place.record for place in there.values() if place.record.operation == usual),
        waiting=waiting,
        awaited=frozenset(behind | group.absent | group.idle) or frozenset(there) - waiting,
        idle=frozenset(group.idle),
        odd=frozenset(r for r, p in there.items() if is_clear and p.record.operation != usual),
        silent=group.silent,
    )
