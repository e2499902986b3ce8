"""What is published of large jobs: the shipped specs say it. All figures: python -m benchmarks.published."""

from __future__ import annotations

from statistics import fmean

import pytest

from benchmarks.published import (
    POINTS,
    SCALES,
    Row,
    lines,
    meta,
    mttf,
    scheduling,
    shipped,
    standbys,
    updates,
)
from slurm_robust.simulator.figures import figures_of
from slurm_robust.simulator.life import PolicyLife


def test_hot_updates_and_requeues_by_scale_are_those_of_table_7() -> None:
    rows = list(updates())
    assert len(rows) == 2 * len(SCALES)
    for row in rows:
        assert abs(row.off) < (0.07 if "requeue" in row.what else 0.035), row


def test_the_standbys_are_those_of_table_5() -> None:
    assert [row.simulated for row in standbys()] == [2, 2, 3, 4]


def test_the_scheduling_times_of_section_8_5_follow_from_table_7() -> None:
    rows = {row.what: row for row in scheduling((512,))}
    assert abs(rows["WAS of ours by unlimited standbys"].off) < 0.02
    assert abs(rows["WAS of a requeue by ours"].off) < 0.05
    assert abs(rows["WAS of a reschedule by ours"].off) < 0.08


def test_the_times_between_failures_are_those_of_meta() -> None:
    for row in mttf(days=300.0):
        assert abs(row.off) < 0.04, row


def test_seven_of_metas_points_are_within_5_percent_by_their_formula_and_a_life_agrees() -> None:
    near = [point for point in POINTS if abs(point.formula / point.published - 1) < 0.05]
    assert len(near) == 7
    point = POINTS[2]
    lived = [figures_of(PolicyLife(meta(point, days=10.0), seed).play()).ettr for seed in range(2)]
    assert fmean(lived) == pytest.approx(point.published, rel=0.05)


@pytest.mark.parametrize(("name", "days"), [("byterobust-dense", 90), ("byterobust-moe", 30)])
def test_9600_gpus_train_above_98_5_percent_and_no_job_is_given_up(name: str, days: int) -> None:
    spec = shipped(name)
    assert (spec.job.nodes * spec.job.gpus_per_node, spec.time) == (9600, f"{days} days")
    found = figures_of(PolicyLife(spec, 0).play())
    assert found.ettr > 0.985
    assert (found.jobs, found.given_up) == (1, 0)
    assert found.evicted_wrong <= 1
    assert found.incidents > days


def test_a_row_says_by_how_much_it_differs() -> None:
    row = Row("hot update", 46, 46.9, "fitted", unit="s", low=46.0, high=47.5, note="n")
    assert list(lines([row]))[-1] == "| hot update | 46 s | 46.9 s (46 to 47.5) | +2.0 % | fitted; n |"
