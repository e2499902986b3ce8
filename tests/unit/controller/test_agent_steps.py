"""The end of an srun, and what it said, as the controller reads it. Fake Slurm, real files."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from slurm_robust.controller.agent_steps import AgentSteps
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm

NODES = ("n1", "n2", "n3")


class Steps:
    def __init__(self, folder: Path) -> None:
        self.slurm = FakeSlurm()
        job = self.slurm.submit(SubmitRequest(command=("x",), nodes=3, options=("--no-kill",)))
        self.steps = AgentSteps(self.slurm, self.slurm.allocation(job), ("agent",), folder)
        self.steps.start(NODES, 1)
        (self.output,) = folder.iterdir()
        (self.srun,) = self.slurm.cluster.launched

    def say(self, text: str) -> None:
        with self.output.open("a") as file:
            file.write(text)


@pytest.fixture
def world(tmp_path: Path) -> Steps:
    return Steps(tmp_path)


def test_the_end_of_an_srun_is_reported_once_with_its_message(world: Steps) -> None:
    assert world.steps.news().ends == ()
    world.say("srun: error: Unable to create step for job 1: Invalid account")  # and no line end
    world.srun.end(1)
    (end,) = world.steps.news().ends
    assert (end.nodes, end.code) == (NODES, 1)
    assert end.message == "srun: error: Unable to create step for job 1: Invalid account"
    assert world.steps.news().ends == ()


def test_a_task_that_ended_before_is_not_reported_again_with_srun(world: Steps) -> None:
    world.say("srun: error: n3: task 2: Exited with exit code 2\n")
    (end,) = world.steps.news().ends
    assert end.nodes == ("n3",)
    assert world.steps.news().ends == ()
    world.srun.end(2)
    (end,) = world.steps.news().ends
    assert end.nodes == ("n1", "n2")


def test_an_agent_that_cannot_begin_says_so_itself(world: Steps) -> None:
    world.say('{"srobust_agent_error": "cannot read x", "node": "n2", "fix": "mount it"}\n{"srobust_agent_er')
    (refusal,) = world.steps.news().refusals
    assert (refusal.node, refusal.text) == ("n2", "cannot read x; fix: mount it")


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EMFILE, errno.EACCES])
def test_an_end_is_judged_when_storage_returns_the_output_of_srun(
    world: Steps, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    world.say("srun: error: Unable to create step for job 1: Invalid account\n")
    world.srun.end(1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        assert world.steps.news().ends == ()
    (end,) = world.steps.news().ends
    assert end.message == "srun: error: Unable to create step for job 1: Invalid account"


def test_slurm_as_the_witness_of_nodes(world: Steps) -> None:
    world.slurm.cluster.node_down("n2")
    first, second, other = world.steps.witnesses(("n1", "n2", "n4"))
    assert (first.message, first.against) == ("ALLOCATED", False)
    assert second.message == "DOWN+NOT_RESPONDING (Not responding), no longer part of the job"
    assert second.against
    assert other.against  # it is idle, but not ours
