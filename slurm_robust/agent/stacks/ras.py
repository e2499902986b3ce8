"""NCCL's own view of a job: which processes its RAS network misses.

Since 2.24 every process that uses NCCL has a thread that watches some others, and one of each node answers
at a TCP port (NCCL's manual, troubleshooting, RAS). The conversation is that of ``ncclras -f json`` of 2.28.7
and later (``src/ras/client.cc``, ``client_support.cc``); the answer covers the whole job, so one node is
asked.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping

import msgspec

from slurm_robust.model.record import Record
from slurm_robust.model.stacks import Absent

ADDRESS = "localhost:28028"
"""Unless ``NCCL_RAS_ADDR`` names another one."""

_LEG_S = 1
"""How long NCCL waits for a process that does not answer, instead of 5 s."""

_LINE_BYTES = 1024
_CHUNK_BYTES = 1024 * 1024


class _Status(Record):
    considered_dead: bool = False


class _Missing(Record):
    rank: int
    status: _Status = _Status()


class _Communicator(Record):
    size: int
    missing_ranks: tuple[_Missing, ...] = ()


class _Answer(Record):
    communicators: tuple[_Communicator, ...] = ()


# Made while there is one thread; see Record.
_answers = msgspec.json.Decoder(_Answer)


def take(environ: Mapping[str, str], deadline: float) -> tuple[Absent, ...]:
    """Return the processes that RAS misses, asked until ``deadline`` (monotonic seconds).

    Returns () if RAS does not answer.
    """
    host, _, port = environ.get("NCCL_RAS_ADDR", ADDRESS).rpartition(":")
    if environ.get("NCCL_RAS_ENABLE") == "0" or not port.isdecimal():
        return ()
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _left(deadline)) as server:
            return parse(_ask(server, deadline))
    except (OSError, OverflowError):
        return ()


def parse(answer: bytes) -> tuple[Absent, ...]:
    """Parse the processes that are missing in each communicator; nothing from anything but RAS's JSON."""
    try:
        found = _answers.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ()
    absent = (
        Absent(rank=missing.rank, size=communicator.size, dead=missing.status.considered_dead)
        for communicator in found.communicators
        for missing in communicator.missing_ranks
    )
    return tuple(dict.fromkeys(absent))


def _ask(server: socket.socket, deadline: float) -> bytes:
    orders = ("CLIENT PROTOCOL 2", "SERVER PROTOCOL"), (f"TIMEOUT {_LEG_S}", "OK"), ("SET FORMAT json", "OK")
    for order, expected in orders:
        server.sendall(f"{order}\n".encode())
        if not _line(server, deadline).startswith(expected.encode()):
            return b""  # an older release, or something else that listens there
    server.sendall(b"STATUS\n")
    chunks: list[bytes] = []
    while chunk := _some(server, deadline):
        chunks.append(chunk)
    return b"".join(chunks)


def _line(server: socket.socket, deadline: float) -> bytes:
    # Nothing follows a line before the next order.
    line = b""
    while not line.endswith(b"\n") and len(line) < _LINE_BYTES and (chunk := _some(server, deadline)):
        line += chunk
    return line


def _some(server: socket.socket, deadline: float) -> bytes:
    server.settimeout(_left(deadline))
    return server.recv(_CHUNK_BYTES)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
