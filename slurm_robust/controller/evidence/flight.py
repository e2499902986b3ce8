"""What PyTorch's flight recorder says of all ranks together: who is in which operation. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from slurm_robust.controller.evidence.texts import count, named, one_line
from slurm_robust.model.stacks import Collective, RankStacks

MOST_GROUPS = 200
"""Process groups that are told one by one."""

_COMPLETED = "completed"
# Sends and receives are counted by each rank for itself, so their numbers cannot be compared.
_POINT_TO_POINT = ":p2p"


class _Group:
    """One process group: its members, and which of them are in which operation."""

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members
        self.places: defaultdict[tuple[int, str, str], list[int]] = defaultdict(list)

    def add(self, rank: int, record: Collective) -> None:
        number = 0 if record.group.endswith(_POINT_TO_POINT) else record.sequence
        self.places[number, record.operation, record.state].append(rank)

    @property
    def waits(self) -> bool:
        return any(state != _COMPLETED for _, _, state in self.places)

    def absent(self, recorded: set[int]) -> list[int]:
        seen = {rank for ranks in self.places.values() for rank in ranks}
        return [rank for rank in self.members if rank in recorded and rank not in seen]


def flight(stacks: Iterable[RankStacks]) -> list[str]:
    """Process groups in which some wait and not all are in the same operation; the others are counted."""
    groups: dict[tuple[str, int, int], _Group] = {}
    recorded: set[int] = set()
    for stack in stacks:
        for record in stack.collectives:
            # Its ranks name a group; the first and their number do too, at a fraction of the cost.
            key = record.group, record.ranks[0] if record.ranks else -1, len(record.ranks)
            groups.setdefault(key, _Group(record.ranks)).add(stack.rank, record)
            recorded.add(stack.rank)
    waiting = [
        (name, group) for (name, *_), group in sorted(groups.items(), key=lambda item: item[0]) if group.waits
    ]
    lines = [line for name, group in waiting if (line := _line(name, group, recorded))]
    together, idle = len(waiting) - len(lines), len(groups) - len(waiting)
    more = len(lines) - MOST_GROUPS
    return [
        *lines[:MOST_GROUPS],
        *([f"and {count(more, 'process group')} more"] if more > 0 else []),
        *([f"{count(together, 'process group')} with all ranks in the same operation"] if together else []),
        *([f"{count(idle, 'process group')} in which nobody waits"] if idle else []),
    ]


def _line(name: str, group: _Group, recorded: set[int]) -> str:
    """One group, or "" when all its ranks are in the same operation."""
    pairs = name.endswith(_POINT_TO_POINT)
    absent = [] if pairs else group.absent(recorded)
    if len(group.places) == 1 and not absent and not pairs:
        return ""
    words = [_at(*item) for item in sorted(group.places.items())]
    words += [f"{named(absent)} in none so far"] if absent else []
    size = f" ({count(len(group.members), 'rank')})" if group.members else ""
    return f"{one_line(name)}{size}: {'; '.join(words)}"


def _at(place: tuple[int, str, str], ranks: list[int]) -> str:
    number, operation, state = place
    return f"{named(ranks)} in {f'#{number} ' if number else ''}{one_line(operation)}, {one_line(state)}"
