"""Real processes: groups of nodes, which are all this machine, run small PyTorch scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_robust.analysis.replay import GroupRun, judge
from slurm_robust.diagnostics.replay.node import (
    ReplayTask,
    group_run,
    has_failed,
    leave_failure,
    output_path,
    trace_path,
)
from slurm_robust.model.findings import Outcome
from slurm_robust.model.job import CommandKind
from slurm_robust.worker.replay import Loss, ReplayEnd, add_line, read_lines
from tests.forked_python import ForkedPython
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow]

TRAINING = """
    import os, sys
    import torch
    import torch.distributed as dist
    import slurm_robust as sr

    dist.init_process_group("gloo")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = sr.Checkpointer({"model": model, "optimizer": optimizer})
    for step in range(checkpointer.restore(), 1000):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        if step == 2 and dist.get_rank() == 1:
            exec(os.environ.get("AT_STEP_2", ""))
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        checkpointer.step(step, loss=loss)
"""
FLIP = "model[2].bias.grad.view(torch.int32)[0] ^= 1 << 20"


@contextmanager
def group(place: Path, *nodes: str, limit_s: float = 120.0, **environ: str) -> Iterator[list[ForkedPython]]:
    """The parts of ``nodes``, each a process; the group's folder is ``place / nodes[0]``."""
    (place / "train.py").write_text(textwrap.dedent(TRAINING))
    folder = place / nodes[0]
    folder.mkdir()
    task = ReplayTask(
        folder=str(folder),
        nodes=nodes,
        nproc=1,
        steps=4,
        limit_s=limit_s,
        kind=CommandKind.SCRIPT,
        command=("train.py",),
        cwd=str(place),
    )
    base = {**os.environ, "OMP_NUM_THREADS": "1", "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", **environ}
    interpreter, *words = task.command_line()
    assert interpreter == sys.executable
    parts = [ForkedPython(*words, env={**base, "SLURMD_NODENAME": node}, stderr=2) for node in nodes]
    try:
        yield parts
    finally:
        for part in parts:
            part.kill()
            part.wait()


def result(place: Path, *nodes: str) -> GroupRun:
    return group_run(place / nodes[0], nodes, 1, 1.0)


def test_alike_groups_compute_the_same_bits_and_a_flipped_one_is_seen(tmp_path: Path) -> None:
    with (
        group(tmp_path, "a", "b") as first,
        group(tmp_path, "c", "d") as second,
        group(tmp_path, "e", "f", AT_STEP_2=FLIP) as third,
    ):
        assert [part.wait(120) for part in (*first, *second, *third)] == [0] * 6, log(tmp_path / "a")
    seen = judge([result(tmp_path, *nodes) for nodes in ("ab", "cd", "ef")])
    assert [one.outcome for one in seen] == [Outcome.PASS, Outcome.PASS, Outcome.FAIL], seen
    assert seen[2].text == "other bits than the majority from step 2 on"
    lines = read_lines(trace_path(tmp_path / "a", 1))
    assert lines[-1] == ReplayEnd(code=0)
    assert [line.step for line in lines if isinstance(line, Loss)] == [0, 1, 2]
    # The script would have made 1000 steps and a checkpoint after each.
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "a", "c", "e"}


def test_the_first_rank_that_fails_ends_the_group(tmp_path: Path) -> None:
    kill = "import signal; os.kill(os.getpid(), signal.SIGKILL)"
    with group(tmp_path, "a", "b", AT_STEP_2=kill) as parts:
        assert [part.wait(120) for part in parts] == [0, 0]
    assert has_failed(tmp_path / "a")
    assert result(tmp_path, "a", "b").trouble == "on b rank 1: SIGKILL"


def test_a_rank_that_lost_its_peer_is_not_the_one_that_failed(tmp_path: Path) -> None:
    """Though its end was noticed first."""
    leave_failure(tmp_path, "on a rank 0: exit code 1")
    for rank, code in enumerate((1, -signal.SIGKILL)):
        add_line(trace_path(tmp_path, rank), ReplayEnd(code=code))
    output_path(tmp_path, 0).write_text("RuntimeError: Connection closed by peer [127.0.0.1]:29500\n")
    assert group_run(tmp_path, ("a", "b"), 1, 1.0).trouble == "on b rank 1: SIGKILL"


def test_ranks_end_with_the_part_that_started_them(tmp_path: Path) -> None:
    stop = "import signal; os.kill(os.getpid(), signal.SIGSTOP)"
    with group(tmp_path, "a", "b", AT_STEP_2=stop) as parts:
        wait_for(lambda: len(read_lines(trace_path(tmp_path / "a", 1))) >= 5, 120, "step 1")
        children = [
            int(c) for p in parts for c in Path(f"/proc/{p.pid}/task/{p.pid}/children").read_text().split()
        ]
        assert len(children) == 2
        for part in parts:
            part.send_signal(signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children), message="ranks gone")
    assert result(tmp_path, "a", "b").trouble == "no result within 1 s from a,b"


def test_nobody_waits_for_a_first_node_that_does_not_come(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    folder = tmp_path / "group"
    folder.mkdir()
    task = ReplayTask(
        folder=str(folder),
        nodes=("a", "b"),
        nproc=1,
        steps=1,
        limit_s=0.3,
        kind=CommandKind.SCRIPT,
        command=("train.py",),
        cwd=str(tmp_path),
    )
    environ = {**os.environ, "SLURMD_NODENAME": "b"}
    assert subprocess.run(task.command_line(), env=environ, timeout=60).returncode == 3


def log(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("*.log")))
