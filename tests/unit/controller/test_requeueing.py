"""A requeue is asked for until Slurm answers, and every answer, or none, has an end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_robust.controller.requeue import Requeuer
from slurm_robust.engine import questions as qs
from slurm_robust.engine.questions import RequeueStatus, SlurmAnswer
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.policy.patience import ANSWER_COMES_S, GIVE_UP_S, LONGEST_PAUSE_S, LOST_S, TERM_COMES_S
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import status_at
from slurm_robust.slurm.errors import CommandFailed
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.environment import Reply, Tell
from slurm_robust.testing.sim.job import Sim
from tests.unit.engine.stories import controller_of, requeues, seconds_until, trained

SILENT = SlurmAnswer(said=RequeueStatus.NOTHING, detail="Unable to contact slurm controller")
TAKEN, DONE = SlurmAnswer(said=RequeueStatus.TAKEN), SlurmAnswer(said=RequeueStatus.DONE)


def answering(*answers: SlurmAnswer) -> Reply:
    """Slurm says all of this each time that it is asked, and may say more."""

    def reply(asked: qs.BeginRequeue, tell: Tell) -> None:
        for answer in answers:
            tell(answer, is_last=False)

    return reply


def leaving(*answers: SlurmAnswer, reply: Reply | None = None) -> Sim:
    """A job that has lost a node and asks for its requeue, to which Slurm says ``answers`` each time."""
    sim = trained(2, to=3, replies={qs.BeginRequeue: reply or answering(*answers)})
    sim.node_dies("n2")
    sim.run_until(lambda: bool(requeues(sim)), within_s=60.0)
    return sim


def term_comes(sim: Sim) -> None:
    controller_of(sim).order_to_end("ordered to end by SIGTERM")


def told_to_end(sim: Sim) -> float:
    """TERM comes; seconds until the controller ends."""
    term_comes(sim)
    return seconds_until(sim, lambda: sim.stage != "Requeueing")


def complaints(sim: Sim) -> int:
    return sum("Slurm has not taken the requeue" in text for text in sim.said)


def test_slurm_is_asked_for_a_requeue_until_it_answers() -> None:
    sim = leaving(SILENT)
    sim.run(600.0)
    assert sim.stage == "Requeueing"
    assert 600 / LONGEST_PAUSE_S < len(requeues(sim)) < 60
    assert complaints(sim) == 1
    sim.run(600.0)
    assert complaints(sim) == 2
    status = status_at(JobView(events=sim.journal), sim.clock.now)
    assert status.phase == "requeueing"
    assert "Unable to contact slurm controller" in status.reason
    sim.answer(qs.BeginRequeue, answering(TAKEN, DONE))
    asked = len(requeues(sim))
    sim.run_until(lambda: len(requeues(sim)) > asked, within_s=LONGEST_PAUSE_S + 1.0)
    sim.run(1.0)
    assert told_to_end(sim) == 0.0
    assert sim.run_to_end(within_s=20.0) == ExitCode.REQUEUED
    assert sim.state.ended is None


def test_a_refusal_ends_the_job_with_slurms_message() -> None:
    message = "Slurm does not requeue the job: Requested operation is presently disabled"
    sim = leaving(SILENT)
    sim.answer(qs.BeginRequeue, answering(SlurmAnswer(said=RequeueStatus.REFUSED, detail=message)))
    assert sim.run_to_end(within_s=60.0) == ExitCode.DO_NOT_REQUEUE
    assert sim.state.ended is not None
    assert message in sim.state.ended.reason


def test_without_any_answer_the_owner_is_obeyed_within_two_seconds() -> None:
    sim = leaving(SILENT)
    sim.run(30.0)
    assert told_to_end(sim) <= 2.0
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED


@pytest.mark.parametrize("answers_s", [(1.0, 2.0), (ANSWER_COMES_S - 2,)], ids=["in two words", "late"])
def test_the_term_of_the_requeue_itself_may_come_before_its_answer(answers_s: tuple[float, ...]) -> None:
    tells: list[Tell] = []
    sim = leaving(reply=lambda asked, tell: tells.append(tell))
    term_comes(sim)
    began = sim.now
    for after_s, answer in zip(answers_s, (TAKEN, DONE)[-len(answers_s) :], strict=True):
        sim.run(after_s - (sim.now - began))
        assert sim.stage == "Requeueing"  # the excludes and the watcher take a moment more
        tells[0](answer, is_last=False)
    assert sim.run_to_end(within_s=60.0) == ExitCode.REQUEUED


def test_the_owner_is_obeyed_if_an_order_to_slurm_has_no_answer_at_all() -> None:
    sim = leaving()
    assert told_to_end(sim) <= ANSWER_COMES_S + 1
    assert sim.run_to_end(within_s=60.0) == ExitCode.TERMINATED


class DiesOfTerm(FakeSlurm):
    """``scontrol requeue`` dies of the TERM that it causes, so no process hears that Slurm took the order."""

    def requeue(self, job_id: int) -> None:
        super().requeue(job_id)
        raise CommandFailed("scontrol requeue: ended by SIGTERM")


def test_a_requeue_whose_command_died_is_seen_by_what_follows(tmp_path: Path) -> None:
    slurm = DiesOfTerm()
    job_id = slurm.submit(SubmitRequest(command=("x",), nodes=1))
    said: list[RequeueStatus] = []
    Requeuer(slurm, job_id, 0, tmp_path / "requeue.jsonl", start_now=False).ask(
        ("n1",), lambda *_: None, lambda answer: said.append(answer.said)
    )
    assert said == [RequeueStatus.TAKEN, RequeueStatus.DONE]


@pytest.mark.parametrize("answers", [(TAKEN,), (TAKEN, DONE), (TAKEN, SILENT)])
def test_a_requeue_that_was_taken_ends_the_run_whatever_follows(answers: tuple[SlurmAnswer, ...]) -> None:
    sim = leaving(*answers)
    assert told_to_end(sim) <= TERM_COMES_S + 1
    assert sim.run_to_end(within_s=60.0) == ExitCode.REQUEUED


@pytest.mark.parametrize("answers", [(TAKEN,), (TAKEN, DONE), (TAKEN, SILENT), (DONE,)])
def test_a_job_does_not_wait_for_a_term_that_never_comes(answers: tuple[SlurmAnswer, ...]) -> None:
    assert leaving(*answers).run_to_end(within_s=LOST_S + 60) == ExitCode.REQUEUED


def test_a_requeue_of_which_nothing_is_heard_is_asked_for_again() -> None:
    sim = leaving()
    sim.run(LOST_S + 2.0)
    assert requeues(sim) == [("n2",), ("n2",)]


def test_nodes_are_not_kept_for_days_while_slurm_does_not_requeue() -> None:
    sim = leaving(SILENT)
    sim.suspend(GIVE_UP_S - 60.0)
    sim.run(50.0)
    assert sim.stage == "Requeueing"
    assert sim.run_to_end(within_s=60.0) == ExitCode.DO_NOT_REQUEUE


def test_a_job_that_somebody_holds_says_who_can_release_it() -> None:
    advice = "an administrator holds it (JobHeldAdmin) and only one can release it: scontrol release 7"
    sim = leaving(TAKEN, SlurmAnswer(said=RequeueStatus.DONE, detail=advice))
    sim.run(1.0)
    assert f"the job is requeued but does not start by itself: {advice}" in sim.said


def test_the_next_controller_goes_on_asking_for_a_requeue() -> None:
    sim = leaving(SILENT)
    sim.controller_dies()
    sim.answer(qs.BeginRequeue, answering())
    asked = len(requeues(sim))
    sim.run(10.0)
    assert (sim.stage, requeues(sim)[asked:]) == ("Requeueing", [("n2",)])
    first, again = sim.events(ev.RequeueStarted)
    assert (again.exclude, again.reason, again.failure) == (first.exclude, first.reason, True)


# -- the edge ----------------------------------------------------------------------------------------


class Asked:
    """A requeuer over a Slurm in memory, and what it reported."""

    def __init__(self, tmp_path: Path, *options: str, slurm: FakeSlurm | None = None) -> None:
        self.slurm = slurm or FakeSlurm()
        self.id = self.slurm.submit(SubmitRequest(command=("train.sh",), nodes=2, options=options))
        self.stages: list[tuple[str, bool]] = []
        self.answers: list[SlurmAnswer] = []
        self._requeuer = Requeuer(
            self.slurm,
            self.id,
            0,
            tmp_path / "requeue.jsonl",
            nodes=("n1", "n2"),
            start_now=True,
        )

    def ask(self, *exclude: str) -> list[RequeueStatus]:
        self._requeuer.ask(exclude, lambda what, ok, _: self.stages.append((what, ok)), self.answers.append)
        return [answer.said for answer in self.answers]


def test_the_watcher_keeps_off_the_nodes_that_the_job_may_get_again(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    assert asked.ask("n2") == [RequeueStatus.TAKEN, RequeueStatus.DONE]
    (watcher,) = (j for j in asked.slurm.jobs() if j.name == f"srobust-watch-{asked.id}")
    assert watcher.excluded_nodes == ("n1", "n2")


class Resizing(FakeSlurm):
    """Just after a job was resized: Slurm takes its requeue, and no exclusion."""

    def set_excluded_nodes(self, job_id: int, nodes: Sequence[str]) -> None:
        raise CommandFailed("the DB index is being set, try again in a bit")


def test_a_watcher_is_there_before_slurm_takes_the_exclusion(tmp_path: Path) -> None:
    asked = Asked(tmp_path, slurm=Resizing())
    asked.ask("n2")
    assert asked.stages[:2] == [("requeue", True), ("watcher", True)]
    assert ("exclude nodes", False) in asked.stages


class Busy(FakeSlurm):
    """Slurm takes the second of two watchers only."""

    is_busy = True

    def submit(self, request: SubmitRequest) -> int:
        if request.name.startswith("srobust-watch") and self.is_busy:
            self.is_busy = False
            raise CommandFailed("Socket timed out on send/recv operation")
        return super().submit(request)


def watchers(asked: Asked) -> int:
    return sum(job.name == f"srobust-watch-{asked.id}" for job in asked.slurm.jobs())


def test_a_watcher_that_did_not_start_is_started_again(tmp_path: Path) -> None:
    asked = Asked(tmp_path, slurm=Busy())
    assert asked.ask("n2") == [RequeueStatus.TAKEN, RequeueStatus.DONE]
    assert [ok for stage, ok in asked.stages if stage == "watcher"] == [False, True]
    assert watchers(asked) == 1


@pytest.mark.parametrize("exclude", [(), ("n2",)])
def test_a_requeue_without_an_answer_has_one_watcher(tmp_path: Path, exclude: tuple[str, ...]) -> None:
    asked = Asked(tmp_path, slurm=DiesOfTerm())
    assert asked.ask(*exclude)[-1] is RequeueStatus.DONE
    assert watchers(asked) == 1


class Masked(FakeSlurm):
    """Remembers which signals its caller blocked, which a command would inherit."""

    blocked: tuple[int, ...] = ()

    def requeue(self, job_id: int) -> None:
        self.blocked = tuple(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        super().requeue(job_id)


def test_slurms_term_ends_none_of_the_commands(tmp_path: Path) -> None:
    slurm = Masked()
    Asked(tmp_path, slurm=slurm).ask()
    assert signal.SIGTERM in slurm.blocked
    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_an_expedited_job_has_no_watcher(tmp_path: Path) -> None:
    asked = Asked(tmp_path, "--requeue=expedite")
    assert asked.ask("n2") == [RequeueStatus.TAKEN, RequeueStatus.DONE]
    assert [job.job_id for job in asked.slurm.jobs()] == [asked.id]


def test_a_refusal_is_answered_with_slurms_message(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.slurm.forbid_requeue(asked.id)
    assert asked.ask("n2") == [RequeueStatus.REFUSED]
    assert "Requested operation is presently disabled" in asked.answers[0].detail


def test_a_cancelled_job_is_a_refusal_and_not_revived(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.slurm.cancel(asked.id)
    assert asked.ask("n2") == [RequeueStatus.REFUSED]
    assert asked.slurm.job(asked.id).is_finished
