"""A stopped training is reported within its bound and a heartbeat; one that keeps its own pace never is."""

from __future__ import annotations

import math
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_robust.analysis.progress.pace import PaceWatch, is_news
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import FINISHED, RESTORE, PaceHistory, Progress
from tests.unit.analysis.progress.simulated_training import BEAT_S, LOOK_S, Rank, Training, steady, times

LATE_S = BEAT_S + LOOK_S


@settings(deadline=None, max_examples=30)
@given(
    st.floats(0.01, 60.0),
    st.lists(st.floats(1.0, 2.99), min_size=2, max_size=40),
    st.integers(1, 2),
    st.booleans(),
)
def test_steps_that_vary_by_less_than_the_factor_are_no_hang(
    shortest: float, factors: list[float], ranks: int, reported: bool
) -> None:
    # The end of a step is known a heartbeat later.
    longest = max(shortest, 3.0 * shortest - LATE_S)
    done = times([min(shortest * factor, longest) for factor in factors], begin=shortest)
    training = Training([Rank(done, reported=reported) for _ in range(ranks)])
    assert [verdict for verdict in training.until(done[-1]) if verdict.symptom is Symptom.HANG] == []


@settings(deadline=None, max_examples=30)
@given(st.floats(0.01, 20.0), st.integers(1, 40), st.integers(1, 2), st.floats(0.0, 1.0))
def test_a_stopped_training_is_reported_within_its_bound_and_a_heartbeat(
    step_s: float, steps: int, ranks: int, begin: float
) -> None:
    training = Training([steady(step_s, steps, step_s + begin) for _ in range(ranks)])
    stopped = training.ranks[0].done[-1]
    assert training.verdicts(stopped) == []
    training.verdicts(stopped + LATE_S)
    bound, _ = training.watch.bound(training.now)
    if bound > training.now - stopped:
        verdict = training.first_verdict(stopped + bound + LATE_S + LOOK_S)
        assert (verdict.symptom, verdict.bound_s) == (Symptom.HANG, bound)
    assert training.verdicts(training.now + 100.0) == []  # once


def test_a_hang_is_explained() -> None:
    training = Training([steady(0.1, 600), steady(0.1, 600), steady(0.1, 599)])
    verdict = training.first_verdict(200.0)
    assert verdict.ranks == (2,)
    assert verdict.bound_s == 14.0
    assert verdict.since_s == pytest.approx(14.2, abs=0.3)
    assert verdict.text == "no step for 14 s since step 598 (usual 0.1 s)"
    assert verdict.why.startswith("the minimum; 3 x ")


def test_a_hang_that_ends_is_reported_again_when_it_comes_again() -> None:
    done = times([0.5] * 100 + [40.0] + [0.5] * 100 + [200.0, 0.5])
    verdicts = Training([Rank(done)]).verdicts(done[-1])
    assert [v.symptom for v in verdicts] == [Symptom.HANG, Symptom.HANG]
    # What ended by itself may take as long again: script or storage pauses at times.
    assert verdicts[1].bound_s == pytest.approx(3 * 40.5, abs=2.0)
    assert "pause" in verdicts[1].why


@pytest.mark.parametrize(("step_s", "bound_s"), [(0.1, 14.0), (10.0, 30.0), (300.0, 900.0)])
def test_the_bound_follows_the_step_time(step_s: float, bound_s: float) -> None:
    training = Training([steady(step_s, 60 if step_s < 1.0 else 25, step_s + 5.0)])
    assert training.verdicts(training.ranks[0].done[-1]) == []
    assert training.watch.bound(training.now)[0] == pytest.approx(bound_s, rel=0.15)


def test_settings_override() -> None:
    config = DetectConfig(hang_factor=10.0, hang_floor_s=2.0)
    training = Training([steady(5.0, 40)], config)
    training.verdicts(training.ranks[0].done[-1])
    assert training.watch.bound(training.now)[0] == pytest.approx(50.0, rel=0.05)
    off = Training([steady(0.1, 40)], DetectConfig(hang=False))
    assert off.verdicts(5000.0) == []
    assert off.watch.bound(off.now) == (math.inf, "hangs are not detected (detect.hang)")


# -- the first step ---------------------------------------------------------------------------------


def test_a_first_step_has_the_configured_time_until_the_past_says_better() -> None:
    training = Training([Rank([])])
    assert training.first_verdict(2000.0).since_s == pytest.approx(1800.0, abs=1.0)
    training = Training([steady(0.1, 100, begin=100.0)])
    training.verdicts(110.0)
    past = training.watch.history
    assert past.first_step_s == pytest.approx(100.0, abs=0.01)
    training = Training([Rank([])], past=past)
    assert training.first_verdict(2000.0).since_s == pytest.approx(300.0, abs=1.0)
    assert Training([Rank([])], past=PaceHistory(first_step_s=1.0)).first_verdict(99.0).bound_s == 56.0
    assert Training([Rank([])], past=PaceHistory(first_step_s=900.0)).first_verdict(1900.0).bound_s == 1800.0


def test_a_first_step_that_took_too_long_once_is_allowed_more_at_the_next_launch() -> None:
    past = PaceHistory(steps=100, p50_s=1.0, p99_s=1.0, longest_s=1.0, first_step_s=30.0)
    training = Training([Rank([])], past=past)
    assert training.first_verdict(500.0).bound_s == 90.0
    again = Training([steady(1.0, 10, begin=1000.0)], past=training.watch.history)
    assert again.verdicts(1010.0) == []
    assert again.watch.history.first_step_s == pytest.approx(1000.0, abs=0.01)


def test_after_a_slow_first_step_the_second_may_compile_as_long() -> None:
    done = times([100.0, 0.1, 0.1], begin=60.0)
    assert Training([Rank(done)]).verdicts(done[-1]) == []


def test_the_first_step_is_over_when_all_ranks_have_made_theirs() -> None:
    training = Training([steady(0.1, 1, begin=10.0), steady(0.1, 1, begin=200.0)])
    assert training.verdicts(150.0) == []
    assert "first step" in training.watch.bound(training.now)[1]


def test_a_rank_that_does_not_even_report_is_behind() -> None:
    ranks = [Rank([]), Rank([], reported=False), Rank([])]
    assert Training(ranks).first_verdict(1900.0).ranks == (1,)
    assert Training(ranks[:2]).first_verdict(1900.0).ranks == ()


def test_a_silent_script_never_hangs_and_that_is_said() -> None:
    training = Training([Rank([], reported=False)])
    assert training.verdicts(4000.0) == []
    bound, why = training.watch.bound(training.now)
    assert bound == math.inf
    assert "silence says nothing" in why


def test_a_script_that_once_made_steps_is_expected_to_make_them_again() -> None:
    past = PaceHistory(steps=50, p50_s=0.1, p99_s=0.1, longest_s=1.0, first_step_s=40.0)
    verdict = Training([Rank([], reported=False)], past=past).first_verdict(500.0)
    assert (verdict.bound_s, verdict.ranks) == (120.0, ())


def test_optimizer_steps_are_enough() -> None:
    training = Training([steady(0.1, 300, reported=False), steady(0.1, 299, reported=False)])
    assert training.first_verdict(100.0).ranks == (1,)


def test_counted_steps_are_forgotten_when_the_script_reports_its_own() -> None:
    watch = PaceWatch(DetectConfig(), PaceHistory())
    watch.see([Progress(rank=0, step=400, reported=False, age_s=0.0)], 10.0)
    watch.see([Progress(rank=0, step=-1, reported=True, age_s=11.0)], 11.0)
    watch.see([Progress(rank=0, step=0, reported=True, age_s=0.0)], 12.0)
    assert (watch.history.steps, watch.history.first_step_s) == (0, 12.0)


# -- phases -----------------------------------------------------------------------------------------


def evaluating(seconds: float) -> Rank:
    """A training that evaluates after a minute, and once more after another."""
    done = times([0.5] * 120 + [seconds + 0.5] + [0.5] * 120 + [seconds + 0.5] + [0.5] * 20)
    phases = [("evaluation", done[at], done[at] + seconds) for at in (120, 241)]
    return Rank(done, phases)


def test_an_announced_phase_is_no_hang_and_is_learned() -> None:
    waiting = Rank(evaluating(200.0).done)  # the other rank waits for it in its next collective
    training = Training([evaluating(200.0), waiting])
    assert training.verdicts(waiting.done[-1]) == []
    history = training.watch.history
    assert history.phases == {"evaluation": pytest.approx(200.0, abs=LATE_S)}
    assert history.longest_s < 3.0
    assert history.pause_s == 0.0


def test_a_phase_that_hangs_is_reported_by_what_it_took_before() -> None:
    ranks = [evaluating(100.0), Rank(evaluating(100.0).done)]
    done = ranks[0].done[241]
    ranks[0].phases[1] = ("evaluation", done, math.inf)
    for rank in ranks:
        rank.done = [at for at in rank.done if at <= done]
    training = Training(ranks)
    verdict = training.first_verdict(5000.0)
    assert verdict.since_s == pytest.approx(300.0, abs=3.0)
    assert "phase evaluation goes on for 3" in verdict.text
    assert verdict.ranks == (0,)
    assert training.verdicts(3000.0) == []
    # It may as well take longer now than it did, so the next one has the configured time again.
    assert training.watch.history.phases == {}


def test_a_phase_never_seen_has_the_configured_time() -> None:
    rank = steady(0.5, 100, phases=[("evaluation", 60.0, math.inf)])
    assert Training([rank]).first_verdict(5000.0).since_s == pytest.approx(1800.0, abs=1.5)
    short = DetectConfig(phase_s=50.0)
    assert Training([rank], short).first_verdict(5000.0).since_s == pytest.approx(50.0, abs=1.5)
    past = PaceHistory(phases={"evaluation": 40.0})
    assert Training([rank], short, past).first_verdict(5000.0).bound_s == 50.0


def test_the_end_of_a_script_and_a_restore_are_not_learned() -> None:
    rank = steady(0.5, 100, phases=[(RESTORE, 1.0, 4.0), (FINISHED, 60.0, math.inf)])
    training = Training([rank])
    assert training.first_verdict(5000.0).bound_s == 1800.0
    assert training.watch.history.phases == {}


def test_time_to_the_first_step_does_not_count_the_restore() -> None:
    rank = steady(0.5, 100, begin=110.0, phases=[(RESTORE, 4.0, 103.0)])
    training = Training([rank])
    assert training.verdicts(115.0) == []
    assert training.watch.history.first_step_s == pytest.approx(7.0, abs=LATE_S)


def test_steps_with_a_checkpoint_after_each_are_measured_without_it() -> None:
    done = times([20.0] * 30)
    saves = [("checkpoint", at + 0.001, at + 15.0) for at in done]
    training = Training([Rank(done, saves)])
    assert training.verdicts(done[-1]) == []
    assert training.watch.history.p99_s == pytest.approx(5.0, abs=LATE_S)


def test_of_endless_new_names_only_some_are_learned() -> None:
    watch = PaceWatch(DetectConfig(), PaceHistory())
    for number in range(100):
        record = Progress(rank=0, step=1, reported=True, age_s=2.0, phase=f"evaluation {number}", phase_s=1.0)
        watch.see([record], 10.0 + number)
    assert len(watch.history.phases) == 16


# -- what outlives a generation ---------------------------------------------------------------------


def test_a_later_generation_knows_the_pace_from_its_first_step_on() -> None:
    training = Training([steady(10.0, 200)])
    training.verdicts(training.ranks[0].done[-1])
    past = training.watch.history
    assert past.p50_s == pytest.approx(10.0)
    assert past.p99_s == pytest.approx(10.0, abs=LATE_S)
    again = Training([steady(10.0, 2)], past=past)
    assert again.first_verdict(500.0).bound_s == pytest.approx(30.0, abs=3 * LATE_S)


def test_a_controller_that_begins_in_the_middle_knows_the_pace() -> None:
    training = Training([steady(10.0, 200)])
    training.verdicts(1000.0)
    past = training.watch.history
    training.watch = PaceWatch(DetectConfig(), past)
    verdict = training.first_verdict(5000.0)
    assert verdict.since_s == pytest.approx(training.now - training.ranks[0].done[-1], abs=1.0)
    assert verdict.bound_s == pytest.approx(30.0, abs=3 * LATE_S)
    assert training.watch.history.first_step_s == past.first_step_s


def test_a_controller_without_a_past_gives_time() -> None:
    training = Training([steady(10.0, 3)])
    training.now = 20.0
    training.verdicts(24.0)
    assert training.watch.bound(training.now)[0] == 1800.0


def test_where_it_seemed_to_hang_before_it_gets_time_and_that_is_learned() -> None:
    """An evaluation of 100 s after step 200, which the script does not announce."""
    done = times([0.5] * 200 + [100.0] + [0.5] * 200 + [100.0] + [0.5] * 200)
    first = Training([Rank(done)])
    assert first.first_verdict(500.0).since_s == pytest.approx(14.0, abs=0.5)
    past = first.watch.history
    assert (past.hung_after, past.pause_s, past.doubts) == (200, 0.0, 1)
    # The next generation goes on from step 150, and now knows.
    resumed = Rank([at - done[150] + 5.0 for at in done[150:]], first=150)
    second = Training([resumed], past=past)
    assert second.verdicts(resumed.done[-1]) == []
    assert (second.watch.history.hung_after, second.watch.history.doubts) == (-1, 0)
    assert second.watch.history.pause_s == pytest.approx(100.0, abs=LATE_S)


def test_pauses_that_no_generation_comes_back_to_get_more_time_each() -> None:
    """An evaluation of 100 s after every 100 steps; training goes on from a snapshot right before it."""
    past, told = PaceHistory(), []
    for generation in range(3):
        done = times([0.5] * 99 + [100.0] + [0.5] * 99)
        training = Training([Rank(done, first=100 * generation)], past=past)
        told += [verdict.bound_s for verdict in islice(training.until(done[-1]), 1)]
        past = training.watch.history
    assert told == [14.0, 56.0]
    assert past.pause_s == pytest.approx(100.0, abs=LATE_S)
    assert past.doubts == 0


def test_after_hours_without_a_hang_the_bound_is_short_again() -> None:
    past = PaceHistory(steps=100, p50_s=10.0, p99_s=10.0, longest_s=10.0, doubts=2)
    training = Training([steady(10.0, 4000, begin=12.0)], past=past)
    training.now = 15_000.0
    training.verdicts(15_300.0)
    bound, why = training.watch.bound(training.now)
    assert bound == pytest.approx(16 * 30.0, rel=0.1)
    assert "seemed to hang 2 times" in why
    training.now += 6 * 3600.0 - 350.0
    training.verdicts(training.now + 100.0)
    assert training.watch.history.doubts == 0


def test_small_changes_are_no_news() -> None:
    known = PaceHistory(steps=100, p50_s=1.0, p99_s=2.0, longest_s=4.0, phases={"evaluation": 10.0})
    assert not is_news(known, known)
    assert not is_news(
        known, PaceHistory(steps=120, p50_s=1.1, p99_s=2.4, longest_s=4.0, phases={"evaluation": 9.0})
    )
    for changed in (
        PaceHistory(steps=100, p50_s=1.5, p99_s=2.0, longest_s=4.0, phases={"evaluation": 10.0}),
        PaceHistory(steps=100, p50_s=1.0, p99_s=2.0, longest_s=4.0, phases={"evaluation": 20.0}),
        PaceHistory(steps=100, p50_s=1.0, p99_s=2.0, longest_s=4.0),
        PaceHistory(),
    ):
        assert is_news(known, changed)


# -- one rank alone ---------------------------------------------------------------------------------


def test_a_rank_that_stops_while_others_go_on_is_reported_later() -> None:
    training = Training([steady(0.5, 2000), steady(0.5, 100), steady(0.5, 2000)])
    verdict = training.first_verdict(900.0)
    assert verdict.ranks == (1,)
    assert verdict.since_s == pytest.approx(56.0, abs=1.0)
    assert "others go on" in verdict.why
    assert training.verdicts(900.0) == []


def test_a_rank_that_waited_for_a_phase_of_another_is_not_alone() -> None:
    ranks = [evaluating(200.0), Rank(evaluating(200.0).done)]
    ranks[1].done = [at + (0.4 if at > 200 else 0.0) for at in ranks[1].done]
    assert Training(ranks).verdicts(ranks[0].done[-1]) == []


# -- slow -------------------------------------------------------------------------------------------


def test_a_slowdown_is_reported_once_and_again_after_it_is_over() -> None:
    done = times([1.0] * 200 + [2.0] * 200 + [1.0] * 200 + [2.0] * 200)
    training = Training([Rank(done)])
    verdicts = training.verdicts(done[-1])
    assert [v.symptom for v in verdicts] == [Symptom.SLOW, Symptom.SLOW]
    assert verdicts[0].bound_s == 1.5
    assert verdicts[0].since_s >= 56.0
    assert verdicts[0].text == "steps take 1.5 s (usual 1 s)"
    assert verdicts[0].why == "1.5 x 1 s, the training's own median"
    assert training.watch.history.p50_s == 1.0


def test_slow_steps_for_less_than_a_minute_or_below_the_factor_are_no_slowdown() -> None:
    done = times([1.0] * 200 + [2.0] * 14 + [1.0] * 200 + [1.4] * 200)
    assert Training([Rank(done)]).verdicts(done[-1]) == []


def test_a_generation_that_is_slow_from_its_begin_is_reported_by_the_past() -> None:
    past = PaceHistory(steps=500, p50_s=1.0, p99_s=1.5, longest_s=2.0)
    training = Training([steady(2.0, 300)], past=past)
    assert [v.symptom for v in training.verdicts(500.0)] == [Symptom.SLOW]
    assert training.watch.history.p50_s == 1.0


def test_phases_are_no_slowdown() -> None:
    done = times(([0.5] * 20 + [40.5]) * 20)
    phases = [("evaluation", done[at], done[at] + 40.0) for at in range(20, len(done) - 1, 21)]
    training = Training([Rank(done, phases)])
    assert training.verdicts(done[-1]) == []
    assert training.watch.history.p50_s == pytest.approx(0.5)
