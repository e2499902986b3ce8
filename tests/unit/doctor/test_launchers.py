"""Commands that start ranks, and what to write instead."""

from __future__ import annotations

import pytest

from slurm_robust.doctor.launchers import instead, is_local, launcher_of, starts_ranks


@pytest.mark.parametrize(
    ("command", "launcher", "line"),
    [
        ("torchrun --nproc-per-node=4 a/t.py --x 1", "torchrun", "--nproc-per-node 4 a/t.py --x 1"),
        ("/opt/bin/torchrun --nproc_per_node gpu t.py", "torchrun", "t.py"),
        ("torchrun --nnodes 2 -m project.train --x", "torchrun", "-m project.train --x"),
        ("python -m torch.distributed.run t.py", "python -m torch.distributed.run", "t.py"),
        ("accelerate launch --num_processes 16 t.py", "accelerate", "t.py"),
        ("srun --label python -u t.py", "srun", "t.py"),
        ("python -u t.py", "", "t.py"),
        ("torchrun $ARGS", "torchrun", "train.py"),
    ],
)
def test_what_starts_ranks_is_replaced(command: str, launcher: str, line: str) -> None:
    words = command.split()
    assert launcher_of(words) == launcher
    assert starts_ranks(words)
    assert instead(words) == f"exec srobust run {line}"


@pytest.mark.parametrize(
    "command", ["module load python", "python -m venv", "srun hostname", "train.py.sh", "echo torch", ""]
)
def test_other_commands_start_none(command: str) -> None:
    assert not starts_ranks(command.split())


def test_options_of_srobust_run_are_kept() -> None:
    line = instead(("torchrun", "--nproc_per_node=8", "t.py"), ("--spares", "1", "--nproc-per-node", "4"))
    assert line == "exec srobust run --spares 1 --nproc-per-node 4 t.py"


def test_folders_of_one_node() -> None:
    assert [
        path for path in ("/tmp", '"/tmp/x"', "/dev/shm/", "/tmpfiles", "/home", "") if is_local(path)
    ] == [
        "/tmp",
        '"/tmp/x"',
        "/dev/shm/",
    ]
