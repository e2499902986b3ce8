"""What the folder monitoring/ asks Prometheus for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
MONITORING = ROOT / "monitoring"
DASHBOARDS = ("job.json", "fleet.json")
PROMTOOL = shutil.which("promtool") or ""
needs_promtool = pytest.mark.skipif(
    not PROMTOOL, reason="promtool is not installed: apt-get install prometheus"
)


def dashboard(name: str) -> dict[str, Any]:
    found = json.loads((MONITORING / name).read_bytes())
    assert isinstance(found, dict)
    return found


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    """``(where, expression)`` of every panel, annotation and alert; a dashboard's variables have a value."""
    for name in DASHBOARDS:
        found = dashboard(name)
        for panel in found["panels"]:
            for target in panel.get("targets", ()):
                yield f"{name}: {panel['title']}", _filled(target["expr"])
        for mark in found["annotations"]["list"]:
            yield f"{name}: {mark['name']}", _filled(mark["expr"])
    for rule in rules():
        yield f"alerts.yml: {rule['alert']}", rule["expr"]


def _filled(expression: str) -> str:
    return re.sub(r"\$job_id", "42", expression)
