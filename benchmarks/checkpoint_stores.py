"""Where a state can be put and taken from again, for the restore and the storage part of the benchmark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks import common
from benchmarks.checkpoint_ours import CHECKPOINTS, RUN, Ours
from benchmarks.checkpoint_state import Training
from benchmarks.scratch import scratch
from slurm_robust.checkpoint.flush_order import FlushAnswer, FlushOrder
from slurm_robust.model.copies import Tier

OURS = "slurm_robust"


class Store(Protocol):
    """``keep`` returns ``write``, the seconds until all is there (on a disk: synced), and maybe ``token``."""

    def keep(self, training: Training, folder: Path) -> dict[str, Any]:
        """Put the state into ``folder``."""

    def restore(self, training: Training, folder: Path, token: str) -> None:
        """Put it into the live objects."""


class Memory:
    """Ours: own memory of the node, verified."""

    def keep(self, training: Training, folder: Path) -> dict[str, Any]:
        ours = Ours(training, folder, folder)
        for step in range(ours.warm):
            began = time.perf_counter()
            ours.save(step)
            ours.drain()
            seconds = time.perf_counter() - began
        ours.close()
        return {"write": seconds, "token": str(ours.ref)}

    def restore(self, training: Training, folder: Path, token: str) -> None:
        ours = Ours(training, folder, folder, restore=token)
        ours.checkpointer.restore()
        ours.close()


class Flushed:
    """Ours: from memory to storage by the process that does so beside an agent; verified both ways."""

    def keep(self, training: Training, folder: Path) -> dict[str, Any]:
        with scratch("store") as shm:
            ours = Ours(training, folder, shm)
            ours.save(0)
            ours.drain()
            seconds = _flush(ours, folder)
            ours.close()
        return {"write": seconds, "token": str(ours.ref)}

    def restore(self, training: Training, folder: Path, token: str) -> None:
        with scratch("store") as shm:
            ours = Ours(training, folder, shm, restore=token, tier=Tier.STORAGE)
            ours.checkpointer.restore()
            ours.close()


class TorchFile:
    """``torch.save``, and ``torch.load`` of the mapped file."""

    def keep(self, training: Training, folder: Path) -> dict[str, Any]:
        began = time.perf_counter()
        with (folder / "state.pt").open("wb") as file:
            torch.save(training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return {"write": time.perf_counter() - began}

    def restore(self, training: Training, folder: Path, token: str) -> None:
        state = torch.load(folder / "state.pt", mmap=True, weights_only=True)
        training.model.load_state_dict(state["model"])
        training.optimizer.load_state_dict(state["optimizer"])


class DcpFolder:
    """``dcp.save``, which syncs its files, and ``dcp.load`` into the state that is there, then set."""

    def keep(self, training: Training, folder: Path) -> dict[str, Any]:
        warnings.filterwarnings("ignore")
        began = time.perf_counter()
        save(_by_name(training), checkpoint_id=folder / "dcp")
        return {"write": time.perf_counter() - began}

    def restore(self, training: Training, folder: Path, token: str) -> None:
        warnings.filterwarnings("ignore")
        state = _by_name(training)
        load(state, checkpoint_id=folder / "dcp")
        set_state_dict(
            training.model,
            training.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )


STORES: dict[str, Store] = {
    OURS: Memory(),
    "slurm_robust, flush": Flushed(),
    "torch.load, mmap": TorchFile(),
    "dcp.load": DcpFolder(),
}
# Those whose folder is in shared memory, and those whose folder is on a disk.
MEMORY = (OURS, "torch.load, mmap", "dcp.load")
ON_DISK = ("slurm_robust, flush", "torch.load, mmap", "dcp.load")


def _flush(ours: Ours, folder: Path) -> float:
    """Seconds from the order to the answer; the process runs already, as it does beside an agent."""
    order = FlushOrder(
        images={0: str(ours.image())},
        checkpoint=ours.ref,
        world_size=1,
        places={Tier.STORAGE: str(folder / CHECKPOINTS)},
        job_dir=str(folder / "job"),
        run_id=RUN,
    )
    words = [sys.executable, "-m", "slurm_robust.checkpoint.flush"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        _ask(process, b"{}")  # is refused when all is imported
        began = time.perf_counter()
        answer = msgspec.json.decode(_ask(process, msgspec.json.encode(order)), type=FlushAnswer)
        seconds = time.perf_counter() - began
        process.communicate()
    if not answer.ok:
        raise common.BenchmarkFailed(f"the snapshot was not written: {answer.error}")
    return seconds


def _ask(process: subprocess.Popen[bytes], line: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    process.stdin.flush()
    return process.stdout.readline()


def _by_name(training: Training) -> dict[str, Any]:
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer}
