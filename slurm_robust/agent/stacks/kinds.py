"""What a process that a worker has started is for."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_robust.model.stacks import Frame, ProcessKind, ThreadStack

_LOADER_NAME = "pt_data_worker"
"""The name that torch.utils.data gives its worker processes."""

_PROCESS_FILE = "multiprocessing/process.py"
_LOADER_FILE = "torch/utils/data/_utils/worker.py"
_WRITER_WORD = "checkpoint"


def kind_by_name(name: str) -> ProcessKind:
    """The kind that the process's name tells; OTHER may still be anything."""
    return ProcessKind.LOADER if name == _LOADER_NAME else ProcessKind.OTHER


def kind_by_stack(threads: Iterable[ThreadStack]) -> ProcessKind:
    """The kind that the first function of a process of ``multiprocessing`` tells.

    A writer's is in a file of torch.distributed.checkpoint, of a library's ``checkpointing`` or of ours.
    """
    file = next((entry.file for thread in threads if thread.is_main and (entry := _entry(thread))), "")
    if file.endswith(_LOADER_FILE):
        return ProcessKind.LOADER
    return ProcessKind.WRITER if _WRITER_WORD in file else ProcessKind.OTHER


def _entry(thread: ThreadStack) -> Frame | None:
    # Further out are the calls of the worker that has forked it: those say nothing about the process.
    for inner, outer in zip(thread.frames, thread.frames[1:], strict=False):
        # py-spy names the class too, the handler does not.
        if outer.file.endswith(_PROCESS_FILE) and outer.function.rpartition(".")[2] == "run":
            return inner
    return None
