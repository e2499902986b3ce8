"""``python -m slurm_robust.diagnostics.replay.node``: one node's part of a group, started by srun.

The first node of the group chooses the port at which its ranks meet and leaves it in the group's folder. Each
node then starts its ranks and adds to each one's digests how it ended. What the ranks left in the folder is
gathered by :func:`group_run`, on the controller's side.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import xxhash

from slurm_robust.analysis.logs.ranks import root_exit
from slurm_robust.analysis.replay import GroupRun
from slurm_robust.model.exits import WorkerExit
from slurm_robust.model.incident import NodeExit
from slurm_robust.model.job import CommandKind
from slurm_robust.model.nodefolders import REHEARSAL, SHARED_MEMORY, folder_name
from slurm_robust.model.record import Record
from slurm_robust.releases.store import ReleaseStore
from slurm_robust.util.files import read_tail
from slurm_robust.util.hostlist import fold
from slurm_robust.wire.network import PortHolder, local_address
from slurm_robust.worker.copied import CopiedCode
from slurm_robust.worker.copying import cannot_run_in, make_copy, manifest_of
from slurm_robust.worker.environment import OF_A_RUN
from slurm_robust.worker.replay import (
    CODE,
    ENVIRONMENT,
    PARENT,
    REPLAY,
    REPLAY_STEPS,
    Gradients,
    Line,
    Loss,
    Machine,
    ReplayEnd,
    add_line,
    read_lines,
)
from slurm_robust.worker.torchrun import prepare_inherited, torch_release, torchrun

_POLL_S = 0.1
_RENDEZVOUS = "rendezvous"


class ReplayedRelease(Record):
    """A release whose code is replayed."""

    name: str
    folder: str
    """The job's ``releases/``."""
    run_id: str


class ReplayTask(Record):
    """A group's work, the same for all its nodes."""

    folder: str
    """The group's own, on storage of all nodes."""
    nodes: tuple[str, ...]
    """In the order of their ranks."""
    nproc: int
    steps: int
    limit_s: float
    """Seconds for it all."""
    kind: CommandKind
    command: tuple[str, ...]
    cwd: str
    """The folder in which the script runs."""
    ports: tuple[int, ...] = (0,)
    """Ports to meet at, (0,) for any free one."""
    release: ReplayedRelease | None = None
    """Whose code it is, None for the code in its place."""

    def command_line(self) -> tuple[str, ...]:
        """Return the command that does one node's part of it."""
        module = "slurm_robust.diagnostics.replay.node"
        return (sys.executable, "-m", module, msgspec.json.encode(self).decode())


def main() -> int:
    """Run this node's ranks to their end; 0 however they ended, 3 if no address to meet at came in time."""
    task = msgspec.json.decode(sys.argv[1], type=ReplayTask)
    deadline = time.monotonic() + task.limit_s
    folder = Path(task.folder)
    node = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    index = task.nodes.index(node)
    os.chdir(task.cwd)
    holder = PortHolder(task.ports) if index == 0 else None
    if holder is not None:
        # The way to the node of srun is the way to the other nodes, which a name may not be.
        peer = os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or node
        beside = folder / f"{_RENDEZVOUS}.tmp"
        beside.write_text(f"{local_address(peer, holder.port)} {holder.port}")
        beside.rename(folder / _RENDEZVOUS)
    place = _await_place(folder, deadline)
    if place is None:
        return 3
    if holder is not None:
        holder.open()
    ranks = range(index * task.nproc, (index + 1) * task.nproc)
    with _code(task) as (code, env):
        _watch(folder, node, {rank: _start(task, place, rank, code, env) for rank in ranks}, deadline)
    return 0


@contextmanager
def _code(task: ReplayTask) -> Iterator[tuple[CopiedCode | None, dict[str, str]]]:
    """Have a copy of the release for this replay alone, and the variables that it sets.

    Raises ``OSError``, ``SrobustError``: ranks of one replay never run different code.
    """
    if task.release is None:
        yield None, {}
        return
    store = ReleaseStore(Path(task.release.folder))
    release = store.read(task.release.name)
    env = store.env(release.name)
    if not release.code:
        yield None, env
        return
    memory = SHARED_MEMORY
    base = (
        Path(tempfile.gettempdir()) if cannot_run_in(memory, manifest_of(store, release), release) else memory
    )
    with tempfile.TemporaryDirectory(prefix=folder_name(task.release.run_id, "-replay-"), dir=base) as own:
        code = make_copy(store, release, Path(own) / REHEARSAL / release.name)
        path = code.python_path(env.get("PYTHONPATH", os.environ.get("PYTHONPATH")), sys.path, task.cwd)
        yield code, {**env, "PYTHONPATH": path}


def _await_place(folder: Path, deadline: float) -> tuple[str, int] | None:
    """Wait for address and port of rank 0; None if they do not come in time."""
    while _RENDEZVOUS not in os.listdir(folder):
        if time.monotonic() > deadline:
            return None
        time.sleep(_POLL_S)
    address, port = (folder / _RENDEZVOUS).read_text().split()
    return address, int(port)


def _start(
    task: ReplayTask, place: tuple[str, int], rank: int, code: CopiedCode | None, env: dict[str, str]
) -> subprocess.Popen[bytes]:
    inherited = {name: value for name, value in os.environ.items() if name not in OF_A_RUN}
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
    if code is not None:
        own[CODE] = msgspec.json.encode(code).decode()
    command = [sys.executable, "-m", "slurm_robust.worker.replay_rank", task.kind.value, *task.command]
    with output_path(Path(task.folder), rank).open("ab") as output:
        return subprocess.Popen(
            command,
            env={**ENVIRONMENT, **inherited, **env, **own},
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
                    leave_failure(folder, f"on {node} {_exit(rank, code).describe()}")
                    return
            time.sleep(_POLL_S)
    finally:
        for child in left.values():
            child.kill()


_FAILED = "failed"


def trace_path(folder: Path, rank: int) -> Path:
    """Return the path of one rank's digests."""
    return folder / f"rank-{rank:05d}.jsonl"


def output_path(folder: Path, rank: int) -> Path:
    """Return the path of what one rank printed, for people."""
    return folder / f"rank-{rank:05d}.log"


def leave_failure(folder: Path, text: str) -> None:
    """Say that a rank has failed, so that the others wait for nothing. Raises ``OSError``."""
    try:
        with (folder / _FAILED).open("x") as file:
            file.write(text)
    except FileExistsError:
        pass


def has_failed(folder: Path) -> bool:
    """Return whether a rank of the group has failed, so that the others wait for nothing.

    Lists the folder, which NFS asks the server for; it may remember for a minute that a file was not there.
    """
    try:
        return _FAILED in os.listdir(folder)
    except OSError:
        return False


def group_run(folder: Path, nodes: Sequence[str], nproc: int, waited_s: float) -> GroupRun:
    """Return what the group did in ``waited_s`` seconds, by its ranks' files. Raises ``OSError``."""
    ranks = [read_lines(trace_path(folder, rank)) for rank in range(len(nodes) * nproc)]
    trouble = _failure(folder, nodes, nproc, ranks) if has_failed(folder) else ""
    machines = [line.name for lines in ranks for line in lines if isinstance(line, Machine)]
    silent = sorted({nodes[r // nproc] for r, lines in enumerate(ranks) if not _has_ended(lines)})
    if not trouble and silent:
        trouble = f"no result within {waited_s:.0f} s from {fold(silent)}"
    return GroupRun(
        nodes=tuple(nodes),
        steps=_steps(ranks),
        kind=f"{len(nodes)} x {nproc}: {'; '.join(machines)}",
        trouble=trouble or _oddity([line for lines in ranks for line in lines]),
    )


def _failure(folder: Path, nodes: Sequence[str], nproc: int, ranks: Sequence[Sequence[Line]]) -> str:
    """Return the rank that failed first, by what the ranks' ends and last output say of each other."""
    ends = [
        NodeExit(
            node=nodes[rank // nproc], exit=_exit(rank, line.code, read_tail((output_path(folder, rank),)))
        )
        for rank, lines in enumerate(ranks)
        for line in lines
        if isinstance(line, ReplayEnd)
    ]
    first = root_exit(ends)
    if first is not None:
        return f"on {first.node} {first.exit.describe()}"
    return (folder / _FAILED).read_text() or "a rank failed"


def _exit(rank: int, code: int, tail: tuple[str, ...] = ()) -> WorkerExit:
    """Return the exit; ``code`` is negative for a signal."""
    if code < 0:
        return WorkerExit(rank=rank, signal=-code, tail=tail)
    return WorkerExit(rank=rank, code=code, tail=tail)


def _has_ended(lines: Sequence[Line]) -> bool:
    return any(isinstance(line, ReplayEnd) for line in lines)


def _oddity(lines: Sequence[Line]) -> str:
    """Return what is wrong though all ranks ended in order."""
    steps = [line for line in lines if isinstance(line, Gradients | Loss)]
    if not any(isinstance(line, Gradients) for line in steps):
        return "it ended before the first optimizer step"
    bad = [line for line in steps if not line.is_finite]
    if not bad:
        return ""
    first = min(bad, key=lambda line: line.step)
    what = "gradients have" if isinstance(first, Gradients) else "the script reports"
    return f"{what} numbers that are not finite in step {first.step}"


def _steps(ranks: Sequence[Sequence[Line]]) -> tuple[str, ...]:
    """Return a digest per step of all that all ranks said of it, in the order of the ranks."""
    said: dict[int, xxhash.xxh3_128] = {}
    for rank, lines in enumerate(ranks):
        for line in lines:
            if isinstance(line, Gradients | Loss):
                text = f"{rank} {type(line).__name__} {line.digest}\n"
                said.setdefault(line.step, xxhash.xxh3_128()).update(text.encode())
    return tuple(said[step].hexdigest() for step in sorted(said))


if __name__ == "__main__":
    sys.exit(main())
