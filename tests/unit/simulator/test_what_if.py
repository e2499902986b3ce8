"""``--what-if``: which settings are meant, and that all that is wrong is said at once with its fix."""

from __future__ import annotations

import pytest

from slurm_robust.config.errors import InvalidSettings
from slurm_robust.simulator.compare import comparison, conclusions
from slurm_robust.simulator.runs import live
from slurm_robust.simulator.spec import FaultOf, FaultSource, SimulatedCluster, SimulatedJob, Spec
from slurm_robust.simulator.what_if import variations

REPLAYED = Spec(faults=(FaultSource(kind=FaultOf.NODE, after="3 h", detect="0.9 s"),))


def settings(*texts: str, base: Spec = REPLAYED) -> list[dict[str, str]]:
    return [one.settings for one in variations(base, texts)]


def test_a_range_is_all_its_numbers_and_a_list_its_values() -> None:
    assert settings("spares=0..2") == [{"spares": "0"}, {"spares": "1"}, {"spares": "2"}]
    assert settings("checkpoint.every_s=60,600") == [
        {"checkpoint.every_s": "60"},
        {"checkpoint.every_s": "600"},
    ]


def test_keys_of_one_text_are_crossed_and_texts_are_series() -> None:
    assert len(settings("spares=0..2,repair=1 h,2 h")) == 6
    assert len(settings("spares=0..2", "repair=1 h,2 h")) == 5


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("spares=1", "spares"),
        ("job.spares=1", "spares"),
        ("cluster.shared_spares=1", "shared_spares"),
        ("node_dead_s=9", "timings.node_dead_s"),
        ("policy.timings.node_dead_s=9", "timings.node_dead_s"),
        ("every_s=60", "checkpoint.every_s"),
        ("repair=0.7 days median, 6.5 days mean", "repair"),
    ],
)
def test_a_key_is_found_by_each_of_its_names(text: str, name: str) -> None:
    assert [list(one) for one in settings(text)] == [[name]]


def test_values_reach_the_spec() -> None:
    (one,) = variations(REPLAYED, ["spares=3,limits.total=7,checkpoint.peers=false"])
    assert (one.spec.job.spares, one.spec.policy.limits.total, one.spec.policy.checkpoint.peers) == (
        3,
        7,
        False,
    )


def test_shared_spares_bring_a_reservation_to_ask() -> None:
    (one,) = variations(REPLAYED, ["shared_spares=2"])
    assert one.spec.policy.companions.reservation


@pytest.mark.parametrize(
    ("text", "detected"),
    [("verdict_s=2", "2.100 s"), ("verdict_s=0", "5.100 s"), ("spares=1", "0.9 s")],
)
def test_a_node_that_was_lost_is_found_by_the_settings_in_force(text: str, detected: str) -> None:
    (one,) = variations(REPLAYED, [text])
    assert one.spec.faults[0].detect == detected


def test_all_that_is_wrong_is_said_at_once_with_its_fix() -> None:
    with pytest.raises(InvalidSettings) as caught:
        variations(
            REPLAYED,
            [
                "spares=x..3,timings.verdict_s=banana,nodes=3,every_s=2..1,repair=1..4,spars=4",
                "detect.node_dead_s=2,checkpoint.every_s=4,every_s=5,limits.total=0..1000,5",
                "faults=1",
                "orphan",
            ],
        )
    said = "\n".join(caught.value.problems)
    for text in (
        "x..3 is no range",
        "policy.timings.verdict_s must be",
        "nodes: cannot be varied",
        "2..1 ends before it begins",
        "1..4 is a range of numbers, and it must be a time",
        "did you mean spares",
        "did you mean timings.node_dead_s?",
        "every_s: given twice",
        "has more than 100 values",
        "faults: cannot be varied",
        "orphan: no value",
    ):
        assert text in said, text
    assert said.count("fix: ") == len(caught.value.problems)


def test_too_many_combinations_are_refused() -> None:
    with pytest.raises(InvalidSettings, match="more than 200 combinations"):
        variations(REPLAYED, ["spares=0..20,shared_spares=0..20"])


def test_the_size_of_a_job_that_never_ran_may_vary() -> None:
    assert settings("nodes=4,8", base=Spec()) == [{"nodes": "4"}, {"nodes": "8"}]


def test_the_conclusion_names_the_fewest_standbys_that_are_as_good_as_any() -> None:
    spec = Spec(
        job=SimulatedJob(nodes=4, spares=0),
        cluster=SimulatedCluster(repair="2 days"),
        time="5 days",
        faults=(
            FaultSource(kind=FaultOf.NODE, after="10 h"),
            FaultSource(kind=FaultOf.NODE, after="20 h"),
        ),
    )
    found = variations(spec, ["spares=0..3", "limits.per_hour=20"])
    own = [live(spec, seed) for seed in range(2)]
    played = [own if one.spec == spec else [live(one.spec, seed) for seed in range(2)] for one in found]
    made = comparison("job", "policy", own, list(zip(found, played, strict=True)), None)
    first, second = conclusions(made)
    assert first.startswith("With 2 standbys, this job would have had 100.0 % instead of ")
    assert second.startswith("limits.per_hour=20 change")
    assert [one.is_own for one in made.what_if] == [True, False, False, False, False]
    assert made.what_if[2].gain.mean > 0.3
