"""The examples run as their headings say, and the big one ends the same after an interruption."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from tests.forked_python import ForkedPython
from tests.unit.integrations.killed_examples import Example

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "16", "--batch", "1", "--every", "5"]


def run(folder: Path, script: str, *options: str, ranks: int = 1) -> str:
    words = [str(EXAMPLES / script), *options]
    if ranks > 1:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SROBUST_")}
    with tempfile.TemporaryFile() as output:
        process = ForkedPython(*words, cwd=folder, env=environment, stdout=output.fileno(), stderr=2)
        try:
            process.wait(250.0)
        finally:
            process.terminate()  # torchrun ends its ranks on TERM, not when it is killed
            code = process.wait(60.0)
        assert code == 0
        output.seek(0)
        return output.read().decode()


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 4])
def test_the_gpt_ends_bitwise_the_same_after_an_interruption(ranks: int, tmp_path: Path) -> None:
    """Four ranks, because over two of them no order of summation can differ."""
    run(tmp_path, "train_gpt.py", *SMALL, "--steps", "20", "--out", "straight.json", ranks=ranks)
    straight = json.loads((tmp_path / "straight.json").read_text())
    for steps in (12, 20):
        options = ("--steps", str(steps), "--path", str(tmp_path / "broken"), "--out", "out.json")
        broken = Example(tmp_path / f"{steps}", "train_gpt.py", *SMALL, *options, ranks=ranks).finish()
    assert straight == broken
    assert straight["steps"] == 20


@pytest.mark.slow
def test_the_plain_loop_runs(tmp_path: Path) -> None:
    assert "step 49 loss" in run(tmp_path, "plain_loop.py", "--steps", "50", "--width", "16")
