"""Why Slurm ends a run: slurmctld's word, slurmstepd's in the steps' output, slurmdbd's. Fake Slurm."""

from __future__ import annotations

import pytest
from msgspec import structs

from slurm_robust.controller.asking import BOOKS_AFTER_S, FOR_S, Asking
from slurm_robust.policy.leaving import Sentence
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm


class World:
    def __init__(self) -> None:
        self.slurm = FakeSlurm()
        self.clock = self.slurm.cluster.clock
        self.job = self.slurm.submit(SubmitRequest(command=("train.sh",), nodes=2))
        self.word: str | None = None
        self.words = 0
        self.takes_s = 0.0

    def told(self) -> str | None:
        self.words += 1
        return self.word if self.clock.now - self.begun >= self.takes_s else None

    def ask(self) -> list[Sentence | None]:
        self.begun = self.clock.now
        asking = Asking(self.slurm, self.job, 0, self.told, self.clock)
        return list(asking.sentences(self.clock.now))

    def change(self, **fields: object) -> None:
        cluster = self.slurm.cluster
        cluster.jobs[self.job] = structs.replace(cluster.jobs[self.job], **fields)

    def record(self, state: str) -> None:
        (row, *_) = self.slurm.cluster.runs[self.job]
        self.slurm.cluster.runs[self.job] = [structs.replace(row, state=state)]


@pytest.fixture
def world() -> World:
    return World()


def test_a_run_that_goes_on_is_asked_about_once(world: World) -> None:
    world.change(end_time=world.clock.now + 60.0)
    assert world.ask() == [Sentence(running=True, left_s=60.0)]
    world.change(preempt_time=world.clock.now)
    assert world.ask() == [Sentence(running=True, preempted=True, left_s=60.0)]
    assert world.words == 0


@pytest.mark.parametrize(("word", "preempted"), [("PREEMPTION", True), ("JOB REQUEUE", False), ("", False)])
def test_of_a_requeue_slurmstepd_says_who_wants_it(world: World, word: str, preempted: bool) -> None:
    world.slurm.requeue(world.job)
    world.word, world.takes_s = word, 0.3
    first, last = world.ask()
    assert first == Sentence(running=False, left_s=0.0, requeued=True, certain=False), "at once"
    assert last == Sentence(running=False, left_s=0.0, requeued=True, preempted=preempted)


@pytest.mark.parametrize(("state", "preempted"), [("PREEMPTED", True), ("REQUEUED", False)])
def test_a_requeue_that_slurmstepd_does_not_tell_is_read_from_accounting(
    world: World, state: str, preempted: bool
) -> None:
    world.slurm.requeue(world.job)
    world.record(state)
    _, last = world.ask()
    assert last == Sentence(running=False, left_s=0.0, requeued=True, preempted=preempted)
    assert world.clock.now - world.begun == BOOKS_AFTER_S


@pytest.mark.parametrize("word", ["NODE FAILURE", None])
def test_of_a_run_that_lost_a_node_slurmstepd_or_slurmdbd_says_so(world: World, word: str | None) -> None:
    world.slurm.requeue(world.job)
    world.record("NODE_FAIL")
    world.word = word
    _, last = world.ask()
    assert last == Sentence(running=False, left_s=0.0, requeued=True, node_fail=True)


def test_the_question_who_ended_the_job_has_an_end(world: World) -> None:
    world.slurm.requeue(world.job)
    world.slurm.cluster.runs.clear()
    _, last = world.ask()
    assert last == Sentence(running=False, left_s=0.0, requeued=True)
    assert world.clock.now - world.begun == FOR_S


def test_a_preemption_that_cancels_is_seen_without_slurmctld(world: World) -> None:
    world.slurm.cluster.unreachable = True
    assert world.ask() == [None]
    world.word = "PREEMPTION"
    assert world.ask() == [None, Sentence(running=False, preempted=True)]


def test_a_cancelled_job_stays_cancelled(world: World) -> None:
    world.change(states=frozenset({"CANCELLED", "COMPLETING"}))
    world.word = ""
    _, last = world.ask()
    assert last == Sentence(running=False)
