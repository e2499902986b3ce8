from __future__ import annotations

import pytest

from slurm_robust.agent.stacks.taker import kind_by_name, kind_by_stack
from slurm_robust.model.stacks import Frame, ProcessKind, ThreadStack

PROCESS = "/usr/lib/python3.11/multiprocessing/process.py"
DCP = "/site-packages/torch/distributed/checkpoint"


def main_thread(*files: str) -> tuple[ThreadStack, ...]:
    frames = [Frame(function="BaseProcess.run" if file == PROCESS else "f", file=file) for file in files]
    return (ThreadStack(is_main=True, frames=tuple(frames)),)


def test_a_loader_is_known_by_its_name() -> None:
    assert kind_by_name("pt_data_worker") is ProcessKind.LOADER
    assert kind_by_name("python") is ProcessKind.OTHER


@pytest.mark.parametrize(
    ("file", "kind"),
    [
        ("/site-packages/torch/utils/data/_utils/worker.py", ProcessKind.LOADER),
        (f"{DCP}/_async_process_executor.py", ProcessKind.WRITER),
        (f"{DCP}/_experimental/checkpoint_process.py", ProcessKind.WRITER),
        ("/megatron/core/dist_checkpointing/strategies/async_utils.py", ProcessKind.WRITER),
        ("/site-packages/torch/_inductor/compile_worker/subproc_pool.py", ProcessKind.OTHER),
    ],
)
def test_a_process_is_for_what_its_first_function_is_for(file: str, kind: ProcessKind) -> None:
    assert kind_by_stack(main_thread("/usr/lib/inner.py", file, PROCESS, PROCESS, "/home/u/train.py")) is kind


def test_a_process_may_wait_for_another_one() -> None:
    join = Frame(function="BaseProcess.join", file=PROCESS)
    (thread,) = main_thread(f"{DCP}/_async_process_executor.py", PROCESS)
    waiting = ThreadStack(is_main=True, frames=(Frame(function="wait"), join, *thread.frames))
    assert kind_by_stack([waiting]) is ProcessKind.WRITER


def test_what_the_parent_was_doing_at_the_fork_says_nothing() -> None:
    assert kind_by_stack(main_thread("/home/u/reader.py", PROCESS, f"{DCP}/save.py")) is ProcessKind.OTHER


def test_a_program_that_multiprocessing_has_not_started_is_other() -> None:
    tracker = main_thread("/usr/lib/python3.11/multiprocessing/resource_tracker.py", "<string>")
    assert kind_by_stack(tracker) is ProcessKind.OTHER
    assert kind_by_stack(()) is ProcessKind.OTHER


def test_only_the_main_thread_counts() -> None:
    frames = (Frame(function="f", file=f"{DCP}/a.py"), Frame(function="run", file=PROCESS))
    assert kind_by_stack((ThreadStack(frames=frames),)) is ProcessKind.OTHER
