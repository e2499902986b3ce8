"""Agents of many nodes in one process: its own state machine, heartbeats and socket, and made-up training.

``python -m benchmarks.scale_agents FOLDER FIRST LAST TOTAL STEP_S HEARTBEAT_S BEACON_S``. What is missing of
an agent is what belongs to its node: processes, snapshots, py-spy. Reports to ``agents-FIRST.json`` in the
folder at the end.
"""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import zmq
from msgspec import structs

from benchmarks import stacks
from slurm_robust.agent.copies.service import CopyNews
from slurm_robust.agent.heartbeat import HeartbeatState
from slurm_robust.agent.state import AgentState
from slurm_robust.agent.stimuli import (
    EndAgent,
    EndWorker,
    EpochSeen,
    Instruction,
    SendHeartbeat,
    Stimulus,
)
from slurm_robust.model.copies import Copy, Tier
from slurm_robust.model.progress import Traffic
from slurm_robust.model.stacks import RankStacks
from slurm_robust.util.process import raise_file_limit
from slurm_robust.wire import beacons
from slurm_robust.wire.keys import load_client
from slurm_robust.wire.messages import (
    Ack,
    DrillReply,
    Foreign,
    FromController,
    Inject,
    Launch,
    Phase,
    Pong,
    Progress,
    Refused,
    StacksShown,
    StacksTaken,
    Stop,
    TakeStacks,
    UpdateReply,
)
from slurm_robust.wire.sockets import AgentSocket
from slurm_robust.worker.spawning import Exited, Ready, Spawned

NPROC = 8
AGENTS_NICE = 5
TRAFFIC_S = 10.0
"""Counters of the network are read anew so often (``detect.network_s``)."""

STACKS_S = 3.0
"""py-spy is done within this time, by random."""

AT_ONCE = 20
"""Beacons sent without a pause."""

IMAGE_BYTES = 10**10
KEPT, PEER_KEPT = 3, 2
"""Whole snapshots of each own rank, and of each rank of another node."""


class Node:
    """One agent and its ranks, which all train at the same pace."""

    def __init__(self, number: int, step_s: float, heartbeat_s: float, socket: AgentSocket) -> None:
        self.name = f"n{number}"
        self.source = f"127.1.{number >> 8}.{number & 255}"
        self.socket = socket
        self._step_s, self._heartbeat_s = step_s, heartbeat_s
        self._state = AgentState(kill_wait_s=5.0)
        self._book = HeartbeatState(self.name, f"{self.name}-1-0", always_ready=False)
        self._book.address, self._book.port = f"10.{number >> 8}.{number & 255}.1", 4000
        self._launch: Launch | None = None
        self._launched = 0.0
        self._announced = True
        self._wanted = True
        self._due = random.uniform(0.0, heartbeat_s)
        self._taking: tuple[float, TakeStacks] | None = None
        self._taken = False
        self.ended = False
        self.heartbeats = self.bytes = 0
        self.failed_at: float | None = None  # when a worker of ours ended by itself
        self.stopped_at: float | None = None  # when the first order to stop came
        self._take(EpochSeen(epoch=1))
        self._take(Ready(import_s=4.0))

    def turn(self, now: float) -> None:
        """Obey what has come and send what is due."""
        while (order := self.socket.recv()) is not None:
            self._on_message(order)
        if self._taking is not None and now >= self._taking[0] and not self._taken:
            self._taken = self.socket.send(self._stacks(self._taking[1]))
        first = self._launch is not None and not self._announced and self._step(now) >= 0
        self._announced |= first
        if not (self._wanted or first or now >= self._due) or not self.socket.connected:
            return
        message = self._book.make(self._state, self._progress(now), now, self._copies(now), (), traffic(now))
        if self.socket.send(message):
            self._wanted, self._due = False, now + self._heartbeat_s
            self.heartbeats += 1
            if self.heartbeats % 10 == 0:
                self.bytes += 10 * len(msgspec.msgpack.encode(message))

    def _on_message(self, message: FromController | Foreign) -> None:
        match message:
            case Ack(seq=seq):
                self._book.on_ack(seq)
            case Pong() | DrillReply() | UpdateReply() | StacksShown() | Refused() | Foreign():
                raise AssertionError(f"not for agents: {message}")
            case _:
                if isinstance(message, Stop) and self.stopped_at is None:
                    self.stopped_at = time.monotonic()
                self._take(message)

    def _take(self, stimulus: Stimulus) -> None:
        for instruction in self._state.handle(stimulus, time.monotonic()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case SendHeartbeat():
                self._wanted = True
            case Launch() as launch:
                self._launch, self._launched, self._announced = launch, time.monotonic(), False
                for rank in launch.ranks:
                    self._take(Spawned(generation=launch.generation, rank=rank, pid=1000 + rank))
            case EndWorker(pid=pid):
                self._exit(pid - 1000, 15)
            case Inject(rank=rank, signal=number):
                self.failed_at = time.monotonic()
                self._exit(rank, number)
            case TakeStacks() as order if self._taking is None or self._taking[1].number < order.number:
                self._taking = time.monotonic() + random.uniform(0.5, STACKS_S), order
            case EndAgent():
                self.ended = True

    def _stacks(self, order: TakeStacks) -> StacksTaken:
        ranks = self._launch.ranks if self._launch is not None else ()
        shown = (structs.replace(waiting(), rank=rank, node=self.name) for rank in ranks)
        return StacksTaken(
            node=self.name, generation=order.generation, number=order.number, stacks=tuple(shown)
        )

    def _exit(self, rank: int, number: int) -> None:
        now = time.monotonic()
        exited = Exited(
            generation=self._state.generation, rank=rank, pid=1000 + rank, ended=now, signal=number
        )
        self._take(exited)

    # -- the training --------------------------------------------------------------------------------

    def _step(self, now: float) -> int:
        return int((now - self._launched) / self._step_s) - 1

    def _progress(self, now: float) -> tuple[Progress, ...]:
        if self._launch is None or self._state.phase is not Phase.RUNNING:
            return ()
        step, base = self._step(now), 0
        if self._launch.restore:
            base = self._launch.restore.step + 1
        age_s = (now - self._launched) % self._step_s if step >= 0 else now - self._launched
        shown = base + step if step >= 0 else -1
        return tuple(
            Progress(
                rank=rank,
                step=shown,
                reported=step >= 0,
                age_s=age_s,
                loss=2.0 + 1.0 / (2 + step),
                grad_norm=1.0,
                phase_s=age_s,
            )
            for rank in self._launch.ranks
        )

    def _copies(self, now: float) -> CopyNews:
        launch = self._launch
        if launch is None:
            return CopyNews(port=5000)
        newest = max((p.step for p in self._progress(now)), default=-1)
        if newest < 0:
            return CopyNews(port=5000, copies=self._kept)
        others = (peer_source(rank, launch) for rank in launch.ranks)
        self._kept = (
            *self._held(launch.ranks, newest, KEPT, Tier.MEMORY),
            *self._held(others, newest, PEER_KEPT, Tier.PEER),
        )
        return CopyNews(port=5000, copies=self._kept, lag_s=0.2)

    _kept: tuple[Copy, ...] = ()

    def _held(self, ranks: Iterable[int], newest: int, kept: int, tier: Tier) -> tuple[Copy, ...]:
        generation = self._state.generation
        return tuple(
            Copy(rank=rank, generation=generation, step=step, tier=tier, nbytes=IMAGE_BYTES)
            for rank in ranks
            for step in range(max(0, newest - kept + 1), newest + 1)
        )


@cache
def waiting() -> RankStacks:
    """A rank with helpers, of some 150 calls in all; made once, or its making would be what takes time."""
    return stacks.pipeline(0)


def peer_source(rank: int, launch: Launch) -> int:
    """Whose second copy this node has, for one of its own ranks."""
    return (rank + launch.world_size // 2) % launch.world_size


def traffic(now: float) -> Traffic:
    read_at = now // TRAFFIC_S * TRAFFIC_S
    return Traffic(silent_s=0.0, pause_s=1.0, talked_s=read_at)


def send_beacons(key: str, agents: list[str], port: int, interval_s: float) -> None:
    """Those of all agents of this process, evenly over each interval; runs for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect(("127.0.0.1", port))
        seq, due = time.time_ns(), time.monotonic()
        while True:
            seq += 1
            for number, agent in enumerate(agents, start=1):
                try:
                    sender.send(beacons.encode(key.encode(), agent, seq))
                except OSError:
                    pass  # the controller has ended
                if number % AT_ONCE == 0 or number == len(agents):
                    due += interval_s * ((number - 1) % AT_ONCE + 1) / len(agents)
                    time.sleep(max(0.0, due - time.monotonic()))


def main(
    folder: Path, first: int, last: int, total: int, step_s: float, heartbeat_s: float, beacon_s: float
) -> int:
    """Serve until all agents were told to end, or the controller's port file is gone."""
    raise_file_limit()
    os.nice(AGENTS_NICE)  # on a cluster they run elsewhere
    keys = load_client(folder / "keys")
    port = folder / "port"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, last - first + 10)
    nodes = [
        Node(number, step_s, heartbeat_s, AgentSocket(keys, f"n{number}", context=context))
        for number in range(first, last)
    ]
    for node in nodes:
        # From an address of its own, as on a cluster: a source of many unproven connections is kept out.
        node.socket.connect([f"tcp://{node.source}:0;127.0.0.1:{int(port.read_text())}"])
    if beacon_s:
        agents = [f"{node.name}-1-0" for node in nodes]
        sending = (keys.client.public, agents, int(port.read_text()), beacon_s)
        threading.Thread(target=send_beacons, args=sending, daemon=True).start()
    # A round over all sockets costs some µs for each, and all processes share the machine.
    pause_s = 0.02 + 5e-5 * total
    while port.exists() and not all(node.ended for node in nodes):
        for node in nodes:
            node.turn(time.monotonic())
        time.sleep(pause_s)
    heartbeats = sum(node.heartbeats for node in nodes)
    found = {
        "heartbeats": heartbeats,
        "heartbeat_bytes": sum(node.bytes for node in nodes) / heartbeats,
        "failed_at": next((node.failed_at for node in nodes if node.failed_at), None),
        "stopped_at": [node.stopped_at for node in nodes if node.stopped_at is not None],
        "cpu_s": time.process_time(),
    }
    (folder / f"agents-{first}.json").write_text(json.dumps(found))
    for node in nodes:
        node.socket.close()
    return 0


if __name__ == "__main__":
    folder, first, last, total, *intervals = sys.argv[1:]
    step_s, heartbeat_s, beacon_s = map(float, intervals)
    sys.exit(main(Path(folder), int(first), int(last), int(total), step_s, heartbeat_s, beacon_s))
