"""How many snapshots fit into a node's memory: :func:`plan` decides, :func:`gather` reads the limits.

All ranks of a node share its memory, so each plans for all of them from the same numbers. What the job's own
buffers occupy already counts as free, because that is what they are for, and it stays theirs when others have
taken the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.util import numa
from slurm_robust.util.files import write_atomically
from slurm_robust.util.numa import HostMemory
from slurm_robust.util.proc import CGROUPS, PROC, memory_cgroups
from slurm_robust.util.text import size_text

NODE = "the node"
"""How the name of the limit begins that is all of the host's memory (:mod:`slurm_robust.util.numa`)."""

_CGROUP = "the cgroup"

RESERVE = 0.1  # of each limit, left for what training may still need

# Buffers of this node's own ranks, and of the ranks whose peer it is, best first.
_LADDER = ((5, 2), (3, 2), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0))
_ALONE = ((5, 0), (3, 0), (2, 0), (1, 0), (0, 0))
_MEANING = {
    (3, 2): "own copies of the steps that peers have are dropped early, should copying fall behind",
    (2, 2): "a rank that is killed while another is a step ahead may cost a restore from storage",
    (2, 1): "the same, and a peer that dies while it receives has no older copy",
    (2, 0): "the loss of a node costs a restore from storage",
    (1, 0): "a rank that is killed while it writes its snapshot costs a restore from storage",
    (0, 0): "a fault goes back to the newest checkpoint on storage, for which training waits until the ranks "
    "of this node have written it",
}


class Room(Record):
    """One limit on memory."""

    name: str  # for people
    total: int  # bytes, and so are the others
    free: int
    ours: int = 0  # of ``free``, what the job's own buffers hold already

    def describe(self) -> str:
        """Return ``the file system of /dev/shm has 3.1 MB free of 2.1 GB``."""
        return f"{self.name} has {size_text(self.free)} free of {size_text(self.total)}"


class MemoryPlan(Record):
    """How many snapshots a node keeps."""

    own_buffers: int  # of each part of its own ranks
    peer_buffers: int  # of each part of a peer's ranks
    reason: str = ""  # why it is not the best plan, "" if it is
    short: str = ""  # what has too little room for a better one: ``the node has 3.1 MB free of 2.1 GB``


def plan(*, own: int, shared: int, ranks: int, nodes: int, rooms: tuple[Room, ...]) -> MemoryPlan:
    """Return the most that fits, for images of ``own`` bytes per rank and ``shared`` bytes per node.

    ``ranks`` is the number of ranks on this node; it holds as many copies of other nodes' ranks.
    """
    ladder = _LADDER if nodes > 1 else _ALONE

    def need(rung: tuple[int, int]) -> int:
        return buffer_bytes(*rung, own=own, shared=shared, ranks=ranks)

    tightest = min(rooms, key=usable)
    chosen = next(rung for rung in ladder if not rung[0] or need(rung) <= usable(tightest))
    reason = ""
    if chosen != ladder[0]:
        better = ladder[ladder.index(chosen) - 1]
        reason = (
            f"{_format_rung(ladder[0])} need {size_text(need(ladder[0]))}, and {tightest.describe()} "
            f"(a tenth of which is left alone). Instead: {_format_rung(chosen)}{_needs(need(chosen))}; "
            f"{_meaning(chosen, nodes)}. "
            f"{_advice([room for room in rooms if usable(room) < need(better)])}"
        )
    short = tightest.describe() if reason else ""
    return MemoryPlan(own_buffers=chosen[0], peer_buffers=chosen[1], reason=reason, short=short)


def buffer_bytes(own_buffers: int, peer_buffers: int, *, own: int, shared: int, ranks: int) -> int:
    """Return the memory that a node needs for so many buffers of each part; see :func:`plan`."""
    return ranks * own * (own_buffers + peer_buffers) + shared * own_buffers


def gather(
    copies: Path, proc: Path = PROC, cgroups: Path = CGROUPS, nodes: Path | None = None
) -> tuple[Room, ...]:
    """Return the limits that hold for files in ``copies``; files that are already there count as free.

    Raises ``OSError`` if ``copies`` is not there.
    """
    return limits(copies.parent, held(copies.iterdir()), proc, cgroups, nodes)


def held(files: Iterable[Path]) -> int:
    """Return how many bytes of memory these files take. Raises ``OSError``."""
    return sum(path.lstat().st_blocks * 512 for path in files)


def limits(
    folder: Path, ours: int = 0, proc: Path = PROC, cgroups: Path = CGROUPS, nodes: Path | None = None
) -> tuple[Room, ...]:
    """Return the limits on memory: the file system of ``folder``, the host's memory, the cgroups.

    ``ours`` bytes that are in use there count as free. Raises ``OSError`` if ``folder`` is not there.
    """
    system = os.statvfs(folder)
    room = Room(
        name=f"the file system of {folder}",
        total=system.f_blocks * system.f_frsize,
        free=system.f_bavail * system.f_frsize + ours,
        ours=ours,
    )
    host = numa.read_memory(proc, nodes)
    if host is None:
        return (room, *_cgroup_rooms(proc, cgroups, ours))
    but = f" (but {size_text(host.elsewhere)} at NUMA nodes without CPUs)" if host.elsewhere else ""
    free = min(host.available + ours, host.total)
    node = Room(name=f"{NODE}{but}", total=host.total, free=free, ours=ours)
    return (of_host(room, host), node, *_cgroup_rooms(proc, cgroups, ours))


_HALF = 0.01  # how near to half of all memory a size is that nobody has chosen


def of_host(room: Room, host: HostMemory) -> Room:
    """Return the room of a file system in memory with half of the host's only, if it has half of all memory.

    Pure. That is the size that the kernel gives it; one that a person has chosen stays.
    """
    whole = host.total + host.elsewhere
    beyond = room.total - host.total // 2
    if not host.elsewhere or beyond <= 0 or abs(2 * room.total - whole) > _HALF * whole:
        return room
    return Room(name=room.name, total=room.total - beyond, free=max(0, room.free - beyond), ours=room.ours)


def write_plan(folder: Path, rank: int, made: MemoryPlan) -> None:
    """Leave the plan of ``rank`` for the agent as ``plan-<rank>.json``. Raises ``OSError``."""
    write_atomically(folder / f"plan-{rank:05d}.json", msgspec.json.encode(made), durable=False)


def _cgroup_rooms(proc: Path, cgroups: Path, ours: int) -> Iterator[Room]:
    """Yield every cgroup with a limit from this process's own up to the root."""
    for group in memory_cgroups(proc, cgroups):
        limit, free = group.limit(), group.free()
        if limit is None or free is None:
            continue
        # Of the buffers only those count as used that were charged to this cgroup; a job that was requeued
        # finds some that are charged to its earlier run.
        charged = min(ours, group.stat("shmem"))
        yield Room(name=f"{_CGROUP} {group.folder}", total=limit, free=free + charged, ours=charged)


def _advice(short: Iterable[Room]) -> str:
    """Return what makes room for more; ``short`` are the limits that are in the way."""
    return "Give " + " and ".join(dict.fromkeys(map(_remedy, short)))


def _remedy(room: Room) -> str:
    if room.name.startswith(NODE):
        return "the job nodes with more memory"
    return "the job more memory (--mem)" if room.name.startswith(_CGROUP) else "the node a larger /dev/shm"


def usable(room: Room) -> float:
    """Return how many bytes of it snapshots may take."""
    return max(0.0, room.free - RESERVE * room.total, room.ours)


def _format_rung(rung: tuple[int, int]) -> str:
    own, peer = rung
    if not own:
        return "no snapshots in memory"
    text = f"{own} snapshot{'s' * (own > 1)} of each rank"
    return f"{text} and {peer} of each peer's" if peer else text


def _needs(size: int) -> str:
    return f" ({size_text(size)})" if size else ""


def _meaning(rung: tuple[int, int], nodes: int) -> str:
    return _MEANING[rung if nodes > 1 or rung[0] < 2 else (rung[0], 2)]
