"""Workers of a real zygote that hang, and takers of their stacks in processes that may less than this one."""

from __future__ import annotations

import errno
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import torch
from torch._C import _distributed_c10d

from slurm_robust.agent.launcher import ZygoteLauncher
from slurm_robust.agent.rankenv import record_path
from slurm_robust.agent.stacks.taker import StackTaker
from slurm_robust.model.job import CommandKind
from slurm_robust.model.nodefolders import SHARED_MEMORY
from slurm_robust.model.stacks import ProcessKind, ProcessStacks, RankStacks
from slurm_robust.worker.spawning import Exited, FromZygote, Prepare, Ready, Spawn, Spawned, WorkerSpec
from slurm_robust.worker.step_record import StepRecord
from tests.users import NOBODY, run_as
from tests.waiting import wait_for

TRAINING = Path(__file__).with_name("hanging_training.py")
ROOT = Path(__file__).resolve().parents[4]
# All that root may do by capabilities, and every other user may not.
WITHOUT_CAPABILITIES = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
# Whether torch's flight recorder keeps operations of gloo.
RECORDS_GLOO = hasattr(_distributed_c10d, "_dump_fr_trace_json")
# Whether it gives its loaders' processes a name.
NAMES_LOADERS = hasattr(torch.multiprocessing, "_set_thread_name")


class Training:
    """One rank per way to hang; the ranks live until :meth:`release`."""

    def __init__(self, ways: tuple[str, ...], port: int) -> None:
        self.runtime = Path(tempfile.mkdtemp(prefix=f"srobust-{os.getuid()}-stacks-", dir=SHARED_MEMORY))
        self.ranks = {way: rank for rank, way in enumerate(ways)}
        self._folder = self.runtime / "gen-001"
        self._folder.mkdir()
        command = (str(TRAINING),)
        self._launcher = ZygoteLauncher(
            Prepare(
                command_kind=CommandKind.SCRIPT,
                command=command,
                cwd=str(self._folder),
                nproc_per_node=len(ways),
            )
        )
        self._launcher.start()
        self._wait(Ready, 1)
        order = Spawn(
            generation=1,
            command_kind=CommandKind.SCRIPT,
            command=command,
            cwd=str(self._folder),
            workers=tuple(self._worker(rank, way, len(ways), port) for rank, way in enumerate(ways)),
        )
        self._launcher.spawn(order)
        self.pids = {spawned.rank: spawned.pid for spawned in self._wait(Spawned, len(ways))}

    def output(self, rank: int, stream: str = "out") -> str:
        return (self._folder / f"{rank}.{stream}").read_text()

    def release(self) -> dict[int, Exited]:
        """Open all gates; gives how each rank has ended."""
        for rank in self.pids:
            wait_for(lambda rank=rank: self._open_gate(rank), message=f"rank {rank} left its gate")  # type: ignore[misc]
        return {exited.rank: exited for exited in self._wait(Exited, len(self.pids))}

    def close(self) -> None:
        self._launcher.close()
        shutil.rmtree(self.runtime)

    def _open_gate(self, rank: int) -> bool:
        if self.ranks.get("in_collective") == rank or self.ranks.get("stopped") == rank:
            return True
        try:
            os.close(os.open(self._folder / f"gate-{rank}", os.O_WRONLY | os.O_NONBLOCK))
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return False  # nobody waits at it yet
        return True

    def _worker(self, rank: int, way: str, world: int, port: int) -> WorkerSpec:
        record = record_path(self._folder, rank)
        StepRecord.create(record, generation=1, rank=rank).close()
        os.mkfifo(self._folder / f"gate-{rank}")
        return WorkerSpec(
            rank=rank,
            env={
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "HANG": way,
                "GATE": str(self._folder / f"gate-{rank}"),
            },
            out=str(self._folder / f"{rank}.out"),
            err=str(self._folder / f"{rank}.err"),
            error=str(self._folder / f"{rank}.error"),
            record=str(record),
        )

    def _wait(self, kind: type[FromZygote], count: int) -> list[FromZygote]:
        found: list[FromZygote] = []
        deadline = time.monotonic() + 60
        while len(found) < count:
            assert select.select([self._launcher.fileno()], [], [], max(0, deadline - time.monotonic()))[0]
            found += [message for message in self._launcher.read() if isinstance(message, kind)]
        return found


def take_as(prefix: tuple[str, ...], training: Training, budget_s: float) -> tuple[RankStacks, ...]:
    """Take the stacks in a process that ``prefix`` starts."""
    workers = msgspec.json.encode(training.pids).decode()
    command = [*prefix, sys.executable, "-m", __name__, str(training.runtime), workers, str(budget_s)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    return msgspec.json.decode(found.stdout, type=tuple[RankStacks, ...])


def take_as_nobody(training: Training, budget_s: float) -> tuple[RankStacks, ...]:
    """Take the stacks in a fork of this process, for a Python below root's home starts for nobody else."""

    def take() -> str:
        taken = StackTaker(training.runtime).take(training.pids, node="here", budget_s=budget_s)
        return msgspec.json.encode(taken).decode()

    return msgspec.json.decode(run_as(NOBODY, take), type=tuple[RankStacks, ...])


def process(stacks: RankStacks, kind: ProcessKind = ProcessKind.WORKER) -> ProcessStacks:
    """The one process of that kind."""
    (found,) = (process for process in stacks.processes if process.kind is kind)
    return found


def functions(stacks: ProcessStacks) -> list[str]:
    """What the main thread calls, innermost first, without the classes that only py-spy names."""
    main = [thread for thread in stacks.threads if thread.is_main]
    return [frame.function.rpartition(".")[2] for thread in main for frame in thread.frames]


if __name__ == "__main__":
    taken = StackTaker(Path(sys.argv[1])).take(
        msgspec.json.decode(sys.argv[2], type=dict[int, int]), node="here", budget_s=float(sys.argv[3])
    )
    sys.stdout.buffer.write(msgspec.json.encode(taken))
