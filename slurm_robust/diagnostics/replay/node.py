"""``python -m slurm_robust.diagnostics.replay.node``: one node's part of a group, started by srun.

The first node of the group chooses the port where its ranks meet and leaves it in the group's folder. Each
node then starts its ranks and adds to each one's digests how it ended.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec

from slurm_robust.agent.network import PortHolder, local_address
from slurm_robust.agent.rankenv import prepare_inherited, torch_release, torchrun
from slurm_robust.diagnostics.replay.rank import PARENT
from slurm_robust.diagnostics.replay.traces import leave_failure, output_path, trace_path
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.worker import environment
from slurm_robust.worker.replay import ENVIRONMENT, REPLAY, REPLAY_STEPS, ReplayEnd, add_line

_POLL_S = 0.1
_RENDEZVOUS = "rendezvous"
# A replay is not a run of the job: it restores nothing, writes no checkpoint and reports to no agent.
_OF_A_RUN = (environment.RUN_ID, environment.JOB_DIR, environment.RECORD, environment.GENERATION)


class Task(Record):
    """A group's work, the same for all its nodes, which are named in the order of their ranks.

    ``folder`` is the group's own on storage of all nodes, ``cwd`` where the script runs; ``limit_s`` seconds
    are given to it all. ``ports`` are those to meet at, (0,) for any free one.
    """

    folder: str
    nodes: tuple[str, ...]
    nproc: int
    steps: int
    limit_s: float
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    ports: tuple[int, ...] = (0,)

    def command_line(self) -> tuple[str, ...]:
        """The command that does one node's part of it."""
        module = "slurm_robust.diagnostics.replay.node"
        return (sys.executable, "-m", module, msgspec.json.encode(self).decode())


def main() -> int:
    """Run this node's ranks to their end; 0 however they ended, 3 if nobody said in time where to meet."""
    task = msgspec.json.decode(sys.argv[1], type=Task)
    deadline = time.monotonic() + task.limit_s
    folder = Path(task.folder)
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    index = task.nodes.index(node)
    os.chdir(task.cwd)
    holder = PortHolder(task.ports) if index == 0 else None
    if holder is not None:
        _announce(folder, node, holder.port)
    place = _await_place(folder, deadline)
    if place is None:
        return 3
    if holder is not None:
        holder.open()
    ranks = range(index * task.nproc, (index + 1) * task.nproc)
    _watch(folder, node, {rank: _start(task, place, rank) for rank in ranks}, deadline)
    return 0


def _announce(folder: Path, name: str, port: int) -> None:
    # The way to the node of srun is the way to the other nodes, which a name may not be.
    peer = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or name
    beside = folder / f"{_RENDEZVOUS}.tmp"
    beside.write_text(f"{local_address(peer, port)} {port}")
    beside.rename(folder / _RENDEZVOUS)


def _await_place(folder: Path, deadline: float) -> tuple[str, int] | None:
    """Address and port of rank 0; None when they do not come in time."""
    while _RENDEZVOUS not in os.listdir(folder):
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    address, port = (folder / _RENDEZVOUS).read_text().split()
    return address, int(port)


def _start(task: Task, place: tuple[str, int], rank: int) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in _OF_A_RUN}
    prepare_inherited(inherited, torch_release())
    slot, local = divmod(rank, task.nproc)
    slots = len(task.nodes)
    own = torchrun(
        rank,
        local,
        task.nproc,
        slot=slot,
        slots=slots,
        world_size=slots * task.nproc,
        address=place[0],
        port=place[1],
    )
    own[REPLAY], own[REPLAY_STEPS] = str(trace_path(Path(task.folder), rank)), str(task.steps)
    own[PARENT] = str(os.getpid())
    command = [sys.executable, "-m", "slurm_robust.diagnostics.replay.rank", task.kind.value, *task.command]
    with output_path(Path(task.folder), rank).open("ab") as output:
        return subprocess.Popen(
            command,
            env={**ENVIRONMENT, **inherited, **own},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _watch(folder: Path, node: str, ranks: dict[int, subprocess.Popen[bytes]], deadline: float) -> None:
    """Wait until all have ended, one has failed, or the time is over; ends those that are left."""
    left = dict(ranks)
    try:
        while left and time.monotonic() < deadline:
            for rank, child in list(left.items()):
                code = child.poll()
                if code is None:
                    continue
                del left[rank]
                add_line(trace_path(folder, rank), ReplayEnd(code=code))
                if code:
                    ended = (
                        WorkerExit(rank=rank, code=code) if code > 0 else WorkerExit(rank=rank, signal=-code)
                    )
                    leave_failure(folder, f"on {node} {ended.describe()}")
                    return
            time.sleep(_POLL_S)
    finally:
        for child in left.values():
            child.kill()


if __name__ == "__main__":
    sys.exit(main())
