"""Questions to the world outside: what is told of answers that come, come late, or never come."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.engine import effects as fx
from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Tier
from tests.unit.engine.fake_job import Job


class Asking(Job):
    """Asks what an engine asks of Slurm, and keeps what it hears."""

    def ask(self, *, within_s: float = 60.0) -> tuple[int, list[object]]:
        heard: list[object] = []

        def hear(answer: object, now: Now) -> None:
            heard.append(answer)

        self.core.ask(qs.AskAboutNodes(nodes=("n1",)), self.now(), hear, within_s=within_s)
        self.tick()
        return self.newest[qs.AskAboutNodes], heard

    def order(self) -> int:
        """What only has to be done, so that nothing hears of it."""
        self.core.ask(qs.LetGo(node="n1"), self.now())
        self.tick()
        return self.newest[qs.LetGo]

    def answer(self, number: int, question: qs.Question[Any]) -> None:
        if not isinstance(question, qs.AskAboutNodes | qs.LetGo):
            super().answer(number, question)


@pytest.fixture
def job() -> Asking:
    return Asking()


def stages(job: Job) -> list[tuple[str, bool, str]]:
    return [(event.what, event.ok, event.detail) for event in job.events(ev.StageDone)]


def test_an_answer_is_heard_once(job: Asking) -> None:
    number, heard = job.ask()
    job.hear(number, ())
    job.hear(number, ("again",))
    assert heard == [()]


def test_several_answers_are_heard_until_all_are_told(job: Asking) -> None:
    number, heard = job.ask()
    job.hear(number, 1, is_last=False)
    job.hear(number, 2, is_last=False)
    job.hear(number, qs.NoMoreAnswers())
    job.hear(number, 3)
    assert heard == [1, 2]


def test_an_answer_that_does_not_come_in_time_is_late_and_still_heard(job: Asking) -> None:
    number, heard = job.ask(within_s=10.0)
    job.pass_time(9.0)
    assert heard == []
    job.pass_time(30.0)
    assert heard == [qs.NoAnswer(reason="no answer within 10 s", late=True)]
    job.hear(number, ())
    assert heard[1:] == [()]


def test_what_has_answered_once_is_not_late(job: Asking) -> None:
    number, heard = job.ask(within_s=10.0)
    job.hear(number, 1, is_last=False)
    job.pass_time(30.0)
    assert heard == [1]


def test_no_answer_is_told_with_its_reason(job: Asking) -> None:
    number, heard = job.ask()
    job.hear(number, qs.NoAnswer(reason="Unable to contact slurm controller"))
    assert heard == [qs.NoAnswer(reason="Unable to contact slurm controller")]
    assert stages(job) == [], "the asker says what follows"


def test_an_error_of_what_should_answer_is_written_down(job: Asking) -> None:
    number, heard = job.ask()
    error = qs.NoAnswer(reason="ask about nodes: KeyError: 'x'", is_error=True)
    job.hear(number, error)
    assert (heard, stages(job)) == ([error], [("ask about nodes", False, error.reason)])


def test_what_only_had_to_be_done_and_was_not_is_written_down(job: Asking) -> None:
    number = job.order()
    job.hear(number, qs.NoAnswer(reason="Invalid job id specified"))
    assert stages(job) == [("let go", False, "Invalid job id specified")]


def test_what_only_had_to_be_done_and_takes_long_is_not_said_to_have_failed(job: Asking) -> None:
    job.order()
    job.pass_time(2 * qs.LetGo.within_s)
    assert stages(job) == []


def test_a_stage_of_what_was_asked_for_is_written_down_and_is_no_answer(job: Asking) -> None:
    number, heard = job.ask()
    job.hear(number, qs.StageOver(what="shrink", ok=True, detail="without n3"), is_last=False)
    assert (heard, stages(job)) == ([], [("shrink", True, "without n3")])


def test_an_answer_to_a_question_of_another_controller_is_nothing(job: Asking) -> None:
    before = len(job.journal)
    job.act([effect for effect in job.core.on_answer(10_000, (), job.now()) if isinstance(effect, fx.Write)])
    assert len(job.journal) == before


def test_every_question_has_a_bound() -> None:
    kinds = [kind for kind in vars(qs).values() if isinstance(kind, type) and issubclass(kind, qs.Question)]
    assert len(kinds) > 20
    assert all(0 < kind.within_s <= 7200 for kind in kinds)


class DeafSlurm(Job):
    """Slurm answers no question about itself while the controller starts."""

    def answer(self, number: int, question: qs.Question[Any]) -> None:
        if not isinstance(question, qs.FindKillWait | qs.FindSwitches):
            super().answer(number, question)


@pytest.mark.parametrize("question", [qs.FindKillWait, qs.FindSwitches])
def test_a_fact_that_slurm_did_not_tell_at_the_start_is_asked_for_again(
    question: type[qs.Question[Any]],
) -> None:
    job = DeafSlurm()
    job.tick()
    first = job.newest[question]
    job.hear(first, qs.NoAnswer(reason="Unable to contact slurm controller"))
    job.pass_time(50.0)
    assert job.newest[question] == first
    job.pass_time(20.0)
    assert job.newest[question] > first
    job.hear(job.newest[qs.FindKillWait], 120.0)
    job.hear(job.newest[qs.FindSwitches], {"n1": "leaf1"})
    told = job.newest[question]
    job.pass_time(300.0)
    assert (job.core.departure.kill_wait_s, job.core.switches["n1"]) == (120.0, "leaf1")
    assert job.newest[question] == told


class HalfStarted(Job):
    """The host of the controller has no process left for the srun of n2."""

    def answer(self, number: int, question: qs.Question[Any]) -> None:
        if isinstance(question, qs.StartAgents) and "n2" in question.nodes:
            self.hear(number, {"n2": "Resource temporarily unavailable"})
        else:
            super().answer(number, question)


def test_only_the_nodes_whose_agents_could_not_be_started_count_as_ended() -> None:
    job = HalfStarted()
    job.tick()
    texts = [event.text for event in job.events(ev.Noted)]
    assert texts == ["agents on n2 ended: agents could not be started: Resource temporarily unavailable"]


def test_a_controller_that_stood_still_counts_no_time_against_answers(job: Asking) -> None:
    number, heard = job.ask(within_s=10.0)
    job.mono += 60.0
    job.core.on_stall(60.0, job.now())
    job.tick()
    assert heard == []
    job.hear(number, ())
    assert heard == [()]


def test_a_controller_that_stood_still_counts_no_time_against_agents_either() -> None:
    job = Job()
    job.train_to(3)
    job.mute = {"n1", "n2"}
    job.core.stacks.ask(job.now())
    job.tick()
    job.mono += 60.0
    job.core.on_stall(60.0, job.now())
    assert job.core.stacks.taken(job.now()) is None
    job.pass_time(60.0)
    taken = job.core.stacks.taken(job.now())
    assert taken is not None
    assert taken.missing == ("n1", "n2")


def test_an_answer_that_waits_to_be_taken_in_is_not_late(job: Asking) -> None:
    """What came meanwhile is taken in one after the other, before time is looked at."""
    other = job.order()
    number, heard = job.ask(within_s=10.0)
    job.mono += 11.0
    job.core.on_answer(other, None, job.now())
    job.core.on_answer(number, (), job.now())
    assert heard == [()]


def test_an_older_listing_of_storage_that_fails_spoils_no_newer_one(job: Asking) -> None:
    storage, ref = job.core.storage, CheckpointId(step=1, generation=1)
    job.hears_storage = False
    assert not storage.settle(job.now())
    job.tick()
    older = job.newest[qs.FindCheckpoint]
    storage.on_written(ref)
    assert not storage.settle(job.now())
    job.tick()
    job.hear(job.newest[qs.FindCheckpoint], {})
    job.hear(older, qs.NoAnswer(reason="Input/output error"))
    assert (storage.settle(job.now()), storage.listed) == (True, {ref: Tier.STORAGE})


def test_an_older_question_without_answer_takes_back_nothing_that_slurm_said_since(job: Asking) -> None:
    witnesses = job.core.witnesses
    numbers = []
    for _ in range(2):
        witnesses.ask_slurm(("n2",), job.now())
        job.tick()
        numbers.append(job.newest[qs.AskAboutNodes])
    job.given_up.add("n2")
    job.hear(numbers[1], (job.witness("n2"),))
    job.hear(numbers[0], qs.NoAnswer(reason="Socket timed out"))
    assert witnesses.gave_up(("n2",))
    witnesses.ask_slurm(("n1",), job.now())
    job.tick()
    job.hear(job.newest[qs.AskAboutNodes], (job.witness("n1"),))
    assert witnesses.gave_up(("n2",)), "it was not asked about n2 again"
    assert not witnesses.gave_up(("n1",))
