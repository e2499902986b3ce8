"""Everything that can keep a training's state, each behind the same few calls of the measured loop."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import (
    AsyncCheckpointerType,
    AsyncSaveResponse,
    async_save,
    save,
)

from benchmarks import common
from benchmarks.checkpoint_ours import Ours
from benchmarks.checkpoint_state import BareCopy, Contender, NotRunnable, Training

OURS = "slurm_robust"
ASYNC_BEST = "dcp.async_save, best"
MEMCPY = "memcpy"


class Memcpy(Contender):
    """The limit: ``memmove`` of each tensor into memory that is there already. Keeps one copy, unnamed."""

    def __init__(self, training: Training, shm: Path) -> None:
        self._copy = BareCopy(shm, training.tensors())

    def save(self, step: int) -> None:
        self._copy.out()


class TorchSave(Contender):
    """``torch.save`` beside, then rename; nothing is synced."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._path = folder / "state.pt"

    def save(self, step: int) -> None:
        beside = self._path.with_suffix(".tmp")
        torch.save({**self._training.state(), "step": step}, beside)
        beside.replace(self._path)


class DcpSave(Contender):
    """``dcp.save`` into two folders in turn."""

    def __init__(self, training: Training, folder: Path) -> None:
        _join()
        self._training = training
        self._folder = folder

    def save(self, step: int) -> None:
        save(self._training.state(), checkpoint_id=self._folder / f"dcp-{step % 2}")

    def close(self) -> None:
        dist.destroy_process_group()


class DcpAsync(Contender):
    """``dcp.async_save``; one at a time, so a checkpoint waits for the one before, as its manual says.

    ``kept``: with one stager for all checkpoints, which copies into shared memory in a thread of its own,
    and another process that writes. Pinned memory and copies that do not block need CUDA.
    """

    def __init__(self, training: Training, folder: Path, *, kept: bool) -> None:
        _join()
        self._training = training
        self._folder = folder
        self._upload: Any = None
        self._staging: Any = None
        self._options: dict[str, Any] = {}
        if kept:
            cuda = torch.cuda.is_available()
            staging = StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=True,
                use_async_staging=True,
                use_non_blocking_copy=cuda,
            )
            self._options["async_stager"] = DefaultStager(staging)
            self._options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS

    def save(self, step: int) -> None:
        self.drain()
        name = self._folder / f"dcp-{step % 2}"
        found = async_save(self._training.state(), checkpoint_id=name, **self._options)
        if isinstance(found, AsyncSaveResponse):
            self._staging, self._upload = found.staging_completion, found.upload_completion
        else:
            self._upload = found

    def before_update(self) -> None:
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def drain(self) -> None:
        self.before_update()
        if self._upload is not None:
            self._upload.result()
            self._upload = None

    def close(self) -> None:
        if "async_stager" in self._options:
            self._options["async_stager"].close()
        dist.destroy_process_group()


class NvrxLocal(Contender):
    """The local checkpoint of NVIDIA's resiliency extension, asynchronous, in /dev/shm."""

    def __init__(self, training: Training, folder: Path) -> None:
        _add_nvrx()
        try:
            from nvidia_resiliency_ext.checkpointing.async_ckpt.core import (  # type: ignore[import-not-found]
                AsyncCallsQueue,
            )
            from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import (  # type: ignore[import-not-found]
                BasicTensorAwareStateDict,
            )
            from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import (  # type: ignore[import-not-found]
                LocalCheckpointManager,
            )
        except ImportError as error:
            raise NotRunnable(f"it cannot be imported: {error}") from error
        _join()
        self._training = training
        self._wrap = BasicTensorAwareStateDict
        self._manager = LocalCheckpointManager(folder)
        self._queue = AsyncCallsQueue(persistent=False)
        try:
            self._wrap(training.state())
        except AssertionError as error:
            raise NotRunnable(
                "BasicTensorAwareStateDict refuses the tensors of this machine's device "
                f"({training.tensors()[0].device.type}): it asserts that each is on a CUDA device {error}"
            ) from error

    def save(self, step: int) -> None:
        self._queue.maybe_finalize_async_calls(blocking=True)
        request = self._manager.save(self._wrap(self._training.state()), step, is_async=True)
        self._queue.schedule_async_request(request)

    def drain(self) -> None:
        self._queue.maybe_finalize_async_calls(blocking=True)

    def close(self) -> None:
        self._queue.close()
        dist.destroy_process_group()


Factory = Callable[[Training, Path, Path], Contender]

# By the name in the report; called with the training, a folder on disk and one in /dev/shm.
CONTENDERS: dict[str, Factory] = {
    MEMCPY: lambda training, disk, shm: Memcpy(training, shm),
    OURS: lambda training, disk, shm: Ours(training, disk, shm),
    "torch.save, disk": lambda training, disk, shm: TorchSave(training, disk),
    "torch.save, /dev/shm": lambda training, disk, shm: TorchSave(training, shm),
    "dcp.save, disk": lambda training, disk, shm: DcpSave(training, disk),
    "dcp.save, /dev/shm": lambda training, disk, shm: DcpSave(training, shm),
    "dcp.async_save, default": lambda training, disk, shm: DcpAsync(training, shm, kept=False),
    ASYNC_BEST: lambda training, disk, shm: DcpAsync(training, shm, kept=True),
    "NVRx local": lambda training, disk, shm: NvrxLocal(training, shm),
}


def _join() -> None:
    """A process group of one, which async_save asks for; the others are the same with and without."""
    warnings.filterwarnings("ignore")
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)


def _add_nvrx() -> None:
    """NVRx lies in an environment of its own; what both have is taken from ours."""
    found = next(common.NVRX.glob("lib/python*/site-packages"), None)
    if found is None:
        raise NotRunnable("nvidia-resiliency-ext could not be installed")
    sys.path.append(str(found))
