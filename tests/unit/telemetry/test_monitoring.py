"""Dashboards, alerts and the reference page name only metrics that exist, in expressions that are right."""

from __future__ import annotations

import re
import subprocess
from itertools import combinations
from pathlib import Path

import pytest
import yaml

from slurm_robust.home import page
from slurm_robust.telemetry.table import JobMetric, NodeMetric, all_of, page_with_tables
from tests.unit.telemetry.monitoring import (
    DASHBOARDS,
    MONITORING,
    PROMTOOL,
    ROOT,
    dashboard,
    expressions,
    needs_promtool,
    rules,
)

METRICS = {metric.name: metric for metric in (*all_of(JobMetric), *all_of(NodeMetric))}
OF_TARGETS = {"job_id", "instance", "cluster", "user", "name", "job"}


def promtool(*words: str) -> str:
    done = subprocess.run(
        [PROMTOOL, *words], cwd=MONITORING, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_expression_names_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    named = re.findall(r"\b(srobust_\w+)(?:\{([^}]*)\})?", expression)
    assert named or "up{" in expression, where
    for name, matchers in named:
        assert name in METRICS, where
        labels = set(re.findall(r"(\w+)\s*[=!]~?\"", re.sub(r'"[^"]*"', '""', matchers)))
        assert labels <= {*METRICS[name].labels, *OF_TARGETS}, where
    for grouped in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        every = {label for name, _ in named for label in METRICS[name].labels}
        assert {label.strip() for label in grouped.split(",")} <= every | OF_TARGETS, where


@needs_promtool
def test_every_expression_is_understood(tmp_path: Path) -> None:
    recorded = [{"record": f"n{i}", "expr": expression} for i, (_, expression) in enumerate(expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}))
    assert f"{len(recorded)} rules found" in promtool("check", "rules", str(file))


@needs_promtool
def test_alerts_are_rules_and_fire_when_they_should() -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_each_alert_has_a_test() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    fired = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each["exp_alerts"]}
    assert fired == {rule["alert"] for rule in rules()}


@needs_promtool
def test_the_example_is_a_configuration() -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_each_alert_leads_to_what_to_do(rule: dict[str, dict[str, str]]) -> None:
    url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert url == page("monitoring.md"), "an address that leads somewhere from everywhere"
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / "monitoring.md").read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    assert anchor == str(rule["alert"]).lower()


def test_the_figures_at_the_top_of_a_job_are_coloured_where_that_says_something() -> None:
    top = [panel for panel in dashboard("job.json")["panels"] if panel["gridPos"]["y"] == 0]
    plain = [panel["title"] for panel in top if "thresholds" not in panel["fieldConfig"]["defaults"]]
    assert plain == ["Step"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_dashboard_is_whole(name: str) -> None:
    found = dashboard(name)
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) >= len(panels) - 2
    for panel in panels:
        assert panel["type"] == "row" or panel["targets"], panel["title"]
        assert panel.get("datasource", {"uid": "${datasource}"})["uid"] == "${datasource}"
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart_x = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart_x or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    annotations = found["annotations"]["list"]
    assert [one["name"] for one in annotations][:2] == ["incidents begin", "incidents end"]
    assert all(one["useValueForTime"] for one in annotations)


def test_the_reference_page_is_of_today() -> None:
    """If not: python -m slurm_robust.telemetry.table docs/metrics.md."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == page_with_tables(page)
