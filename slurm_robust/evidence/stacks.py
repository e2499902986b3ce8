"""What ranks were doing: groups of equal stacks, for programs (JSON) and as text, and collectives. Pure.

Whatever the number of ranks, both fit their bounds: each group of equal stacks is shown by one of its ranks,
and of the others the file for programs has as many as it can hold, smallest groups first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from slurm_robust.analysis.stacks.ranks import RankView, Reader, view
from slurm_robust.model.record import Record
from slurm_robust.model.stacks import (
    POINT_TO_POINT,
    Collective,
    Frame,
    Localisation,
    ProcessStacks,
    RankStacks,
)
from slurm_robust.util.hostlist import fold
from slurm_robust.util.text import count, fold_ranks, named_ranks, one_line

MAX_FRAMES = 60
"""Calls of one thread that the text shows."""

MAX_GROUPS = 200
"""Process groups that are described one by one."""

MAX_CALLS = 3
"""Calls that say in one line what a rank does."""

_COMPLETED = "completed"
# Each rank counts sends and receives for itself, so their numbers cannot be compared.
_STATES = {"T": "stopped by a signal", "t": "held by a debugger", "D": "waits in the kernel", "Z": "dead"}


class StackGroup(Record):
    """Ranks with equal stacks."""

    ranks: tuple[int, ...]
    nodes: str
    is_outlier: bool
    """Most other ranks do something else."""
    doing: str
    example: RankStacks
    """The stacks of one of them."""


class SavedStacks(Record):
    """``stacks.json``."""

    localisation: Localisation
    groups: tuple[StackGroup, ...]
    flight: tuple[str, ...]
    ranks: tuple[RankStacks, ...] = ()
    """Further members of the groups."""
    left_out: int = 0
    """How many did not fit."""


def group(stacks: Sequence[RankStacks], localisation: Localisation) -> tuple[StackGroup, ...]:
    """Return groups of equal stacks: those at fault, other outliers, the rest; the smallest first."""
    alike: dict[RankView, list[RankStacks]] = defaultdict(list)
    reader = Reader()
    for stack in sorted(stacks, key=lambda stack: stack.rank):
        alike[view(stack, reader)].append(stack)
    blamed = set(localisation.ranks)
    outliers = {*localisation.outliers, *(blamed if localisation.exact else ())}
    groups = [
        StackGroup(
            ranks=tuple(stack.rank for stack in members),
            nodes=fold(stack.node for stack in members),
            is_outlier=2 * sum(stack.rank in outliers for stack in members) > len(members),
            doing=_activity_text(seen),
            example=members[0],
        )
        for seen, members in alike.items()
    ]
    return tuple(
        sorted(groups, key=lambda g: (not g.is_outlier, blamed.isdisjoint(g.ranks), len(g.ranks), g.ranks))
    )


def _activity_text(seen: RankView) -> str:
    """Return what a rank does: ``waits for other ranks: all_reduce torch/x.py < train train.py:9``."""
    calls = " < ".join(seen.form.split("\n")[:MAX_CALLS])
    text = f"{seen.activity.value}: {calls}" if calls else seen.activity.value
    return one_line("; ".join(filter(None, (text, seen.helper))))


def bounded(stacks: Sequence[RankStacks], localisation: Localisation, most: int) -> bytes:
    """Return :class:`SavedStacks` as JSON of about ``most`` bytes at the most."""
    groups = group(stacks, localisation)
    room = most // 2
    kept = []
    for each in groups:
        size = len(msgspec.json.encode(each))
        if size > room:  # too many different stacks: the rest without an example
            example = RankStacks(rank=each.example.rank, node=each.example.node)
            each = msgspec.structs.replace(each, example=example)
            size = len(msgspec.json.encode(each))
        if size <= room:
            kept.append(each)
            room -= size
    by_rank = {stack.rank: stack for stack in stacks}
    others = [by_rank[r] for each in sorted(groups, key=lambda g: len(g.ranks)) for r in each.ranks[1:]]
    room, ranks = most // 2, []
    for stack in others:
        room -= len(msgspec.json.encode(stack))
        if room < 0:
            break
        ranks.append(stack)
    return msgspec.json.encode(
        SavedStacks(
            localisation=localisation,
            groups=tuple(kept),
            flight=tuple(flight(stacks)),
            ranks=tuple(ranks),
            left_out=len(others) - len(ranks),
        )
    )


# -- for people ------------------------------------------------------------------------------------


def stacks_text(stacks: Sequence[RankStacks], localisation: Localisation) -> Iterator[str]:
    """Yield the lines of ``stacks.txt``."""
    sources = sorted({stack.source for stack in stacks} - {""})
    slowest = max((stack.took_s for stack in stacks), default=0.0)
    nodes = {stack.node for stack in stacks}
    how = f", by {' and '.join(sources)} in {slowest:.1f} s" if sources else ""
    yield f"Stacks of {count(len(stacks), 'rank')} on {count(len(nodes), 'node')}{how}"
    yield placed(localisation)
    groups = group(stacks, localisation)
    yield from ("", "Groups of equal stacks, outliers first")
    for number, each in enumerate(groups, 1):
        yield f"  {number}  {title(each)}: {each.doing}"
    if lines := flight(stacks):
        yield from ("", "Collectives, by the flight recorder")
        yield from (f"  {line}" for line in lines)
    for number, each in enumerate(groups, 1):
        yield from ("", f"Group {number}: {title(each)}; rank {each.example.rank} on {each.example.node}:")
        for process in each.example.processes:
            yield from process_lines(process)


def placed(localisation: Localisation) -> str:
    """Return where the stacks place the fault, in one line."""
    if not localisation.ranks:
        return (
            f"They do not show where the fault is: {one_line(localisation.reason) or 'all ranks do the same'}"
        )
    where = "exactly there" if localisation.exact else f"all of {localisation.group or 'their group'}"
    return (
        f"They place the fault at {named_ranks(localisation.ranks)} ({where}, confidence "
        f"{localisation.confidence:.0%}): {one_line(localisation.reason) or 'no reason given'}"
    )


def title(each: StackGroup) -> str:
    """Return ``2 ranks (12-13 on n7)``, with a remark if they are not like most."""
    text = f"{count(len(each.ranks), 'rank')} ({fold_ranks(each.ranks)} on {each.nodes})"
    return text + (", unlike most" if each.is_outlier else "")


def process_lines(process: ProcessStacks) -> Iterator[str]:
    """Yield one process with all its threads, its calls innermost first."""
    state = _STATES.get(process.state) or one_line(process.state)
    yield f"  {process.kind.value}, pid {process.pid}" + (f", {state}" if state else "")
    if process.error:
        yield f"    no stack: {one_line(process.error)}"
    for thread in sorted(process.threads, key=lambda thread: not thread.is_main):
        yield f"    thread {one_line(thread.name) or ('main' if thread.is_main else 'without a name')}"
        yield from (f"      {_frame(frame)}" for frame in thread.frames[:MAX_FRAMES])
        if (more := len(thread.frames) - MAX_FRAMES) > 0:
            yield f"      … {count(more, 'call')} further out"


def _frame(frame: Frame) -> str:
    line = f":{frame.line}" if frame.line else ""
    return one_line(f"{frame.function} ({frame.file}{line})" if frame.file else frame.function)


# -- the flight recorder ---------------------------------------------------------------------------


class _Group:
    """One process group: its members, and which of them are in which operation."""

    def __init__(self, example: Collective) -> None:
        self.name, self.library, self.recorded_as = example.group, example.library, example.recorded_as
        self.members = example.ranks
        self.places: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)

    def add(self, rank: int, record: Collective) -> None:
        number = 0 if record.group.endswith(POINT_TO_POINT) else record.sequence
        self.places[number, record.operation, record.state].append(rank)

    @property
    def waits(self) -> bool:
        return any(state != _COMPLETED for _, _, state in self.places)

    def others(self, ranks: set[int]) -> list[int]:
        """Return those of ``ranks`` that belong to it and are in no operation of it."""
        seen = {rank for ranks in self.places.values() for rank in ranks}
        return [rank for rank in self.members if rank in ranks and rank not in seen]


def flight(stacks: Iterable[RankStacks]) -> list[str]:
    """Return process groups whose ranks wait in different operations, one by one; the others are counted."""
    groups: dict[tuple[str, int, int, str], _Group] = {}
    recorded: defaultdict[str, set[int]] = defaultdict(set)
    idle: defaultdict[str, set[int]] = defaultdict(set)
    for stack in stacks:
        for name in stack.idle:
            idle[name].add(stack.rank)
        for record in stack.collectives:
            groups.setdefault(record.key, _Group(record)).add(stack.rank, record)
            recorded[record.library].add(stack.rank)
    waiting = [group for _, group in sorted(groups.items(), key=lambda item: item[0]) if group.waits]
    lines = [
        line for group in waiting if (line := _line(group, recorded[group.library], idle[group.recorded_as]))
    ]
    together, unused = len(waiting) - len(lines), len(groups) - len(waiting)
    more = len(lines) - MAX_GROUPS
    return [
        *lines[:MAX_GROUPS],
        *([f"and {count(more, 'process group')} more"] if more > 0 else []),
        *([f"{count(together, 'process group')} with all ranks in the same operation"] if together else []),
        *([f"{count(unused, 'process group')} in which no rank waits"] if unused else []),
    ]


def _line(group: _Group, recorded: set[int], idle: set[int]) -> str:
    """Return one group, or "" when all its ranks are in the same operation."""
    pairs = group.name.endswith(POINT_TO_POINT)
    through = group.others(idle)
    absent = [] if pairs else group.others(recorded - idle)
    if len(group.places) == 1 and not absent and not through and not pairs:
        return ""
    parts = [_at(*item) for item in sorted(group.places.items())]
    parts += [f"{named_ranks(absent)} in none so far"] if absent else []
    parts += [f"{named_ranks(through)} with nothing open"] if through else []
    size = f" ({count(len(group.members), 'rank')})" if group.members else ""
    return f"{one_line(group.name)}{size}: {'; '.join(parts)}"


def _at(place: tuple[int, str, str], ranks: list[int]) -> str:
    number, operation, state = place
    return (
        f"{named_ranks(ranks)} in {f'#{number} ' if number else ''}{one_line(operation)}, {one_line(state)}"
    )
