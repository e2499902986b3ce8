"""One message in the spellings of many releases is one piece of evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_robust.analysis.logs import classify
from slurm_robust.analysis.logs.text import canonical

VARIANTS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "variants.yaml").read_text())
CASES = [
    pytest.param(message, text, id=f"{message['message']}, {release}")
    for message in VARIANTS
    for release, text in message["texts"].items()
]
LABELS = (
    "",
    "[rank3]: ",
    "12: ",
    "(Trainer pid=77, ip=10.0.0.1) ",
    "2026-11-23T13:57:01.123456789Z stderr F ",
)


@pytest.mark.parametrize(("message", "text"), CASES)
def test_each_spelling_is_taken_by_the_rule(message: dict[str, Any], text: str) -> None:
    found = classify(text)
    assert found.rule == message["rule"]
    assert [found.symptom, found.blame.value, found.action.value] == message["verdict"]


@pytest.mark.parametrize(("message", "text"), CASES)
def test_labels_of_ranks_change_nothing(message: dict[str, Any], text: str) -> None:
    rules = {classify("\n".join(label + line for line in text.splitlines())).rule for label in LABELS}
    assert rules == {message["rule"]}


@pytest.mark.parametrize(
    "function", ["ncclProxyConnect", "ncclIbAsyncThreadMain", "operator()", "ns::f<int>"]
)
def test_nccls_function_is_no_part_of_the_text(function: str) -> None:
    line = "n1:1:2 [0] misc/socket.cc:58{} NCCL WARN socketProgress: Connection closed (why) NCCL WARN twice"
    assert canonical(line.format(f" ({function})")) == line.format("")
    assert canonical(line.format("")) == line.format("")
