"""The Poisson numbers are right, planted lemons are found, and chance is not mistaken for one."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_robust.analysis.lemons import HOUR_S, Failure, Work, at_least, least_ratio, pinned, score

DAYS_28 = 28 * 86400.0


def poisson_tail(count: int, mean: float) -> float:
    below = math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    return 1 - below


@given(st.integers(1, 60), st.floats(0.01, 80))
def test_with_one_kind_of_failure_it_is_the_poisson_distribution(count: int, mean: float) -> None:
    assert at_least(count, {1: mean}) == pytest.approx(poisson_tail(count, mean), abs=1e-12)
    assert at_least(count / 8, {8: mean}) == pytest.approx(poisson_tail(count, mean), abs=1e-12)


@settings(max_examples=40)
@given(st.floats(0.05, 3), st.floats(0.05, 20), st.integers(1, 128))
def test_two_kinds_of_failures_are_added_up(own: float, shared: float, steps: int) -> None:
    """Against the plain double sum: whole failures and quarters of one."""
    blame = steps / 64

    def exactly(count: int, mean: float) -> float:
        return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))

    below = math.fsum(
        exactly(a, own) * exactly(b, shared) for a in range(3) for b in range(9) if a + b / 4 < blame - 1e-9
    )
    assert at_least(blame, {1: own, 4: shared}) == pytest.approx(1 - below, abs=1e-9)


means = st.dictionaries(st.sampled_from([1, 2, 8, 64]), st.floats(0.01, 30), min_size=1)


@settings(max_examples=40)
@given(st.floats(0.02, 8), st.floats(0, 4), means)
def test_more_blame_is_less_likely(blame: float, more: float, of: dict[int, float]) -> None:
    assert 0 <= at_least(blame + more, of) <= at_least(blame, of) + 1e-12 <= 1 + 1e-12


@pytest.mark.parametrize(
    ("blame", "mean"), [(0, 1.0), (-1, 0.0), (1, 0.0), (90, 1.0), (1, 1e5), (80, 5000.0)]
)
def test_extremes_stay_probabilities(blame: float, mean: float) -> None:
    assert 0 <= at_least(blame, {1: mean, 64: mean}) <= 1


# Tables of the exact Poisson interval, 95 %.
@pytest.mark.parametrize(("count", "low"), [(1, 0.0253), (2, 0.2422), (10, 4.7954), (50, 37.1110)])
def test_the_least_ratio_is_garwoods(count: int, low: float) -> None:
    assert least_ratio(count, {1: 1.0}) == pytest.approx(low, rel=2e-3, abs=2e-4)


# -- fleets -----------------------------------------------------------------------------------------------


def fleet(
    seed: int,
    nodes: int = 60,
    jobs: int = 500,
    lemon: str = "",
    factor: float = 10.0,
    rate: float = 0.0004,
    sizes: int = 3,
) -> tuple[list[Work], list[Failure]]:
    """Jobs of 1, 2 and 4 nodes; each node fails at ``rate`` per hour, the lemon ``factor`` times as often."""
    chance = random.Random(seed)
    names = [f"n{i}" for i in range(nodes)]
    work, failures = [], []
    for _ in range(jobs):
        chosen = tuple(chance.sample(names, min(nodes, 2 ** chance.randrange(sizes))))
        start = chance.uniform(0, DAYS_28 * 0.9)
        times = [(chance.expovariate(rate * (factor if node == lemon else 1.0)), node) for node in chosen]
        hours, _ = min(times)
        length = chance.uniform(1, 48)
        if hours < length:
            failures.append(Failure(t=start + hours * HOUR_S, nodes=chosen, kind="job died"))
        work.append(Work(nodes=chosen, start=start, end=start + min(hours, length) * HOUR_S))
    return work, failures


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_lemon_comes_first_though_no_failure_names_it(seed: int) -> None:
    work, failures = fleet(seed, lemon="n7", factor=10, jobs=8000)
    first, *others = score(work, failures, 0, DAYS_28)
    assert first.node == "n7"
    assert first.is_lemon
    assert not any(other.is_lemon for other in others)
    assert (first.least or 0) > 1


def test_a_healthy_fleet_has_hardly_ever_a_lemon() -> None:
    found = [s for seed in range(60) for s in score(*fleet(seed, jobs=300), 0, DAYS_28) if s.is_lemon]
    assert len(found) <= 2  # 0.6 are to be expected at most


def test_large_jobs_make_no_lemons() -> None:
    """Nodes that only ever run jobs of 30 nodes see 30 times as many failures, and are as good as others."""
    big, small = tuple(f"b{i}" for i in range(30)), [f"s{i}" for i in range(30)]
    work = [Work(nodes=big, start=0, end=600 * HOUR_S)]
    work += [Work(nodes=(name,), start=0, end=600 * HOUR_S) for name in small]
    failures = [Failure(t=i, nodes=big, kind="job died") for i in range(30)]
    failures += [Failure(t=i, nodes=(name,), kind="job died") for i, name in enumerate(small)]
    scores = score(work, failures, 0, DAYS_28)
    assert {s.p for s in scores} == {1.0}
    assert {round(s.blame, 6) for s in scores} == {1.0}


def test_a_node_that_ran_one_job_is_no_lemon() -> None:
    work, failures = fleet(1, jobs=2000)
    work.append(Work(nodes=("new",), start=0, end=60))
    failures.append(Failure(t=60, nodes=("new",), kind="job died"))
    (new,) = [s for s in score(work, failures, 0, DAYS_28) if s.node == "new"]
    assert not new.is_lemon
    assert new.blame == 1
    assert new.ratio is not None


@pytest.mark.parametrize(
    ("work", "failures"),
    [
        ([], []),
        ([Work(nodes=("n1",), start=0, end=3600)], [Failure(t=1, nodes=("n1",), kind="x", in_job=False)] * 9),
        ([], [Failure(t=1, nodes=("n1",), kind="x", in_job=False)] * 9),
        ([Work(nodes=("n2",), start=5, end=1)], []),
    ],
)
def test_without_others_to_compare_with_nobody_is_judged(work: list[Work], failures: list[Failure]) -> None:
    assert not any(s.is_lemon for s in score(work, failures, 0, DAYS_28))


@settings(max_examples=50)
@given(st.integers(0, 1000), st.integers(0, 8))
def test_one_failure_more_never_makes_a_node_better(seed: int, index: int) -> None:
    work, failures = fleet(seed, nodes=9, jobs=40)
    name = f"n{index}"
    more = [*failures, Failure(t=100, nodes=(name,), kind="died")]
    before = {s.node: s.p for s in score(work, failures, 0, DAYS_28)}
    after = {s.node: s.p for s in score(work, more, 0, DAYS_28)}
    assert after[name] <= before.get(name, 1.0) + 1e-9


@given(st.integers(0, 1000))
@settings(max_examples=30)
def test_no_blame_is_lost_or_made(seed: int) -> None:
    work, failures = fleet(seed, nodes=9, jobs=40)
    assert math.fsum(s.blame for s in score(work, failures, 0, DAYS_28)) == pytest.approx(len(failures))


def test_a_node_that_fails_by_itself_is_found_in_any_mix_of_jobs() -> None:
    names = tuple(f"n{i}" for i in range(100))
    work = [Work(nodes=names, start=0, end=600 * HOUR_S)]
    failures = [Failure(t=i, nodes=(names[i],), kind="node DOWN", in_job=False) for i in range(0, 100, 9)]
    failures += [Failure(t=i, nodes=("n50",), kind="srobust drain", in_job=False) for i in range(5)]
    first, second, *_ = score(work, failures, 0, DAYS_28)
    assert (first.node, first.is_lemon, second.is_lemon) == ("n50", True, False)
    assert first.kinds == {"srobust drain": 5}


def test_only_the_time_asked_for_counts() -> None:
    work = [Work(nodes=("n1", "n2"), start=0, end=10 * HOUR_S)]
    failures = [Failure(t=t, nodes=("n1",), kind="x") for t in (1.0, 7 * HOUR_S)]
    scores = {s.node: s for s in score(work, failures, 5 * HOUR_S, 8 * HOUR_S)}
    assert scores["n1"].hours == 3
    assert scores["n1"].blame == 1
    assert scores["n1"].kinds == {"x": 1}


def test_a_dead_node_explains_the_end_of_its_job() -> None:
    job = Failure(t=1000, nodes=("n1", "n2", "n3"), kind="job NODE_FAIL")
    death = Failure(t=900, nodes=("n2",), kind="node DOWN", in_job=False)
    elsewhere = Failure(t=900, nodes=("n9",), kind="node DOWN", in_job=False)
    assert pinned([job, death], 300) == [death]
    assert pinned([job, elsewhere], 300) == [job, elsewhere]
    assert pinned([job, death], 50) == [job, death]


def test_the_death_of_a_node_under_a_job_of_its_own_is_one_death() -> None:
    job = Failure(t=1000, nodes=("n2",), kind="job NODE_FAIL")
    death = Failure(t=970, nodes=("n2",), kind="node DOWN", in_job=False)
    assert pinned([job, death], 300) == [death]
    assert pinned([job, replace(death, nodes=("n3",))], 300) == [job, replace(death, nodes=("n3",))]
    assert pinned([job], 300) == [job]
    # Two faults that the node itself has shown are two.
    again = replace(death, t=980)
    assert pinned([death, again], 300) == [death, again]
    larger = Failure(t=1010, nodes=("n1", "n2"), kind="job NODE_FAIL")
    assert pinned([job, larger], 300) == [job]


def told_fleet(seed: int, told: float = 0.5) -> tuple[list[Work], list[Failure]]:
    """Equal nodes with a job each, in which ``told`` of the deaths are events of the node as well."""
    work, failures = fleet(seed, jobs=1500, rate=0.001, sizes=1)
    chance = random.Random(seed)
    own = [
        Failure(t=death.t - 30, nodes=(chance.choice(death.nodes),), kind="node DOWN", in_job=False)
        for death in failures
        if chance.random() < told
    ]
    return work, [*failures, *own]


@pytest.mark.slow
def test_a_healthy_fleet_whose_nodes_tell_of_their_deaths_has_hardly_ever_a_lemon() -> None:
    found = 0
    for seed in range(150):
        work, failures = told_fleet(seed)
        found += any(s.is_lemon for s in score(work, pinned(failures, 300), 0, DAYS_28))
    assert found <= 4  # 1.5 are to be expected at most; P(more than 4) is below 2 %
