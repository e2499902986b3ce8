"""Standbys are checked before they are needed, and a hiccup costs none of them."""

from __future__ import annotations

from slurm_robust.config.job import JobConfig, StandbyConfig
from slurm_robust.engine.transitions import ToReconnecting
from slurm_robust.engine.units.standbys import MARGIN_S
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Fault, Symptom
from slurm_robust.model.standby import Rehearsal, RehearsalState, StandbyStage
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.wire.messages import Phase, Rehearse
from tests.unit.engine.fake_job import Job


class Absent(Job):
    """No agent of ``absent`` joins before the ``comes``-th start."""

    absent = "n3"
    comes = 100

    def join(self, node: str, agent: str = "a", **changes: object) -> None:
        if node != self.absent or sum(node in nodes for nodes in self.started) >= self.comes:
            super().join(node, agent, **changes)


USABLE = ev.SpareSetAside(t=0.0, node="", reason="", usable=True)


def test_a_standby_that_has_not_joined_is_noted_and_not_chosen() -> None:
    job = Absent(spares=("n3", "n4"))
    job.train_to(3)
    job.pass_time(61)
    assert job.core.state.aside["n3"].usable is False
    assert any("standby n3" in text and "Slurm says ALLOCATED" in text for text in job.said)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")
    assert "n3" not in job.core.state.evicted


def test_a_standby_that_never_joins_is_not_chosen_at_all() -> None:
    job = Absent()
    job.train_to(3)
    job.pass_time(200)
    assert [nodes for nodes in job.started if "n3" in nodes] == [("n1", "n2", "n3"), ("n3",)]
    job.power_cut("n2")
    job.until(lambda: job.requeued != [])
    assert job.requeued == [("n2",)]  # and the standby may be given to the next run


def test_an_agent_that_is_started_again_makes_the_standby_fit() -> None:
    job = Absent()
    job.comes = 2
    job.train_to(3)
    job.until(lambda: "n3" in job.heartbeats, limit=90)
    job.pass_time(1)
    assert job.core.state.aside == {}
    assert "standby n3 answers" in job.said


def test_a_standby_whose_agent_cannot_start_is_known_within_seconds() -> None:
    job = Absent()
    job.train_to(3)
    message = "srun: error: n3: task 2: Exited with exit code 2"
    for _ in range(2):
        job.task_ends("n3", message)
        job.pass_time(4)
    assert job.core.state.aside["n3"].usable is False
    assert message in job.core.state.aside["n3"].reason
    assert job.core.state.evicted == {}


def test_a_standby_that_slurm_has_given_up_is_not_chosen() -> None:
    """Its slot would wait for an agent that cannot come."""
    job = Job()
    job.train_to(3)
    job.power_cut("n3")
    job.pass_time(8)
    assert job.core.state.aside["n3"].usable is False
    assert "Slurm says DOWN+NOT_RESPONDING" in job.core.state.aside["n3"].reason
    begun = job.mono
    job.power_cut("n2")
    job.until(lambda: job.requeued != [])
    assert job.mono - begun < 10


def test_a_silent_standby_is_asked_about_again_and_answers_at_last() -> None:
    job = Job()
    job.train_to(3)
    silent = job.heartbeats.pop("n3")
    job.given_up = {"n3"}
    job.pass_time(8)
    assert job.core.state.aside["n3"].usable is False
    job.given_up = set()
    job.heartbeats["n3"] = silent
    job.pass_time(3)
    assert job.core.state.aside == {}


def test_a_hiccup_of_a_standby_is_no_loss() -> None:
    job = Job()
    job.train_to(3)
    silent = job.heartbeats.pop("n3")
    job.pass_time(6)
    assert job.core.state.aside["n3"].usable
    assert job.core.state.evicted == {}
    job.heartbeats["n3"] = silent
    job.pass_time(1)
    assert job.core.state.aside == {}
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")


def test_a_silent_standby_is_taken_where_there_is_no_other() -> None:
    job = Job()
    job.train_to(3)
    silent = job.heartbeats.pop("n3")
    job.pass_time(6)
    job.power_cut("n2")
    job.until(lambda: job.core.world.slots == ("n1", "n3"))
    job.heartbeats["n3"] = silent
    job.until(lambda: job.core.world.generation == 2)
    assert job.requeued == []


def test_a_standby_that_slurm_gives_up_is_not_taken_and_is_convicted_of_nothing() -> None:
    job = Job()
    job.train_to(3)
    job.power_cut("n3")
    job.until(lambda: not job.core.state.aside.get("n3", USABLE).usable, limit=90)
    assert "Slurm says DOWN" in job.core.state.aside["n3"].reason
    assert job.core.state.evicted == {}
    assert job.events(ev.IncidentOpened) == []
    job.power_cut("n2")
    job.until(lambda: bool(job.requeued), limit=20)
    assert job.requeued == [("n2",)]


# -- rehearsals -------------------------------------------------------------------------------------

TWO_SPARES = ("n3", "n4")


def ordered(job: Job) -> list[tuple[str, int]]:
    """Which nodes were ordered to rehearse, and the numbers of the orders, without repetitions."""
    return list(dict.fromkeys((node, m.number) for node, m in job.sent if isinstance(m, Rehearse)))


def train(job: Job, seconds: float) -> None:
    """Training makes steps for so long."""
    for _ in range(round(seconds)):
        job.train_to(job.core.world.best_step + 1)
        job.pass_time(1)


def rehearse(job: Job, node: str, state: RehearsalState, reason: str = "") -> None:
    """The newest order to ``node`` is carried out, with this end."""
    number = max(number for name, number in ordered(job) if name == node)
    job.change(node, rehearsal=Rehearsal(number=number, state=RehearsalState.RUNNING))
    job.change(node, rehearsal=Rehearsal(number=number, state=state, reason=reason, took_s=20.0))
    job.pass_time(1)


def stages(job: Job) -> dict[str, StandbyStage]:
    return {node: known.stage for node, known in job.core.state.standbys.items()}


def test_standbys_rehearse_one_after_the_other_when_training_has_settled() -> None:
    job = Job(spares=TWO_SPARES)
    job.train_to(3)
    job.pass_time(1)
    assert stages(job) == {"n3": StandbyStage.LOADED, "n4": StandbyStage.LOADED}
    train(job, SETTLED_S - 5)
    assert ordered(job) == []
    train(job, 6)
    assert ordered(job) == [("n3", 1)]
    job.change("n3", rehearsal=Rehearsal(number=1, state=RehearsalState.RUNNING))
    train(job, 5)
    assert stages(job)["n3"] is StandbyStage.REHEARSING
    assert ordered(job) == [("n3", 1)]
    rehearse(job, "n3", RehearsalState.PASSED)
    assert ordered(job) == [("n3", 1), ("n4", 1)]
    rehearse(job, "n4", RehearsalState.PASSED)
    train(job, 5)
    assert set(stages(job).values()) == {StandbyStage.REHEARSED}
    assert ordered(job) == [("n3", 1), ("n4", 1)]


def test_no_standby_rehearses_where_that_is_switched_off() -> None:
    job = Job(config=JobConfig(standby=StandbyConfig(rehearse=False, test_s=0)))
    train(job, SETTLED_S + 5)
    assert ordered(job) == []
    assert stages(job) == {"n3": StandbyStage.LOADED}
    assert job.standby_tests == []


def test_an_order_that_is_lost_comes_again() -> None:
    job = Job(spares=TWO_SPARES)
    train(job, SETTLED_S + 20)
    sent = [(node, message.number) for node, message in job.sent if isinstance(message, Rehearse)]
    assert (len(sent) > 5, set(sent)) == (True, {("n3", 1)})


def test_a_standby_on_which_workers_are_still_ending_does_not_hold_up_the_next_one() -> None:
    job = Job(spares=TWO_SPARES)
    job.train_to(3)
    job.change("n3", phase=Phase.STOPPING, generation=1)
    train(job, SETTLED_S + 2)
    assert ordered(job) == [("n4", 1)]
    rehearse(job, "n4", RehearsalState.PASSED)
    job.change("n3", phase=Phase.ENDED)
    train(job, 2)
    assert ordered(job) == [("n4", 1), ("n3", 1)]


def test_a_standby_whose_rehearsal_failed_is_taken_last_and_is_convicted_of_nothing() -> None:
    job = Job(spares=TWO_SPARES)
    train(job, SETTLED_S + 2)
    rehearse(job, "n3", RehearsalState.FAILED, "ModuleNotFoundError at train.py:3: No module named 'wds'")
    rehearse(job, "n4", RehearsalState.PASSED)
    assert any("n3 is taken last" in text and "wds" in text for text in job.said)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")
    assert job.core.state.spares == ("n3",)
    assert "n3" not in job.core.state.evicted


def test_rehearsals_that_fail_alike_everywhere_say_nothing_of_the_nodes() -> None:
    job = Job(spares=TWO_SPARES)
    train(job, SETTLED_S + 2)
    rehearse(job, "n3", RehearsalState.FAILED, "RuntimeError at train.py:9: no connection of n3 to port 4711")
    rehearse(job, "n4", RehearsalState.FAILED, "RuntimeError at train.py:9: no connection of n4 to port 4712")
    assert any("fail alike" in text for text in job.said)
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")


def test_a_rehearsing_standby_is_taken_and_the_next_one_rehearses_when_training_has_settled_again() -> None:
    job = Job(spares=TWO_SPARES)
    train(job, SETTLED_S + 2)
    job.change("n3", rehearsal=Rehearsal(number=1, state=RehearsalState.RUNNING))
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")
    job.change("n3", rehearsal=Rehearsal(number=1, state=RehearsalState.ENDED))
    train(job, SETTLED_S + 3)
    assert ordered(job) == [("n3", 1), ("n4", 1)]


def test_a_standby_that_can_start_no_worker_is_set_aside() -> None:
    job = Job(spares=TWO_SPARES)
    job.train_to(3)
    job.change("n3", ready=False, fatal="torch cannot be imported")
    job.pass_time(1)
    assert job.core.state.aside["n3"].usable is False
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")


def test_a_requeue_says_why_no_standby_was_taken() -> None:
    job = Job(spares=TWO_SPARES)
    job.train_to(3)
    for node in TWO_SPARES:
        job.change(node, ready=False, fatal="torch cannot be\nimported")
    job.pass_time(1)
    job.power_cut("n2")
    job.until(lambda: job.requeued != [])
    (decided,) = [event for event in job.events(ev.Decided) if event.actions]
    why = "torch cannot be imported"
    assert f"0 standbys left (not fit: n3: {why}, n4: {why})" in decided.reason


# -- quick tests ------------------------------------------------------------------------------------

ONLY_TESTS = JobConfig(standby=StandbyConfig(rehearse=False))


def under_test(job: Job) -> list[str]:
    """Standbys whose quick test was begun."""
    return [effect.nodes[0] for effect in job.standby_tests]


def test_each_standby_is_tested_once_when_training_has_settled_and_before_it_rehearses() -> None:
    job = Job(spares=TWO_SPARES)
    job.answers_tests = False
    train(job, SETTLED_S - 5)
    assert under_test(job) == []
    train(job, 10)
    assert under_test(job) == ["n3"]
    assert stages(job) == {"n3": StandbyStage.TESTING, "n4": StandbyStage.LOADED}
    assert ordered(job) == []
    job.answer_test(1, "n3")
    train(job, 3)
    assert under_test(job) == ["n3", "n4"]
    assert ordered(job) == [("n3", 1)]
    job.answer_test(2, "n4")
    rehearse(job, "n3", RehearsalState.PASSED)
    train(job, 5)
    assert stages(job)["n3"] is StandbyStage.REHEARSED
    assert under_test(job) == ["n3", "n4"]


def test_a_standby_that_fails_is_evicted_before_it_is_needed_once_the_test_is_known_to_be_sound() -> None:
    job = Job(spares=TWO_SPARES, config=ONLY_TESTS)
    job.quick, job.quick_text = {"n3": Outcome.FAIL}, "computes wrong results"
    job.answers_tests = False
    train(job, SETTLED_S + 2)
    job.answer_test(1, "n3")
    train(job, 2)
    assert job.core.state.evicted == {}, "the test itself may be at fault"
    assert stages(job)["n3"] is StandbyStage.TEST_FAILED
    job.answer_test(2, "n4")
    train(job, 2)
    assert "gemm: computes wrong results" in job.core.state.evicted["n3"]
    assert job.events(ev.IncidentOpened) == []
    assert job.core.state.spares == ("n4",)


def test_the_only_standby_is_evicted_when_it_fails() -> None:
    job = Job(config=ONLY_TESTS)
    job.quick = {"n3": Outcome.FAIL}
    train(job, SETTLED_S + 5)
    assert "quick test failed" in job.core.state.evicted["n3"]


def test_quick_tests_that_fail_alike_convict_nobody() -> None:
    job = Job(spares=TWO_SPARES, config=ONLY_TESTS)
    job.quick = dict.fromkeys(TWO_SPARES, Outcome.FAIL)
    train(job, SETTLED_S + 10)
    assert job.core.state.evicted == {}
    assert sum("quick tests fail alike" in text for text in job.said) == 1
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n3")


def test_a_standby_that_gives_no_answer_is_taken_last_and_convicted_of_nothing() -> None:
    job = Job(spares=TWO_SPARES, config=ONLY_TESTS)
    job.quick = {"n3": None}
    train(job, SETTLED_S + 10)
    assert stages(job) == {"n3": StandbyStage.TEST_UNANSWERED, "n4": StandbyStage.TESTED}
    assert any("n3 is taken last: its quick test gave no answer" in text for text in job.said)
    assert job.core.state.evicted == {}
    job.power_cut("n2")
    job.until(lambda: job.core.world.generation == 2)
    assert job.core.world.slots == ("n1", "n4")


def test_a_test_without_an_end_is_ended_and_is_no_answer() -> None:
    job = Job(config=ONLY_TESTS)
    job.answers_tests = False
    train(job, SETTLED_S + 60 + 40)
    assert job.ended_tests == [1]
    assert job.core.state.standby_tests["n3"].outcome is Outcome.UNKNOWN
    job.answer_test(1, "n3")
    assert job.core.state.standby_tests["n3"].outcome is Outcome.UNKNOWN, "too late"


def test_a_standby_that_is_gone_is_not_shown_as_under_test() -> None:
    job = Job(config=ONLY_TESTS)
    job.answers_tests = False
    train(job, SETTLED_S + 2)
    assert stages(job) == {"n3": StandbyStage.TESTING}
    job.power_cut("n3")
    train(job, 20)
    assert stages(job) == {"n3": StandbyStage.STARTING}


def test_a_standby_under_test_is_taken_at_once_and_what_its_test_says_then_does_not_count() -> None:
    job = Job(spares=TWO_SPARES, config=ONLY_TESTS)
    job.quick = {"n3": Outcome.FAIL}
    job.answers_tests = False
    train(job, SETTLED_S + 2)
    job.power_cut("n2")
    job.until(lambda: job.core.world.incident is not None)
    assert job.ended_tests == [1]
    job.until(lambda: job.core.world.generation == 2)
    job.answer_test(1, "n3")
    assert job.core.state.standby_tests == {}
    assert job.core.world.slots == ("n1", "n3")
    train(job, SETTLED_S + 2)
    assert under_test(job) == ["n3", "n4"]


def test_a_test_that_a_hang_has_ended_is_begun_again_when_training_has_settled_again() -> None:
    job = Job(config=ONLY_TESTS)
    job.answers_tests = False
    train(job, SETTLED_S + 2)
    job.core.steps.write(job.now(), force=True)
    job.core.incidents.open(Fault(symptom=Symptom.HANG, detail="no step", detect_s=15.0), job.now())
    job.pass_time(1)
    assert job.ended_tests == [1]
    job.train_to(job.core.world.best_step + 1)
    job.until(lambda: job.core.world.incident is None)
    train(job, SETTLED_S - 5)
    assert under_test(job) == ["n3"]
    train(job, 10)
    assert under_test(job) == ["n3", "n3"]


def test_a_test_that_never_gets_to_its_end_is_not_begun_for_ever() -> None:
    job = Job(config=ONLY_TESTS)
    job.answers_tests = False
    for generation in range(2, 7):
        train(job, SETTLED_S + 5)
        job.kill_rank(0)
        job.until(lambda generation=generation: job.core.world.generation == generation)  # type: ignore[misc]
    assert under_test(job) == ["n3"] * 3


def test_the_next_controller_tests_no_standby_twice() -> None:
    job = Job(spares=TWO_SPARES, config=ONLY_TESTS)
    train(job, SETTLED_S + 10)
    assert under_test(job) == ["n3", "n4"]
    again = taken_over(job)
    train(again, SETTLED_S + 10)
    assert again.standby_tests == []


def taken_over(job: Job) -> Job:
    """The next controller of ``job`` trains."""
    history = (*job.journal, ev.ControllerStarted(t=job.wall, epoch=2, host="n1", pid=2, port=2))
    again = Job(history=history, config=ONLY_TESTS, first=ToReconnecting(), clock=(job.mono, job.wall))
    again.heartbeats = dict(job.heartbeats)
    again.until(lambda: again.stage == "Running")
    return again


def test_the_next_controller_waits_for_the_end_of_a_test_that_it_did_not_begin() -> None:
    """Nothing ends that test, and two at a time on the same GPUs fail each other."""
    job = Job(spares=("n3",), config=ONLY_TESTS)
    job.answers_tests = False
    train(job, SETTLED_S + 10)
    assert under_test(job) == ["n3"]
    again = taken_over(job)
    train(again, ONLY_TESTS.standby.test_s + MARGIN_S - 5)
    assert under_test(again) == []
    train(again, 10)
    assert under_test(again) == ["n3"]


def test_observing_nothing_is_tested() -> None:
    job = Job(config=JobConfig(mode="observe"))
    train(job, SETTLED_S + 10)
    assert job.standby_tests == []
    assert ordered(job) == []
