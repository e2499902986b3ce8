"""The flight recorder of a worker, asked at the server that PyTorch runs in threads of C++.

The server (``torch._C._distributed_c10d._WorkerServer``) answers whichever thread holds the interpreter.
gloo's entries are at ``fr_trace_json`` and those of ``ProcessGroupNCCL`` at ``dump_nccl_trace_json``. The
backends nccl2 and nccl-lazy have recorders of their own at ``fr_trace_json``, by a parameter that releases
without them ignore (``control_plane/Handlers.cpp``): their answer is gloo's again. These recorders show only
what has not completed.
"""

from __future__ import annotations

import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.model.stacks import POINT_TO_POINT, Collective

HANDLERS = {
    "gloo": "fr_trace_json",
    "nccl2": "fr_trace_json?backend=nccl2",
    "nccl-lazy": "fr_trace_json?backend=nccl-lazy",
    # At the end: it asks the driver, and waits for it.
    "nccl": "dump_nccl_trace_json",
}
"""Where each library's recorder answers."""

_HOOKED = ("nccl2", "nccl-lazy")
"""Hooks record for them: which sends and receives are one kernel is not shown. If the backend does not tell
what has ended, entries are retired as they are made, and nothing is known of the group.
"""

_COMPLETED = "completed"
_PEER = re.compile(r"(?:->|<-)\s*(\d+)")
_CHUNK_BYTES = 256 * 1024


class _Entry(Record):
    collective_seq_id: int = 0
    p2p_seq_id: int = 0
    is_p2p: bool = False
    process_group: tuple[str, ...] = ()
    profiling_name: str = ""
    retired: bool = False
    state: str = ""


class _Group(Record):
    desc: str = ""
    ranks: str = ""


class _Dump(Record):
    entries: tuple[_Entry, ...] = ()
    pg_config: dict[str, _Group] = {}


# Made while there is one thread; see Record.
_dumps = msgspec.json.Decoder(_Dump)


class Recorded(Record):
    """What the flight recorders of a worker have answered."""

    collectives: tuple[Collective, ...] = ()
    """As in :class:`.RankStacks`."""
    idle: tuple[str, ...] = ()
    """As in :class:`.RankStacks`."""


def take(address: Path, deadline: float) -> Recorded:
    """Take what the worker's process groups did last, at the latest at ``deadline`` (monotonic seconds).

    Holds nothing if the worker does not answer.
    """
    answers: dict[bytes, str] = {}
    for library, handler in HANDLERS.items():
        answers.setdefault(ask(address, handler, deadline), library)
    found = [parse(answer, library) for answer, library in answers.items()]
    return Recorded(
        collectives=tuple(collective for each in found for collective in each.collectives),
        idle=tuple(group for each in found for group in each.idle),
    )


def ask(address: Path, handler: str, deadline: float) -> bytes:
    """Ask one handler of PyTorch's server at socket ``address``, empty when there is none."""
    chunks: list[bytes] = []
    try:
        with socket.socket(socket.AF_UNIX) as server:
            _limit(server, deadline)
            server.connect(str(address))
            server.sendall(f"POST /handler/{handler} HTTP/1.0\r\nContent-Length: 0\r\n\r\n".encode())
            while chunk := server.recv(_CHUNK_BYTES):
                chunks.append(chunk)
                _limit(server, deadline)
    except OSError:
        return b""
    head, _, body = b"".join(chunks).partition(b"\r\n\r\n")
    return body if b" 200 " in head.partition(b"\r\n")[0] else b""


def parse(dump: bytes, library: str) -> Recorded:
    """Parse from the JSON of a library's recorder how far each process group is; nothing from anything else.

    The result holds the oldest collective that has not completed (the newest if all have) with the newest
    number, and under the group's name with ``:p2p`` the oldest send or receive that has not completed: these
    are counted apart, and differently on each rank. Groups without either are idle.
    """
    try:
        found = _dumps.decode(dump)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Recorded()
    operations: dict[tuple[str, int], _Operation] = {}
    untold: set[str] = set()
    for entry in found.entries:  # oldest first
        group = ":".join(entry.process_group)
        if library in _HOOKED and entry.retired and entry.state != _COMPLETED:
            untold.add(f"{library}:{group}")
            continue
        number = entry.collective_seq_id
        if entry.is_p2p:
            group, number = f"{group}{POINT_TO_POINT}", entry.p2p_seq_id
        operations.setdefault((group, number), _Operation()).entries.append(entry)
    newest: dict[str, int] = {}
    oldest: dict[str, int] = {}
    for (group, number), operation in operations.items():
        newest[group] = number
        if operation.state != _COMPLETED:
            oldest.setdefault(group, number)
    # Dictionaries keep the order: what has not completed as it was enqueued, then the rest.
    at = oldest | {group: newest[group] for group in newest if group not in oldest}
    open_: defaultdict[str, list[_Entry]] = defaultdict(list)
    for (group, _), operation in operations.items() if library in _HOOKED else ():
        open_[group] += operation.entries if operation.state != _COMPLETED else []
    collectives = tuple(
        operations[group, number].collective(group, newest[group], found.pg_config, open_[group])
        for group, number in at.items()
        if group in oldest or not operations[group, number].is_p2p
    )
    shown = untold.union(collective.recorded_as for collective in collectives)
    # gloo's recorder has one group without name and ranks.
    groups = (f"{library}:{name}:{group.desc}" for name, group in found.pg_config.items() if _numbers(group))
    return Recorded(collectives=collectives, idle=tuple(name for name in groups if name not in shown))


class _Operation:
    """The entries of one number: several if torch coalesces operations into one kernel.

    Those are recorded one by one without events, so that they stay ``scheduled``, and behind them one entry
    ``coalesced`` with the state of the kernel (``ProcessGroupNCCL::endCoalescing``).
    """

    def __init__(self) -> None:
        self.entries: list[_Entry] = []

    @property
    def is_p2p(self) -> bool:
        return self.entries[0].is_p2p

    @property
    def state(self) -> str:
        return _state(self.entries[-1])

    def collective(
        self, group: str, newest: int, groups: dict[str, _Group], together: Sequence[_Entry]
    ) -> Collective:
        """Return how far the group is; ``together``: what may be one kernel with this, if none is shown."""
        first, last = self.entries[0], self.entries[-1]
        # Of several sends and receives in one kernel there is one operation, with several peers.
        several = self.is_p2p and len(self.entries) > 2
        kernel = together or self.entries if self.is_p2p else ()
        peers = {int(peer) for entry in kernel for peer in _PEER.findall(entry.profiling_name)}
        return Collective(
            group=group,
            sequence=last.p2p_seq_id if self.is_p2p else last.collective_seq_id,
            operation=(last if several else first).profiling_name,
            state=self.state,
            ranks=_ranks(groups, last.process_group),
            enqueued=newest,
            peers=tuple(sorted(peers)) if several or len(peers) > 1 else (),
        )


def _state(entry: _Entry) -> str:
    # gloo's operations stay "scheduled" to their end, and only then are retired.
    return _COMPLETED if entry.retired and entry.profiling_name.startswith("gloo:") else entry.state


def _ranks(groups: dict[str, _Group], names: Iterable[str]) -> tuple[int, ...]:
    return _numbers(next((groups[name] for name in names if name in groups), _Group()))


def _numbers(group: _Group) -> tuple[int, ...]:
    return tuple(int(rank) for rank in re.findall(r"\d+", group.ranks))


def _limit(server: socket.socket, deadline: float) -> None:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    server.settimeout(left)
