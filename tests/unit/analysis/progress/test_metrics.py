"""Non-finite numbers are reported at once, with the rank; jumps only where multiples mean something."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.analysis.progress.metrics import WINDOW, MetricVerdict, MetricWatch, Series, where_it_began
from slurm_robust.config.job import DetectConfig
from slurm_robust.model.incident import Symptom
from slurm_robust.model.progress import Progress
from tests.there import there

NAN, INF = math.nan, math.inf


def rank(
    number: int, step: int, loss: float | None = 2.0, grad_norm: float | None = 1.0, age_s: float = 0.1
) -> Progress:
    return Progress(rank=number, step=step, reported=True, age_s=age_s, loss=loss, grad_norm=grad_norm)


def watch(config: DetectConfig | None = None, best_step: int = 1000) -> MetricWatch:
    return MetricWatch(config or DetectConfig(), best_step)


@pytest.fixture
def made() -> MetricWatch:
    """One that has seen some ordinary steps of two ranks."""
    made = watch()
    for step in range(1001, 1061):
        made.see([rank(0, step), rank(1, step)])
    assert made.verdict() is None
    return made


# -- no finite number -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_non_finite_loss_is_reported_at_once_and_once(bad: float) -> None:
    made = watch(best_step=-1)
    made.see([rank(0, 0, bad)])
    verdict = there(made.verdict())
    assert (verdict.symptom, verdict.rank, verdict.step, verdict.age_s) == (Symptom.NON_FINITE, 0, 0, 0.1)
    assert verdict.text == f"loss is {bad} at step 0 on rank 0"
    made.see([rank(0, 1, bad)])
    assert made.verdict() is None


def test_the_rank_that_is_alone_with_it_is_suspect(made: MetricWatch) -> None:
    made.see([rank(0, 2000), rank(1, 2000, NAN), rank(2, 2001)])
    verdict = there(made.verdict())
    assert (verdict.rank, verdict.ranks) == (1, (1,))
    assert "on no other; 2 report a finite one: its data or hardware are suspect" in verdict.text


def test_the_rank_with_the_earliest_step_is_first(made: MetricWatch) -> None:
    made.see([rank(0, 2001, NAN), rank(1, 2001, NAN), rank(2, 2000, NAN), rank(3, 2001)])
    verdict = there(made.verdict())
    assert (verdict.rank, verdict.step, verdict.ranks) == (2, 2000, (0, 1, 2))
    assert verdict.text.endswith("on rank 2 first; ranks 0-2 show it, 1 others report a finite one")


def test_the_newest_step_at_which_all_were_finite_is_reported(made: MetricWatch) -> None:
    made.see([rank(0, 2000), rank(1, 2001)])
    made.see([rank(0, 2004), rank(1, 2005, NAN)])
    verdict = there(made.verdict())
    assert verdict.good_step == 2000
    fresh = watch(best_step=-1)
    fresh.see([rank(0, 0, NAN), rank(1, 0)])
    verdict = there(fresh.verdict())
    assert verdict.good_step == -1


def test_ranks_that_are_not_so_far_say_nothing(made: MetricWatch) -> None:
    made.see([rank(0, 1999), rank(1, 2000, NAN)])
    verdict = there(made.verdict())
    assert verdict.text.endswith("rank 1 of those that are so far show it")


def test_a_number_that_is_not_finite_on_all_ranks_is_said_to_be(made: MetricWatch) -> None:
    made.see([rank(0, 2000, NAN), rank(1, 2000, NAN), Progress(rank=2, step=5, reported=False, age_s=1.0)])
    verdict = there(made.verdict())
    assert verdict.text.endswith("on all ranks that report")


def since(number: int, bad: int, step: int) -> Progress:
    return structs.replace(rank(number, step, NAN), bad_step=bad)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_the_rank_whose_own_record_has_the_earliest_bad_step_is_first(
    made: MetricWatch, order: tuple[int, ...]
) -> None:
    records = [since(0, 2002, 2004), since(1, 2001, 2004), since(2, 2002, 2003)]
    made.see([records[at] for at in order])
    verdict = there(made.verdict())
    assert (verdict.rank, verdict.step, verdict.good_step) == (1, 2001, 2000)
    assert verdict.text == "loss is nan at step 2001 on rank 1 first; on the others from step 2002 on"
    assert verdict.text == where_it_began([records[at] for at in order])


def test_a_rank_that_is_alone_with_it_is_named_with_its_first_bad_step(made: MetricWatch) -> None:
    made.see([rank(0, 2001), since(1, 2000, 2002)])
    verdict = there(made.verdict())
    assert verdict.text.startswith("loss is nan at step 2000 on rank 1 and on no other; 1 report")


def test_where_nothing_is_wrong_nothing_began() -> None:
    assert where_it_began([rank(0, 5), rank(1, 5, None)]) == ""


def test_single_steps_with_overflowing_gradients_are_skipped_by_scaled_training(made: MetricWatch) -> None:
    for step, norm in enumerate([INF, 1.0, NAN, 1.0], 2000):
        made.see([rank(0, step, grad_norm=norm)])
        made.see([rank(0, step, grad_norm=norm)])  # the same record again is no other step
        assert made.verdict() is None
    made.see([rank(0, 2100, grad_norm=INF)])
    made.see([rank(0, 2101, grad_norm=INF)])
    verdict = there(made.verdict())
    assert "gradient norm is inf at step 2101" in verdict.text


def test_overflowing_gradients_of_the_warm_up_are_the_search_for_a_scale() -> None:
    made = watch(best_step=-1)
    for step in range(100):
        made.see([rank(0, step, grad_norm=INF)])
    assert made.verdict() is None


def test_a_non_finite_loss_is_over_when_all_ranks_are_finite_and_may_come_again(made: MetricWatch) -> None:
    made.see([rank(0, 2000, NAN), rank(1, 2000, NAN)])
    assert made.verdict() is not None
    made.see([rank(0, 2001), rank(1, 2000, NAN)])
    assert made.healed() == ()
    made.see([rank(0, 2002), rank(1, 2002)])
    assert made.healed() == ("loss and gradient norm are finite again",)
    assert made.healed() == ()
    made.see([rank(0, 2003, NAN), rank(1, 2003)])
    assert made.verdict() is not None


def test_the_check_for_non_finite_numbers_can_be_switched_off() -> None:
    made = watch(DetectConfig(non_finite=False))
    made.see([rank(0, 2000, NAN, INF)])
    assert made.verdict() is None


def test_ranks_without_metrics_are_no_witnesses() -> None:
    made = watch(best_step=-1)
    made.see([Progress(rank=0, step=5, reported=False, age_s=0.0, loss=NAN)])
    made.see([Progress(rank=0, step=5, reported=True, age_s=0.0)])
    made.see([rank(0, -1, None, None)])
    assert made.verdict() is None


# -- jumps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loss", "grad_norm", "name"),
    [(10.0, 1.0, "loss"), (2.0, 5.0, "gradient norm"), (2.0, 500.0, "gradient norm")],
)
def test_a_jump_is_reported_once_and_its_end_noted(
    made: MetricWatch, loss: float, grad_norm: float, name: str
) -> None:
    made.see([rank(0, 2000, loss, grad_norm), rank(1, 2000)])
    verdict = there(made.verdict())
    assert (verdict.symptom, verdict.rank, verdict.step) == (Symptom.SPIKE, 0, 2000)
    assert verdict.text.startswith(f"{name} of rank 0 is ")
    made.see([rank(0, 2001, loss, grad_norm)])
    assert (made.verdict(), made.healed()) == (None, ())
    made.see([rank(0, 2002)])
    assert [word.split(" is ")[0] for word in made.healed()] == [name]
    made.see([rank(0, 2003, loss, grad_norm)])
    assert made.verdict() is not None


def test_less_than_the_factor_is_no_jump(made: MetricWatch) -> None:
    made.see([rank(0, 2000, 9.99, 4.99)])
    assert made.verdict() is None
    made = MetricWatch(DetectConfig(spike_factor=2.0), 1000)
    for step in range(1001, 1061):
        made.see([rank(0, step)])
    made.see([rank(0, 2000, 4.0)])
    assert made.verdict() is not None


@pytest.mark.parametrize(("best_step", "first"), [(-1, 0), (-1, 70_000), (50, 30)])
def test_the_warm_up_is_exempt_and_counted_from_the_begin_of_the_training(best_step: int, first: int) -> None:
    begin = 0 if best_step >= 0 else first
    found: list[MetricVerdict] = []
    for jump in (begin + 99, begin + 100):
        made = watch(best_step=best_step)
        for step in range(first, jump):
            made.see([rank(0, step)])
        made.see([rank(0, jump, 50.0)])
        verdict = made.verdict()
        found += [verdict] if verdict else []
    assert [verdict.step for verdict in found] == [begin + 100]


def test_the_lowest_rank_that_reports_is_followed(made: MetricWatch) -> None:
    made.see([rank(0, 2000), rank(1, 2000, 50.0)])
    assert made.verdict() is None


# -- series -----------------------------------------------------------------------------------------


def jumps(values: list[float], factor: float = 5.0) -> int:
    series, found = Series(factor), 0
    for value in values:
        before = series.has_jumped
        series.add(value)
        found += series.has_jumped and not before
    return found


@given(st.lists(st.floats(1.0, 4.99), min_size=1, max_size=200), st.floats(1e-6, 1e6))
def test_values_within_the_factor_never_jump(values: list[float], scale: float) -> None:
    assert jumps([value * scale for value in values]) == 0


@given(st.lists(st.floats(0.9, 1.1), min_size=20, max_size=100), st.floats(6.0, 1e9), st.floats(1e-6, 1e6))
def test_a_calm_series_that_jumps_is_seen_at_any_scale(
    values: list[float], jump: float, scale: float
) -> None:
    assert jumps([value * scale for value in [*values, jump]]) == 1


@given(st.lists(st.floats(-1e3, 1e3), min_size=20, max_size=50))
def test_series_that_are_not_positive_do_not_jump(values: list[float]) -> None:
    assert jumps([*values, -1e-3, 1e6]) == 0
    assert jumps([*values, 0.0, 1e6]) == 0


def test_a_series_that_is_noisy_by_nature_does_not_jump() -> None:
    draw = random.Random(1)
    noisy = [draw.lognormvariate(0.0, 1.0) for _ in range(5000)]
    assert sum(value >= 5.0 for value in noisy) > 100
    assert jumps(noisy) <= 1


def test_a_series_of_two_levels_does_not_jump_between_them() -> None:
    draw = random.Random(1)
    assert jumps([draw.choice((0.1, 0.1, 2.0)) for _ in range(500)]) == 0
    assert jumps([0.1, 2.0] * 30 + [30.0]) == 0


def test_few_values_have_no_median() -> None:
    assert jumps([1.0] * 19 + [100.0]) == 0
    assert jumps([1.0] * 20 + [100.0]) == 1


def test_a_level_that_stays_is_the_new_one() -> None:
    assert jumps([1.0] * 50 + [10.0] * WINDOW + [100.0]) == 2
    assert jumps([1.0] * 50 + [10.0] * WINDOW + [11.0] * 100) == 1


def test_extreme_values_are_no_error() -> None:
    assert jumps([5e-324, 1e308] * 30) == 0
    assert jumps([5e-324] * 30 + [1e308]) == 1
