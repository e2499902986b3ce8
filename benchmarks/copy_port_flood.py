"""What strangers without the job's key cost the port for copies: agents' connections while others flood it.

The server is a process of its own. Each stranger is a process that opens connections as fast as one core can,
and says nothing, or the first half of the handshake; agents connect one after the other meanwhile. All on the
loopback interface and from one address, the worst case: nothing there tells an agent from a stranger.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import psutil
from rich.table import Table

from benchmarks import common
from slurm_robust.agent.copies.notes import Notes
from slurm_robust.agent.copies.server import CopyServer
from slurm_robust.model.copies import CheckpointId
from slurm_robust.util.process import raise_file_limit
from slurm_robust.wire.copychannel import CopyChannel, Get, derive_key
from slurm_robust.wire.network import bind_free

REPS = 40
"""Agents in each round."""

KEY = derive_key("the job's secret")
HALF = b"SRCOPY\0\1" + bytes(32)
HELD = 200
ROUND_S = 30.0
CALM_S = 0.5

ROUNDS: tuple[tuple[str, int, bytes], ...] = (
    ("nobody else", 0, b""),
    ("one, silent", 1, b""),
    ("one, with half a handshake", 1, HALF),
    ("two, silent", 2, b""),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/copy_port_flood.json."""
    options = common.parser(__doc__, REPS).parse_args(argv)
    machine = common.machine()
    raise_file_limit()
    table = Table(
        "strangers", "connections/s", "agents served", "median ms", "slowest ms", "server's CPU", box=None
    )
    found = {}
    for name, strangers, words in ROUNDS:
        found[name] = row = measure(strangers, words, options.reps)
        table.add_row(
            name,
            f"{row['connections_per_s']:,.0f}",
            f"{row['served']} of {row['tried']}",
            f"{row['median_ms']:.1f}",
            f"{row['slowest_ms']:.1f}",
            f"{row['cpu']:.0%}",
        )
    common.write("copy_port_flood", {"machine": machine, "rounds": found})
    common.console().print(table)
    return 0


def measure(strangers: int, words: bytes, agents: int) -> dict[str, float]:
    """Run one round against ``strangers`` processes that flood the port."""
    with child(serve) as (server, said):
        port = int(said())
        with several(strangers, lambda tell: flood(port, words, tell)) as counts:
            time.sleep(CALM_S)
            process = psutil.Process(server)
            cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
            took = [connected(port) for _ in within(agents, began + ROUND_S)]
            seconds = time.monotonic() - began
            opened = sum(count() for count in counts)
            cpu = sum(process.cpu_times()[:2]) - cpu
    good = [1000 * one for one in took if one is not None] or [float("nan")]
    return {
        "tried": len(took),
        "served": sum(one is not None for one in took),
        "median_ms": statistics.median(good),
        "slowest_ms": max(good),
        "connections_per_s": opened / (seconds + CALM_S),
        "cpu": cpu / seconds,
    }


def within(count: int, until: float) -> Iterator[int]:
    """Numbers up to ``count``, until it is too late for another."""
    for number in range(count):
        if time.monotonic() > until:
            return
        yield number


def connected(port: int) -> float | None:
    """Seconds until an agent was let in and was answered; None if it was not."""
    began = time.monotonic()
    try:
        channel = CopyChannel.connect("127.0.0.1", port, KEY)
        channel.send(Get(run_id="another", rank=0, checkpoint=CheckpointId(generation=1, step=1)))
        channel.answer()
        channel.close()
    except OSError:
        return None
    return time.monotonic() - began


def serve(tell: Callable[[str], None]) -> None:
    """The agent's side, which holds nothing that anybody could ask for."""
    listener = bind_free()
    nothing = cast(Any, None)
    server = CopyServer(listener, KEY, run_id="x", parts=nothing, buffers=nothing, notes=Notes())
    tell(str(listener.getsockname()[1]))
    signal.pause()
    server.close()


def flood(port: int, words: bytes, tell: Callable[[str], None]) -> None:
    """Open connections for ever, the newest ``HELD`` of which stay open; on USR1 tell how many."""
    opened = 0
    signal.signal(signal.SIGUSR1, lambda *_: tell(str(opened)))
    held: list[socket.socket] = []
    tell("ready")
    while True:
        one = socket.socket()
        one.setblocking(False)
        try:
            one.connect(("127.0.0.1", port))
        except BlockingIOError:
            pass  # it does not wait to be served
        except OSError:
            one.close()
            continue
        try:
            opened += bool(not words or one.send(words))
        except OSError:
            pass  # not connected yet, or shut already
        held.append(one)
        if len(held) > HELD:
            for old in held[: HELD // 2]:
                old.close()
            del held[: HELD // 2]


@contextmanager
def child(do: Callable[[Callable[[str], None]], None]) -> Iterator[tuple[int, Callable[[], str]]]:
    """A forked process and what it tells, line by line."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = os.fdopen(write, "w")
        try:
            do(lambda text: print(text, file=told, flush=True))
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as lines:
        try:
            yield pid, lines.readline
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@contextmanager
def several(number: int, do: Callable[[Callable[[str], None]], None]) -> Iterator[list[Callable[[], int]]]:
    """So many processes; each answers a call with its count."""
    if not number:
        yield []
        return
    with child(do) as (pid, said), several(number - 1, do) as others:
        said()

        def count() -> int:
            os.kill(pid, signal.SIGUSR1)
            return int(said())

        yield [count, *others]


if __name__ == "__main__":
    sys.exit(main())
