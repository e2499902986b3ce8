"""Where a state can be put and taken from again, for the restore and the storage part of the benchmark."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from benchmarks.checkpoint_ours import Ours
from benchmarks.checkpoint_state import Training


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
        for step in range(3):  # the first ones make the buffers
            began = time.perf_counter()
            ours.save(step)
            ours.drain()
            seconds = time.perf_counter() - began
        ours.close()
        return {"write": seconds, "token": ours.token()}

    def restore(self, training: Training, folder: Path, token: str) -> None:
        ours = Ours(training, folder, folder, restore=token)
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
    "slurm_robust": Memory(),
    "torch.load, mmap": TorchFile(),
    "dcp.load": DcpFolder(),
}
# Those whose folder is in shared memory, and those whose folder is on a disk.
MEMORY = ("slurm_robust", "torch.load, mmap", "dcp.load")
ON_DISK = ("torch.load, mmap", "dcp.load")


def _by_name(training: Training) -> dict[str, Any]:
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer}
