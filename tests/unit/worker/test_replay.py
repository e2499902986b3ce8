"""What a worker records of its steps in a replay, and how it ends."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from slurm_robust.worker.replay import (
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
from slurm_robust.worker.runs import ReplayRun
from tests.forked_python import run_python

# A script without a seed, with what scripts have: clipping, two groups of parameters, one that is not used.
SCRIPT = """
    import atexit, os
    import torch
    from slurm_robust.worker.replay_recorder import record_steps

    record_steps(os.environ)
    atexit.register(print, "exit handler")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4).to(torch.bfloat16), torch.nn.Dropout(0.5))
    unused = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([{"params": model.parameters(), "lr": 0.1}, {"params": [unused]}], lr=0.2)
    for step in range(1000):
        optimizer.zero_grad()
        model(torch.randn(16, 4, dtype=torch.bfloat16)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step == 1:
            exec(os.environ.get("AT_STEP_1", ""))
        optimizer.step()
        print("step", step)
"""


def replay(folder: Path, at_step_1: str = "", steps: int = 3) -> tuple[Line, ...]:
    """The lines of a replay of the script above."""
    trace = folder / f"trace-{len(list(folder.iterdir()))}"
    environ = {REPLAY: str(trace), REPLAY_STEPS: str(steps), "AT_STEP_1": at_step_1}
    done = run_python("-c", textwrap.dedent(SCRIPT), env={**os.environ, "OMP_NUM_THREADS": "1", **environ})
    assert done.returncode == 0, done.stderr
    # It ends in front of the update of its last step, and without what the script does at its end.
    assert done.stdout == "".join(f"step {step}\n" for step in range(steps - 1))
    return read_lines(trace)


@pytest.mark.slow
def test_a_script_without_a_seed_computes_the_same_again_until_a_bit_flips(tmp_path: Path) -> None:
    first, again = replay(tmp_path), replay(tmp_path)
    flipped = replay(tmp_path, "model[0].bias.grad.view(torch.int16)[0] ^= 1 << 8")
    assert first == again
    assert isinstance(first[0], Machine)
    assert [type(line) for line in first[1:]] == [Gradients] * 3
    assert [a == b for a, b in zip(first, flipped, strict=True)] == [True, True, False, False]
    assert {line.digest for line in first[1:] if isinstance(line, Gradients)} != {""}


@pytest.mark.slow
def test_numbers_that_are_not_finite_are_marked(tmp_path: Path) -> None:
    lines = replay(tmp_path, "model[0].weight.grad[1, 1] = float('nan')")
    assert [line.is_finite for line in lines if isinstance(line, Gradients)] == [True, False, False]


def test_what_a_script_reports_is_recorded_by_its_bits(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    run = ReplayRun(str(path))
    for step, loss in enumerate((0.1, 0.1 + 1e-18, 0.1 + 1e-16, float("inf"), None)):
        run.report(step, loss, 2.0)
    lines = [line for line in read_lines(path) if isinstance(line, Loss)]
    assert [line.step for line in lines] == [0, 1, 2, 3, 4]
    assert [line.is_finite for line in lines] == [True, True, True, False, True]
    assert lines[0].digest == lines[1].digest  # the same number in 64 bits
    assert len({line.digest for line in lines}) == 4
    assert not run.due(0)


def test_a_torn_line_ends_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    assert read_lines(path) == ()
    add_line(path, Machine(name="abacus"))
    add_line(path, ReplayEnd(code=-11))
    with path.open("ab") as file:
        file.write(b'{"what":"end","co')
    assert read_lines(path) == (Machine(name="abacus"), ReplayEnd(code=-11))
