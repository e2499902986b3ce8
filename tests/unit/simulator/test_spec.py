"""Specs: what they may hold, and that all that is wrong is said at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.errors import ConfigError
from slurm_robust.simulator import spec

WRONG = """\
name: wrong
job: {nodes: 1000000, spares: -1, step: 5}
tme: 90 days
time: 90
cluster: {repair: 7 banana, lend: "9 s to 2 s"}
faults:
  - {kind: gpuu, rate: 1}
  - {kind: gpu, rate: 100 / 0 days}
  - {rate: 1 / s}
policy: {limits: {total: many}}
"""


def read(tmp_path: Path, text: str) -> spec.Spec:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    return spec.read(path)


def test_an_empty_spec_has_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, "# nothing\n") == spec.Spec()


def test_the_policy_has_the_keys_of_a_job_file(tmp_path: Path) -> None:
    found = read(tmp_path, "policy: {limits: {total: 1000}, detect: {diagnose: false}}\n")
    assert (found.policy.limits.total, found.policy.detect.diagnose) == (1000, False)


def test_all_that_is_wrong_is_said_at_once_with_line_and_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, WRONG)
    said = str(caught.value)
    for line, text in (
        (2, "job.nodes must be an integer from 1 to 100000"),
        (2, "job.spares must be"),
        (2, "job.step must be a time with its unit"),
        (3, "unknown key tme; did you mean time"),
        (4, "time must be a time with its unit"),
        (5, "banana is no unit of time"),
        (5, "is longer than 2 s"),
        (7, "faults[0].kind must be one of node, gpu"),
        (7, "faults[0].rate must be a rate with its unit"),
        (8, "no time to divide by"),
        (9, "faults[2] needs the key kind"),
        (10, "policy.limits.total must be an integer"),
    ):
        assert any(f"line {line}: " in one and text in one for one in said.splitlines()), (line, text)
    assert said.count("fix: ") >= 11
