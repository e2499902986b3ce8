"""Standbys are checked before they are needed, and a hiccup costs none of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from slurm_robust.config.job import JobConfig, StandbyConfig, Timings
from slurm_robust.engine import questions as qs
from slurm_robust.engine.units.standbys import MARGIN_S, MAX_TESTS
from slurm_robust.model import events as ev
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, Symptom, TestResult
from slurm_robust.model.standby import StandbyStage
from slurm_robust.policy.quick_test import TESTS
from slurm_robust.policy.standbys import SETTLED_S
from slurm_robust.testing.sim.environment import Tell, never
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.messages import Rehearse
from tests.unit.engine.stories import (
    PACE,
    comes_to,
    evicted,
    gets_on,
    gives_up,
    mute,
    next_controller,
    opened,
    questions,
    requeues,
    sent,
    starts,
    trained,
)

SILENT_S = 33.0
"""An agent that is silent for so long is lost, although its node answers."""

LONGEST_TEST_S = PACE.test_s[1]
LONGEST_REHEARSAL_S = 20.0


def settles(sim: Sim, more_s: float = 1.0) -> None:
    """Until the newest generation has trained, with no incident, for so long after it has settled."""
    first, closed = sim.events(ev.StartMeasured)[-1], sim.events(ev.IncidentClosed)
    assert (first.generation, sim.state.world.incident) == (sim.state.world.generation, None)
    since = max(event.t for event in (first, *closed))
    sim.run(since + SETTLED_S + more_s - sim.clock.now)


def stages(sim: Sim) -> dict[str, StandbyStage]:
    return {node: known.stage for node, known in sim.state.standbys.items()}


def until_stage(sim: Sim, node: str, stage: StandbyStage) -> None:
    sim.run_until(lambda: stages(sim).get(node) is stage, within_s=60.0)


def is_usable(sim: Sim, node: str) -> bool | None:
    """Whether a standby that is set aside may be taken if there is no other; None: it is not set aside."""
    return sim.state.aside[node].usable if node in sim.state.aside else None


def loses_n2(sim: Sim) -> tuple[str, ...]:
    """The slots after n2 has died and a standby has taken its slot."""
    generation = sim.state.world.generation + 1
    sim.node_dies("n2")
    gets_on(sim, generation)
    return sim.state.world.slots


def is_requeued_without_n2(sim: Sim) -> bool:
    """n2 dies, and Slurm soon gets the job back."""
    sim.node_dies("n2")
    sim.run_until(lambda: bool(requeues(sim)), within_s=10.0)
    return requeues(sim) == [("n2",)]


# -- whether they are there ----------------------------------------------------------------------------


def without_agent(spares: int = 1, line: str = "") -> Sim:
    """A job that trains; srun has started no agent on n3, and may say why."""
    sim = Sim(2, spares, seed=1, steps=400, others=1, pace=PACE)
    sim.no_agent["n3"] = line
    comes_to(sim, 10)
    return sim


def hiccups(sim: Sim) -> None:
    """The agent of n3 stands still for longer than a loaded node makes it."""
    sim.agent_stalls("n3")
    sim.run(SILENT_S)


def test_a_standby_that_has_not_joined_is_noted_and_not_chosen() -> None:
    sim = without_agent(spares=2)
    sim.run(61.0)
    assert is_usable(sim, "n3") is False
    assert any("standby n3" in text and "Slurm says ALLOCATED" in text for text in sim.said)
    assert loses_n2(sim) == ("n1", "n4")
    assert evicted(sim) == {"n2"}


def test_a_standby_that_never_joins_is_not_chosen_at_all() -> None:
    sim = without_agent()
    sim.run(130.0)
    assert starts(sim) == [("n1", "n2", "n3"), ("n3",)]
    assert is_requeued_without_n2(sim), "the standby may be given to the next run"


def test_an_agent_that_is_started_again_makes_the_standby_fit() -> None:
    sim = without_agent()
    sim.run_until(lambda: is_usable(sim, "n3") is False, within_s=90.0)
    sim.no_agent.clear()
    sim.run_until(lambda: sim.state.aside == {}, within_s=10.0)
    assert (starts(sim)[1:], "standby n3 answers" in sim.said) == ([("n3",)], True)


def test_a_standby_whose_agent_cannot_start_is_known_within_seconds() -> None:
    line = "srun: error: n3: task 2: Exited with exit code 2"
    sim = without_agent(line=line)
    assert is_usable(sim, "n3") is False
    (aside,) = (event for event in sim.events(ev.SpareSetAside) if not event.usable)
    assert (line in aside.reason, aside.t - sim.journal[0].t < 12.0) == (True, True)
    assert sim.state.evicted == {}


@pytest.mark.parametrize("is_dead", [True, False], ids=["without power", "as Slurm says"])
def test_a_standby_that_is_given_up_is_not_chosen_and_is_convicted_of_nothing(is_dead: bool) -> None:
    """Its slot would wait for an agent that cannot come."""
    sim = trained(2, 1)
    if is_dead:
        sim.node_dies("n3")
    else:
        gives_up(sim, "n3")
        hiccups(sim)
    sim.run(3.0)
    assert is_usable(sim, "n3") is False
    why = "its node is dead" if is_dead else "Slurm says DOWN+NOT_RESPONDING (Not responding)"
    assert why in sim.state.aside["n3"].reason
    assert (evicted(sim), opened(sim)) == (set(), [])
    assert is_requeued_without_n2(sim)


def test_a_silent_standby_is_asked_about_again_and_answers_at_last() -> None:
    sim = trained(2, 1)
    gives_up(sim, "n3")
    hiccups(sim)
    sim.run(3.0)
    assert is_usable(sim, "n3") is False
    sim.cluster.set_node("n3", states=frozenset({"ALLOCATED"}), reason="")
    sim.agent_stalls("n3", stalls=False)
    sim.run(3.0)
    assert is_usable(sim, "n3") is None


def test_a_hiccup_of_a_standby_is_no_loss() -> None:
    sim = trained(2, 1)
    hiccups(sim)
    assert (is_usable(sim, "n3"), evicted(sim)) == (True, set())
    sim.agent_stalls("n3", stalls=False)
    sim.run(1.0)
    assert is_usable(sim, "n3") is None
    assert loses_n2(sim) == ("n1", "n3")


def test_a_silent_standby_is_taken_if_there_is_no_other() -> None:
    sim = trained(2, 1)
    hiccups(sim)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.slots == ("n1", "n3"), within_s=20.0)
    sim.agent_stalls("n3", stalls=False)
    gets_on(sim, 2)
    assert (requeues(sim), sim.state.world.slots) == ([], ("n1", "n3"))


def can_start_no_worker(*nodes: str, why: str) -> Sim:
    """A job of which these standbys can start no worker."""
    sim = Sim(2, 2, seed=1, steps=400, others=1, pace=PACE)
    for node in nodes:
        sim.nodes[node].unfit = why
    comes_to(sim, 10)
    return sim


def test_a_standby_that_can_start_no_worker_is_set_aside() -> None:
    sim = can_start_no_worker("n3", why="torch cannot be imported")
    assert sim.state.aside["n3"].reason == "torch cannot be imported"
    assert loses_n2(sim) == ("n1", "n4")


def test_a_requeue_says_why_no_standby_was_taken() -> None:
    sim = can_start_no_worker("n3", "n4", why="torch cannot be\nimported")
    assert is_requeued_without_n2(sim)
    (decided,) = [event for event in sim.events(ev.Decided) if event.actions]
    why = "torch cannot be imported"
    assert f"0 standbys left (not fit: n3: {why}, n4: {why})" in decided.reason


# -- rehearsals -----------------------------------------------------------------------------------------

ONLY_REHEARSALS = JobConfig(standby=StandbyConfig(test_s=0))


def ordered(sim: Sim) -> list[tuple[str, int]]:
    """Which nodes were ordered to rehearse, and the numbers of the orders, without repetitions."""
    return list(dict.fromkeys((node, m.number) for node, m in sent(sim, Rehearse)))


def rehearses(sim: Sim, *nodes: str) -> None:
    """Until these have rehearsed, one after the other."""
    ended = (StandbyStage.REHEARSED, StandbyStage.REHEARSAL_FAILED)
    within_s = SETTLED_S + (LONGEST_REHEARSAL_S + 2.0) * len(nodes)
    sim.run_until(lambda: all(stages(sim).get(node) in ended for node in nodes), within_s)


def test_standbys_rehearse_one_after_the_other_when_training_has_settled() -> None:
    sim = trained(2, 2, config=ONLY_REHEARSALS)
    settles(sim, -3.0)
    assert (ordered(sim), set(stages(sim).values())) == ([], {StandbyStage.LOADED})
    settles(sim, 3.0)
    assert ordered(sim) == [("n3", 1)]
    assert stages(sim) == {"n3": StandbyStage.REHEARSING, "n4": StandbyStage.LOADED}
    until_stage(sim, "n3", StandbyStage.REHEARSED)
    assert stages(sim)["n4"] is StandbyStage.LOADED
    until_stage(sim, "n4", StandbyStage.REHEARSED)
    sim.run(10.0)
    assert set(stages(sim).values()) == {StandbyStage.REHEARSED}
    assert ordered(sim) == [("n3", 1), ("n4", 1)]


@pytest.mark.parametrize(
    "config",
    [JobConfig(standby=StandbyConfig(rehearse=False, test_s=0)), JobConfig(mode="observe")],
    ids=["switched off", "observing"],
)
def test_no_standby_is_tested_or_rehearses_in_observe_mode_or_if_switched_off(config: JobConfig) -> None:
    sim = trained(2, 1, config=config)
    settles(sim, 10.0)
    assert (ordered(sim), under_test(sim)) == ([], [])
    assert stages(sim) == {"n3": StandbyStage.LOADED}


def test_an_order_to_rehearse_that_is_lost_comes_again() -> None:
    sim = trained(2, 2, config=ONLY_REHEARSALS)
    sim.run_until(lambda: bool(ordered(sim)), within_s=SETTLED_S)
    sim.partition("n3")  # before it arrives
    sim.run(0.5)
    sim.heal()
    assert stages(sim)["n3"] is StandbyStage.LOADED
    rehearses(sim, "n3")
    told = [(node, message.number) for node, message in sent(sim, Rehearse)]
    assert told[:2] == [("n3", 1), ("n3", 1)]


def test_a_standby_on_which_workers_are_still_ending_does_not_hold_up_the_next_one() -> None:
    config = JobConfig(standby=StandbyConfig(test_s=0), timings=Timings(takeover_s=0.0))
    sim = trained(4, 2, config=config)
    sim.nodes["n3"].dying_s = 80.0
    sim.partition("n3", "n4", fabric=True)
    gets_on(sim, 2)
    sim.heal()
    rehearses(sim, "n4")
    assert (sim.state.spares[0], bool(sim.nodes["n3"].workers)) == ("n3", True)
    assert ordered(sim) == [("n4", 1)]
    sim.run_until(lambda: not sim.nodes["n3"].workers, within_s=80.0)
    rehearses(sim, "n3")
    assert ordered(sim) == [("n4", 1), ("n3", 1)]


def test_a_standby_whose_rehearsal_failed_is_taken_last_and_is_convicted_of_nothing() -> None:
    sim = trained(2, 2, config=ONLY_REHEARSALS)
    sim.nodes["n3"].rehearsal = "ModuleNotFoundError at train.py:3: No module named 'wds'"
    rehearses(sim, "n3", "n4")
    assert any("n3 is taken last" in text and "wds" in text for text in sim.said)
    assert loses_n2(sim) == ("n1", "n4")
    assert (sim.state.spares, evicted(sim)) == (("n3",), {"n2"})


def test_rehearsals_that_fail_alike_everywhere_say_nothing_of_the_nodes() -> None:
    sim = trained(2, 2, config=ONLY_REHEARSALS)
    for port, node in enumerate(("n3", "n4"), start=4711):
        sim.nodes[node].rehearsal = f"RuntimeError at train.py:9: no connection of {node} to port {port}"
    rehearses(sim, "n3", "n4")
    assert any("fail alike" in text for text in sim.said)
    assert loses_n2(sim) == ("n1", "n3")


def test_a_rehearsing_standby_is_taken_and_the_next_one_rehearses_when_training_has_settled_again() -> None:
    sim = trained(2, 2, config=ONLY_REHEARSALS)
    until_stage(sim, "n3", StandbyStage.REHEARSING)
    assert loses_n2(sim) == ("n1", "n3")
    settles(sim, -3.0)
    assert ordered(sim) == [("n3", 1)]
    settles(sim, 3.0)
    assert ordered(sim) == [("n3", 1), ("n4", 1)]


# -- quick tests ----------------------------------------------------------------------------------------

ONLY_TESTS = JobConfig(standby=StandbyConfig(rehearse=False))


def diagnosis(nodes: Iterable[str], outcome: Outcome = Outcome.PASS) -> Diagnosis:
    results = (TestResult(test=test, node=n, outcome=outcome, text="x") for n in nodes for test in TESTS)
    return Diagnosis(results=tuple(results), reason="tested")


class HeldTests:
    """Quick tests of standbys that are over when the test says so; other tests pass."""

    def __init__(self) -> None:
        self._tells: dict[str, Tell] = {}

    def __call__(self, asked: qs.TestNodes, tell: Tell) -> None:
        if asked.standby:
            self._tells[asked.nodes[0]] = tell
        else:
            tell(diagnosis(asked.nodes))

    def end(self, node: str, outcome: Outcome | None = Outcome.PASS) -> None:
        """None: no answer."""
        self._tells[node](Diagnosis() if outcome is None else diagnosis((node,), outcome))


def under_test(sim: Sim) -> list[str]:
    """Standbys whose quick test was begun."""
    return [asked.nodes[0] for asked in questions(sim, qs.TestNodes) if asked.standby]


def ended_tests(sim: Sim) -> list[int]:
    """The numbers of the quick tests that were ended before they were over."""
    return [asked.number for asked in questions(sim, qs.EndStandbyTest)]


def after_tests(sim: Sim, *nodes: str) -> Sim:
    """The job, after the quick tests of these."""
    within_s = SETTLED_S + (LONGEST_TEST_S + 2.0) * len(nodes)
    sim.run_until(lambda: sim.state.standby_tests.keys() >= set(nodes), within_s)
    sim.run(1.5)
    return sim


def broken(*nodes: str, spares: int = 2) -> Sim:
    """A job with standbys, of which some compute wrong numbers."""
    sim = trained(2, spares, config=ONLY_TESTS)
    for node in nodes:
        sim.nodes[node].is_broken = True
    return sim


def test_each_standby_is_tested_once_when_training_has_settled_and_before_it_rehearses() -> None:
    tests = HeldTests()
    sim = trained(2, 2, replies={qs.TestNodes: tests})
    settles(sim, -3.0)
    assert under_test(sim) == []
    settles(sim, 5.0)
    assert (under_test(sim), ordered(sim)) == (["n3"], [])
    assert stages(sim) == {"n3": StandbyStage.TESTING, "n4": StandbyStage.LOADED}
    tests.end("n3")
    sim.run(3.0)
    assert (under_test(sim), ordered(sim)) == (["n3", "n4"], [("n3", 1)])
    tests.end("n4")
    rehearses(sim, "n3", "n4")
    sim.run(5.0)
    assert set(stages(sim).values()) == {StandbyStage.REHEARSED}
    assert under_test(sim) == ["n3", "n4"]


def test_a_standby_that_fails_its_quick_test_is_evicted_once_that_is_known_to_be_sound() -> None:
    sim = after_tests(broken("n3"), "n3")
    assert evicted(sim) == set(), "the test itself may be at fault"
    assert stages(sim)["n3"] is StandbyStage.TEST_FAILED
    after_tests(sim, "n4")
    assert "gemm: computes wrong numbers" in sim.state.evicted["n3"]
    assert (opened(sim), sim.state.spares) == ([], ("n4",))


def test_the_only_standby_is_evicted_when_it_fails_its_quick_test() -> None:
    sim = after_tests(broken("n3", spares=1), "n3")
    assert "quick test failed" in sim.state.evicted["n3"]


def test_quick_tests_that_fail_alike_convict_no_node() -> None:
    sim = after_tests(broken("n3", "n4"), "n3", "n4")
    assert evicted(sim) == set()
    assert sum("quick tests fail alike" in text for text in sim.said) == 1
    assert loses_n2(sim) == ("n1", "n3")


def test_a_standby_whose_quick_test_has_no_answer_is_taken_last_and_convicted_of_nothing() -> None:
    tests = HeldTests()
    sim = trained(2, 2, config=ONLY_TESTS, replies={qs.TestNodes: tests})
    for node, outcome in (("n3", None), ("n4", Outcome.PASS)):
        until_stage(sim, node, StandbyStage.TESTING)
        tests.end(node, outcome)
    after_tests(sim, "n3", "n4")
    assert stages(sim) == {"n3": StandbyStage.TEST_UNANSWERED, "n4": StandbyStage.TESTED}
    assert any("n3 is taken last: its quick test gave no answer" in text for text in sim.said)
    assert loses_n2(sim) == ("n1", "n4")
    assert evicted(sim) == {"n2"}


def test_a_quick_test_without_an_end_is_ended_and_is_no_answer() -> None:
    tests = HeldTests()
    sim = trained(2, 1, config=ONLY_TESTS, replies={qs.TestNodes: tests})
    settles(sim, ONLY_TESTS.standby.test_s + MARGIN_S + 3.0)
    assert ended_tests(sim) == [1]
    for _ in range(2):
        assert sim.state.standby_tests["n3"].outcome is Outcome.UNKNOWN, "the answer comes too late"
        tests.end("n3")
        sim.run(1.0)


def test_a_standby_that_is_gone_is_not_shown_as_under_test() -> None:
    sim = trained(2, 1, config=ONLY_TESTS, replies={qs.TestNodes: never})
    until_stage(sim, "n3", StandbyStage.TESTING)
    sim.node_dies("n3")
    sim.run(20.0)
    assert stages(sim) == {"n3": StandbyStage.STARTING}


def test_a_standby_under_test_is_taken_and_what_its_test_says_then_does_not_count() -> None:
    tests = HeldTests()
    sim = trained(2, 2, config=ONLY_TESTS, replies={qs.TestNodes: tests})
    until_stage(sim, "n3", StandbyStage.TESTING)
    sim.node_dies("n2")
    sim.run_until(lambda: sim.state.world.incident is not None, within_s=5.0)
    assert ended_tests(sim) == [1]
    tests.end("n3", Outcome.FAIL)
    gets_on(sim, 2)
    assert (sim.state.standby_tests, sim.state.world.slots) == ({}, ("n1", "n3"))
    settles(sim, 2.0)
    assert under_test(sim) == ["n3", "n4"]


def test_a_quick_test_that_a_hang_has_ended_is_begun_again_when_training_has_settled_again() -> None:
    sim = trained(2, 1, config=ONLY_TESTS, replies={qs.TestNodes: never})
    until_stage(sim, "n3", StandbyStage.TESTING)
    mute(sim, "n1", "n2")
    sim.hang_rank(1)
    sim.run_until(lambda: opened(sim) == [Symptom.HANG], within_s=60.0)
    assert ended_tests(sim) == [1]
    sim.resume_rank(1)
    sim.run_until(lambda: sim.state.world.incident is None, within_s=60.0)
    assert sim.state.world.generation == 1
    sim.run(SETTLED_S - 5.0)
    assert under_test(sim) == ["n3"]
    sim.run(10.0)
    assert under_test(sim) == ["n3", "n3"]


def test_a_quick_test_that_never_gets_to_its_end_is_not_begun_for_ever() -> None:
    tests = HeldTests()
    sim = trained(1, 1, config=ONLY_TESTS, replies={qs.TestNodes: tests})
    for generation in range(2, MAX_TESTS + 3):
        settles(sim, 2.0)
        sim.kill_rank(0)
        gets_on(sim, generation)
    assert (under_test(sim), sim.state.spares) == (["n2"] * MAX_TESTS, ("n2",))


def test_the_next_controller_tests_no_standby_twice() -> None:
    sim = after_tests(trained(2, 2, config=ONLY_TESTS), "n3", "n4")
    next_controller(sim)
    sim.run(SETTLED_S + 10.0)
    assert under_test(sim) == ["n3", "n4"]


def test_the_next_controller_waits_for_the_end_of_a_quick_test_that_it_did_not_begin() -> None:
    """Nothing ends that test, and two at a time on the same GPUs fail each other."""
    sim = trained(2, 1, config=ONLY_TESTS, replies={qs.TestNodes: never})
    until_stage(sim, "n3", StandbyStage.TESTING)
    next_controller(sim)
    sim.run(ONLY_TESTS.standby.test_s + MARGIN_S - 5.0)
    assert under_test(sim) == ["n3"]
    sim.run(10.0)
    assert under_test(sim) == ["n3", "n3"]
