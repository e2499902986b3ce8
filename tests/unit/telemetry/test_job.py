"""A job's page: a moment as Prometheus reads it."""

from __future__ import annotations

import math
import re
import shutil
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slurm_robust.model.live_status import LiveNode, NodeState
from slurm_robust.telemetry.job import page
from slurm_robust.telemetry.metric import Metric, MetricType, escaped, number, render
from slurm_robust.telemetry.table import JobMetric, NodeMetric, all_of
from tests.builders.live_statuses import live_incident

PROMTOOL = shutil.which("promtool")
SERIES = re.compile(r'[a-z_0-9]+(\{[a-z_]+="(\\.|[^"\\])*"(,[a-z_]+="(\\.|[^"\\])*")*\})? [-+0-9.a-zA-Z]+')


def lines(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if not line.startswith("#")]


def test_every_metric_of_the_table_is_shown_and_nothing_else() -> None:
    everything = live_incident(grad_norm=1.5)
    shown = re.findall(r"^# TYPE (\S+)", page(everything).decode(), re.MULTILINE)
    assert sorted(shown) == sorted(metric.name for metric in all_of(JobMetric))


def test_a_job_in_figures() -> None:
    text = lines(page(live_incident()))
    for line in (
        'srobust_job_step{job_id="42"} 120',
        'srobust_job_step_age_seconds{job_id="42"} 1.5',
        'srobust_job_ettr_ratio{job_id="42"} 0.97',
        'srobust_job_time_seconds{job_id="42",class="productive"} 3600.5',
        'srobust_job_incidents_total{job_id="42",symptom="worker exit"} 1',
        'srobust_job_nodes{job_id="42",state="training"} 3',
        'srobust_job_nodes{job_id="42",state="evicted"} 1',
        'srobust_job_standbys{job_id="42",stage="rehearsed"} 1',
        'srobust_job_checkpoint_age_seconds{job_id="42",tier="storage"} 300',
        'srobust_job_node_state{job_id="42",node="bad",state="evicted"} 1',
        'srobust_job_node_state{job_id="42",node="bad",state="training"} 0',
        'srobust_job_incident_end_timestamp_seconds{job_id="42",incident="1",blame="node"} 1000000009',
        'srobust_job_updates{job_id="42",result="good"} 1',
        'srobust_job_update_applied_timestamp_seconds{job_id="42",update="1",release="b"} 1050000000',
        'srobust_job_update_waiting{job_id="42"} 1',
        'srobust_job_release_info{job_id="42",release="bbbbbbbbbbbb",state="good"} 1',
    ):
        assert line in [re.sub(r"\.0$", "", each) for each in text], line


def test_what_is_not_known_has_no_sample() -> None:
    text = page(live_incident(loss=None, ettr=None, left_s=None, incident=None, totals=None)).decode()
    for name in ("loss", "ettr_ratio", "time_left_seconds", "incident_age_seconds", "incidents_total"):
        assert f"srobust_job_{name}" not in text
    assert 'srobust_job_incident_open{job_id="42"} 0' in text


def test_a_job_without_releases_has_no_sample_of_them() -> None:
    text = page(live_incident(release=None, update=None, updates=0)).decode()
    assert "srobust_job_release_info{" not in text
    assert "srobust_job_update_waiting{" not in text


def test_a_standby_that_failed_its_rehearsal_counts_as_that() -> None:
    failed = LiveNode(node="s1", state=NodeState.STANDBY, why="rehearsal failed: no such file")
    text = page(structs.replace(live_incident(), nodes=(failed,))).decode()
    assert 'srobust_job_standbys{job_id="42",stage="rehearsal failed"} 1' in text


@given(st.text(max_size=300))
def test_hostile_labels_stay_in_their_line_and_quotes(text: str) -> None:
    shown = render([(Metric(name="a", help="b", labels=("c",)), [((text,), 1)])]).decode()
    *head, line = shown.splitlines()
    assert head == ["# HELP a b", "# TYPE a gauge"]
    assert SERIES.fullmatch(line), line
    assert "\x1b" not in line


def test_a_label_is_cut_and_escaped() -> None:
    assert escaped('C:\\ "x"\n\x1b[31m') == 'C:\\\\ \\"x\\"'
    assert len(escaped("x" * 10_000)) == 200
    assert len(escaped("x " * 10_000)) == 200


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (True, "1"),
        (2.5, "2.5"),
        (1e300, "1e+300"),
        (math.nan, "NaN"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
    ],
)
def test_numbers_are_gos(value: float, text: str) -> None:
    assert number(value) == text


def test_names_and_units_follow_the_conventions() -> None:
    """As promtool has them, and as https://prometheus.io/docs/practices/naming does."""
    for metric in (*all_of(JobMetric), *all_of(NodeMetric)):
        assert re.fullmatch(r"srobust_(job|node)(_[a-z0-9]+)+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricType.COUNTER), metric.name
        assert re.fullmatch(r"[A-Z0-9].*\.", metric.help), metric.help
        assert not {"job", "instance", "le", "quantile"} & set(metric.labels), metric.name
        assert not re.search(r"_(ms|s|sec|minutes|kb|mb|gb|percent)(_|$)", metric.name)
    names = [metric.name for metric in (*all_of(JobMetric), *all_of(NodeMetric))]
    assert len(set(names)) == len(names)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: apt-get install prometheus")
def test_promtool_has_nothing_to_say() -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=page(live_incident()), capture_output=True, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")
