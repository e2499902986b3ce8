"""Questions to the world outside: what is told of answers that come, come late, or never come."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_robust.engine import questions as qs
from slurm_robust.engine.clock import Now
from slurm_robust.engine.core import Core
from slurm_robust.model import events as ev
from slurm_robust.model.copies import CheckpointId, Tier
from slurm_robust.model.exits import Witness
from slurm_robust.testing.sim.environment import Tell, always
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import PACE, controller_of, core_of, mute, notes, questions, trained


class Asked:
    """A job whose questions of a kind only the test answers."""

    def __init__(self, sim: Sim, *kinds: type[qs.Question[Any]]) -> None:
        self.sim = sim
        self.tells: list[Tell] = []  # the ways of the answers, by the order of the questions
        for kind in kinds:
            sim.answer(kind, lambda asked, tell: self.tells.append(tell))

    @property
    def core(self) -> Core:
        return controller_of(self.sim).core

    @property
    def now(self) -> Now:
        return controller_of(self.sim).now()

    def turn(self) -> Tell:
        """Let the controller put its newest question to the world; the way of the answer."""
        controller_of(self.sim).turn()
        return self.tells[-1]

    def ask(self, *, within_s: float = 60.0) -> tuple[Tell, list[object]]:
        """Ask what an engine asks of Slurm; what is heard."""
        heard: list[object] = []

        def hear(answer: object, now: Now) -> None:
            heard.append(answer)

        self.core.ask(qs.AskAboutNodes(nodes=("n1",)), self.now, hear, within_s=within_s)
        return self.turn(), heard

    def order(self) -> Tell:
        """What only has to be done, so that nothing hears of it."""
        self.core.ask(qs.LetGo(node="n1"), self.now)
        return self.turn()

    def hear(self, tell: Tell, answer: object, *, is_last: bool = True) -> None:
        """Answer a question; the controller takes it in."""
        tell(answer, is_last=is_last)
        self.sim.run(0.0)


@pytest.fixture
def job() -> Asked:
    return Asked(Sim(2, pace=PACE), qs.AskAboutNodes, qs.LetGo)


def stages(job: Asked) -> list[tuple[str, bool, str]]:
    return [(event.what, event.ok, event.detail) for event in job.sim.events(ev.StageDone)]


def test_an_answer_is_heard_once(job: Asked) -> None:
    tell, heard = job.ask()
    job.hear(tell, ())
    job.hear(tell, ("again",))
    assert heard == [()]


def test_several_answers_are_heard_until_all_are_told(job: Asked) -> None:
    tell, heard = job.ask()
    job.hear(tell, 1, is_last=False)
    job.hear(tell, 2, is_last=False)
    job.hear(tell, qs.NoMoreAnswers())
    job.hear(tell, 3)
    assert heard == [1, 2]


def test_an_answer_that_does_not_come_in_time_is_late_and_still_heard(job: Asked) -> None:
    tell, heard = job.ask(within_s=10.0)
    job.sim.run(9.0)
    assert heard == []
    job.sim.run(30.0)
    assert heard == [qs.NoAnswer(reason="no answer within 10 s", late=True)]
    job.hear(tell, ())
    assert heard[1:] == [()]


def test_a_question_that_was_answered_once_is_not_late(job: Asked) -> None:
    tell, heard = job.ask(within_s=10.0)
    job.hear(tell, 1, is_last=False)
    job.sim.run(30.0)
    assert heard == [1]


def test_no_answer_is_told_with_its_reason(job: Asked) -> None:
    tell, heard = job.ask()
    job.hear(tell, qs.NoAnswer(reason="Unable to contact slurm controller"))
    assert heard == [qs.NoAnswer(reason="Unable to contact slurm controller")]
    assert stages(job) == [], "the asker says what follows"


def test_an_error_of_what_should_answer_is_written_down(job: Asked) -> None:
    tell, heard = job.ask()
    error = qs.NoAnswer(reason="ask about nodes: KeyError: 'x'", is_error=True)
    job.hear(tell, error)
    assert (heard, stages(job)) == ([error], [("ask about nodes", False, error.reason)])


def test_what_only_had_to_be_done_and_was_not_is_written_down(job: Asked) -> None:
    job.hear(job.order(), qs.NoAnswer(reason="Invalid job id specified"))
    assert stages(job) == [("let go", False, "Invalid job id specified")]


def test_what_only_had_to_be_done_and_takes_long_is_not_said_to_have_failed(job: Asked) -> None:
    job.order()
    job.sim.run(2 * qs.LetGo.within_s)
    assert stages(job) == []


def test_a_stage_of_what_was_asked_for_is_written_down_and_is_no_answer(job: Asked) -> None:
    tell, heard = job.ask()
    job.hear(tell, qs.StageOver(what="shrink", ok=True, detail="without n3"), is_last=False)
    assert (heard, stages(job)) == ([], [("shrink", True, "without n3")])


def test_an_answer_to_a_question_of_another_controller_is_ignored(job: Asked) -> None:
    _, heard = job.ask()
    assert job.core.on_answer(10_000, qs.StageOver(what="shrink", ok=True, detail=""), job.now) == []
    assert heard == []


def test_every_question_has_a_bound() -> None:
    kinds = [kind for kind in vars(qs).values() if isinstance(kind, type) and issubclass(kind, qs.Question)]
    assert len(kinds) > 20
    assert all(0 < kind.within_s <= 7200 for kind in kinds)


@pytest.mark.parametrize(("question", "fact"), [(qs.FindKillWait, 120.0), (qs.FindSwitches, {"n1": "leaf1"})])
def test_a_fact_that_slurm_did_not_tell_at_the_start_is_asked_for_again(
    question: type[qs.Question[Any]], fact: object
) -> None:
    silent = always(qs.NoAnswer(reason="Unable to contact slurm controller"))
    sim = Sim(1, pace=PACE, steps=400, replies={question: silent})
    sim.run(50.0)
    assert len(questions(sim, question)) == 1
    sim.run(20.0)
    assert len(questions(sim, question)) == 2
    sim.answer(question, always(fact))
    sim.run(130.0)
    core, _ = core_of(sim)
    assert (core.departure.kill_wait_s if question is qs.FindKillWait else core.switches) == fact
    assert len(questions(sim, question)) == 3


def test_only_the_nodes_whose_agents_could_not_be_started_count_as_ended() -> None:
    """The host of the controller has no process left for the srun of n2."""
    sim = Sim(2, pace=PACE, replies={qs.StartAgents: always({"n2": "Resource temporarily unavailable"})})
    sim.run(1.0)
    assert notes(sim) == ["agents on n2 ended: agents could not be started: Resource temporarily unavailable"]


def test_a_controller_that_stood_still_counts_no_time_against_answers(job: Asked) -> None:
    tell, heard = job.ask(within_s=10.0)
    job.sim.controller_stalls(60.0)
    job.sim.run(65.0)
    assert heard == []
    job.hear(tell, ())
    assert heard == [()]


def test_a_controller_that_stood_still_counts_no_time_against_agents_either() -> None:
    job = Asked(trained(2))
    mute(job.sim)
    job.core.stacks.ask(job.now)
    job.sim.controller_stalls(60.0)
    job.sim.run(60.5)
    assert job.core.stacks.taken(job.now) is None
    job.sim.run(60.0)
    taken = job.core.stacks.taken(job.now)
    assert taken is not None
    assert taken.missing == ("n1", "n2")


def test_an_answer_that_waits_to_be_taken_in_is_not_late(job: Asked) -> None:
    """What came meanwhile is taken in one after the other, before time is looked at."""
    other = job.order()
    tell, heard = job.ask(within_s=0.3)
    job.sim.controller_stalls(0.6)  # too short to be forgiven
    other(None)
    tell(())
    job.sim.run(0.7)
    assert heard == [()]


def test_an_older_listing_of_storage_that_fails_spoils_no_newer_one() -> None:
    job = Asked(trained(2), qs.FindCheckpoint)
    storage, ref = job.core.storage, CheckpointId(step=1, generation=1)
    tells = []
    for _ in range(2):
        storage.on_written(ref)
        assert not storage.settle(job.now)
        tells.append(job.turn())
    job.hear(tells[1], {})
    job.hear(tells[0], qs.NoAnswer(reason="Input/output error"))
    assert (storage.settle(job.now), storage.listed) == (True, {ref: Tier.STORAGE})


def test_an_older_question_without_answer_takes_back_nothing_that_slurm_said_since() -> None:
    job = Asked(trained(2), qs.AskAboutNodes)
    witnesses = job.core.witnesses

    def ask(node: str) -> Tell:
        witnesses.ask_slurm((node,), job.now)
        return job.turn()

    older, newer = ask("n2"), ask("n2")
    job.hear(newer, (Witness(node="n2", message="Slurm says DOWN", against=True, gone=True),))
    job.hear(older, qs.NoAnswer(reason="Socket timed out"))
    assert witnesses.gave_up(("n2",))
    job.hear(ask("n1"), (Witness(node="n1", message="Slurm says ALLOCATED", against=False),))
    assert witnesses.gave_up(("n2",)), "it was not asked about n2 again"
    assert not witnesses.gave_up(("n1",))
