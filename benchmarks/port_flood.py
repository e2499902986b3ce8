"""A stranger without the job's key floods the controller's port: are agents served meanwhile?

The controller's socket is in a process of its own, with the limits that Slurm hands on by default. The
stranger has another address of this machine. Kinds of flood: ``idle`` connections that say nothing,
``pouring`` ones that begin a frame of 16 MiB and do not end it, ``churn``: garbage, and the next one. An
agent counts as served within 1 s from its first packet, CURVE included.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import socket
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import zmq
from rich.table import Table

from benchmarks import common
from slurm_robust.util.process import raise_file_limit
from slurm_robust.wire.keys import create_keys, load_client, load_server
from slurm_robust.wire.messages import Ping, Pong
from slurm_robust.wire.sockets import Client, ControllerSocket

KINDS = ("idle", "pouring", "churn")
RATES = (300, 1000, 3000)
SECONDS = 8.0
SERVED_S, PATIENCE_S = 1.0, 3.0
LIMITS = (1024, 4096)
"""Open files, soft and hard."""

STRANGER = "127.0.0.2"
MAX_HELD = 12_000
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\0" + bytes(31)
FRAME = b"\x06" + struct.pack(">Q", 16 * 1024 * 1024)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, write build/bench/port_flood.json."""
    options = common.parser(__doc__, 1)
    options.add_argument("--rates", type=int, nargs="+", default=RATES, help="connections per second")
    options.add_argument("--label", default="", help="put into the file and its name")
    chosen = options.parse_args(argv)
    runs: list[dict[str, object]] = []
    for kind, rate, _ in product(KINDS, (0, *chosen.rates), range(chosen.reps)):
        if rate or kind == KINDS[0]:
            runs.append(measure(kind, rate))
            print(runs[-1], file=sys.stderr)
    name = "port_flood" + (f"_{chosen.label}" if chosen.label else "")
    path = common.write(name, {"machine": common.machine(), "label": chosen.label, "runs": runs})
    show(runs)
    print(f"written to {path}", file=sys.stderr)
    return 0


def measure(kind: str, rate: int) -> dict[str, object]:
    """One controller, one flood."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    with tempfile.TemporaryDirectory(prefix="srobust-flood-") as folder:
        create_keys(Path(folder, "keys"))
        controller = spawn.Process(target=serve, args=(Path(folder, "keys"), theirs))
        controller.start()
        port = ours.recv()
        stranger = spawn.Process(target=flood, args=(kind, rate, port, SECONDS, theirs))
        stranger.start()
        process = psutil.Process(controller.pid)
        cpu, began = sum(process.cpu_times()[:2]), time.monotonic()
        served, most = watch(Path(folder, "keys"), port, process)
        share = (sum(process.cpu_times()[:2]) - cpu) / (time.monotonic() - began)
        stranger.join()
        made = ours.recv()
        ours.send("end")
        told = ours.recv()
        controller.join()
    joined, steady = served["joined"], served["steady"]
    return {
        "kind": kind,
        "rate": rate,
        "connections_made": made,
        "new_agents": len(joined),
        "new_agents_served": sum(s <= SERVED_S for s in joined),
        "new_agent_longest_s": round(max(joined), 3),
        "known_agent_longest_s": round(max(steady), 3),
        "controller_cpu_share": round(share, 2),
        **most,
        **told,
    }


def watch(keys: Path, port: int, process: psutil.Process) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Seconds that agents waited for an answer, and the most that the controller took of each thing."""
    endpoint = f"tcp://127.0.0.1:{port}"
    joined: list[float] = []
    steady: list[float] = []
    descriptors = memory = 0
    until = time.monotonic() + SECONDS
    with closing(Client((endpoint,), load_client(keys))) as known:
        known.ask(Ping(), PATIENCE_S)
        while time.monotonic() < until:
            steady.append(timed(known))
            with closing(Client((endpoint,), load_client(keys))) as new:
                joined.append(timed(new))
            descriptors = max(descriptors, process.num_fds())
            memory = max(memory, process.memory_info().rss >> 20)
            time.sleep(0.2)
    return {"joined": joined, "steady": steady}, {"descriptors": descriptors, "memory_mib": memory}


def timed(agent: Client) -> float:
    """Seconds until ``agent`` was answered, or the patience where it was not."""
    began = time.monotonic()
    agent.ask(Ping(), PATIENCE_S)
    return time.monotonic() - began


def serve(keys: Path, pipe: Connection) -> None:
    """The controller: answers, and tries to open a file a few times a second."""
    resource.setrlimit(resource.RLIMIT_NOFILE, LIMITS)
    raise_file_limit()
    refused = 0
    with closing(ControllerSocket(load_server(keys))) as server:
        pipe.send(server.port)
        poller = zmq.Poller()
        poller.register(server.socket, zmq.POLLIN)
        poller.register(pipe.fileno(), zmq.POLLIN)
        while not pipe.poll():
            poller.poll(200)
            while (got := server.recv()) is not None:
                server.send(got[0], Pong(epoch=1, host="h", pid=1))
            try:
                os.close(os.open(keys, os.O_RDONLY))
            except OSError:
                refused += 1
        pipe.send({"files_not_opened": refused})


def flood(kind: str, rate: int, port: int, seconds: float, pipe: Connection) -> None:
    """The stranger."""
    raise_file_limit()
    held: deque[socket.socket] = deque()
    began, made = time.monotonic(), 0
    while (now := time.monotonic()) - began < seconds:
        while made < rate * (now - began):
            made += 1
            if (connection := connect_to(kind, port)) is not None:
                held.append(connection)
            if len(held) > MAX_HELD:
                held.popleft().close()
        time.sleep(0.002)
    for connection in held:
        connection.close()
    pipe.send(made)


def connect_to(kind: str, port: int) -> socket.socket | None:
    """One connection, of which nobody waits for anything."""
    connection = socket.socket()
    connection.setblocking(False)
    try:
        connection.bind((STRANGER, 0))
        if connection.connect_ex(("127.0.0.1", port)) not in (0, errno.EINPROGRESS):
            connection.close()
            return None
        if kind == "pouring":
            connection.send(GREETING + FRAME + bytes(1 << 20))
        elif kind == "churn":
            connection.send(os.urandom(64))
            connection.close()
            return None
    except OSError:
        pass  # kept out, or no room for more: it stays as it is
    return connection


def show(runs: list[dict[str, object]]) -> None:
    """The runs as a table."""
    table = Table(*runs[0])
    for run in runs:
        table.add_row(*map(str, run.values()))
    common.console().print(table)


if __name__ == "__main__":
    sys.exit(main())
