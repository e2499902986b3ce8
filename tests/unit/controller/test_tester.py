"""Tests of nodes for the controller: they find what they need, and whatever goes wrong is an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.job import ReplayConfig
from slurm_robust.controller.tester import Tester
from slurm_robust.diagnostics.replay.steps import ReplayCommand
from slurm_robust.model.job import CommandKind
from slurm_robust.testing.fake_diagnoser import FakeDiagnoser
from slurm_robust.testing.fake_replayer import FakeReplayer

COMMAND = ReplayCommand(kind=CommandKind.SCRIPT, command=("train.py",), cwd="/")


def of(storage: Path) -> Tester:
    return Tester(
        FakeDiagnoser(), FakeReplayer(), lambda release: COMMAND, ReplayConfig(), str(storage), FakeDiagnoser
    )


def test_storage_can_be_tested_before_the_first_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "job" / "checkpoints"
    found = of(folder).test(("n1", "n2"), bitwise=True, budget_s=100.0)
    assert folder.is_dir()
    assert {result.node for result in found.results} == {"n1", "n2"}


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_folder_that_cannot_be_made_is_left_to_the_test_of_the_storage(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    found = of(tmp_path / name).test(("n1", "n2"), bitwise=False, budget_s=100.0)
    assert found.results
