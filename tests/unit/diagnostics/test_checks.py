"""What people and monitoring systems see of a node's checks."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from slurm_robust.admin.node_checks import Nagios, headline, nagios, render
from slurm_robust.cli.main import main as srobust
from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Suggestion
from slurm_robust.nodes.check import CheckContext
from slurm_robust.nodes.verdict import Report, conclude

LOST = Finding(
    check="gpu.present",
    outcome=Outcome.FAIL,
    subject="gpu3",
    text="XID 79 [fell] off the bus",
    value="7",
    limit="8",
    suggestion=Suggestion.REBOOT,
)
HOT = Finding(check="gpu.hot", outcome=Outcome.FAIL, subject="gpu1", text="91 C")
MUTE = Finding(check="kernel.mce", outcome=Outcome.UNKNOWN, text="no permission")
WELL = Finding(check="gpu.ecc", outcome=Outcome.PASS, subject="gpu3")


def run_of(*findings: Finding) -> Report:
    report = Report(node="n1", at=1.0, boot_id="b", context=CheckContext.PERSON, findings=findings)
    return conclude(report, NodeConfig(), {})


def shown(*findings: Finding, is_root: bool = True) -> str:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render(run_of(*findings), is_root=is_root))
    return capture.get()


@pytest.mark.parametrize(
    ("findings", "code", "line"),
    [
        ((WELL,), Nagios.OK, "OK (1 check on n1)"),
        ((WELL, MUTE), Nagios.UNKNOWN, "UNKNOWN: no permission (2 checks, 1 unknown on n1)"),
        ((WELL, MUTE, HOT), Nagios.WARNING, "WARNING: gpu1 91 C (3 checks, 1 failed, 1 unknown on n1)"),
        (
            (MUTE, HOT, LOST),
            Nagios.CRITICAL,
            "CRITICAL: gpu3 XID 79 [fell] off the bus (3 checks, 2 failed, 1 unknown on n1)",
        ),
        ((), Nagios.UNKNOWN, "UNKNOWN: there is nothing here that the checks look at (0 checks on n1)"),
    ],
)
def test_a_code_and_a_line_for_monitoring(findings: tuple[Finding, ...], code: Nagios, line: str) -> None:
    report = run_of(*findings)
    assert (nagios(report), headline(report)) == (code, line)


def test_the_worst_is_shown_first_and_text_is_not_taken_for_markup() -> None:
    text = shown(WELL, MUTE, HOT, LOST)
    places = [text.index(word) for word in ("91 C", "XID 79 [fell] off the bus", "no permission")]
    assert places[:2] < places[2:]
    assert "reboot (node)" in text
    assert text.index("gpu.present") < text.index("gpu.ecc")


def test_what_is_unknown_for_one_reason_is_one_row() -> None:
    others = [Finding(check=f"gpu.{n}", outcome=Outcome.UNKNOWN, text="no permission") for n in range(3)]
    assert shown(MUTE, *others).count("no permission") == 2  # the headline, and one row
    failures = [Finding(check=f"gpu.{n}", outcome=Outcome.FAIL, text="91 C") for n in range(3)]
    assert shown(*failures).count("91 C") == 4


def test_an_ordinary_user_learns_that_root_sees_more() -> None:
    assert "Only root" in shown(MUTE, is_root=False)
    assert "Only root" not in shown(MUTE)
    assert "Only root" not in shown(WELL, is_root=False)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(f"paths: {{state: {tmp_path}/state, log: {tmp_path}/log}}\n")
    return str(path)


@pytest.mark.slow
def test_srobust_check_checks_the_real_machine(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = srobust(["check", "--json", "--config", config])
    whole = json.loads(capsys.readouterr().out)
    assert list(whole) == ["report", "conclusion"]
    assert list(whole["conclusion"]) == ["fit", "reason", "suggestion", "causes", "warnings", "unknown"]
    assert whole["conclusion"]["fit"] is (code != Nagios.CRITICAL)
    assert len({finding["check"] for finding in whole["report"]["findings"]}) > 5
    assert srobust(["check", "--only", "disks.*", "--json", "--config", config]) in list(Nagios)
    whole = json.loads(capsys.readouterr().out)
    assert {finding["check"].split(".")[0] for finding in whole["report"]["findings"]} <= {"disks"}


@pytest.mark.slow
def test_a_baseline_is_recorded(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert srobust(["check", "--record-baseline", "--config", config]) in (Nagios.OK, Nagios.WARNING)
    assert "recorded in" in capsys.readouterr().out
    assert "disks" in msgspec.json.decode((tmp_path / "state" / "baseline.json").read_bytes())


def test_every_check_explains_itself(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert srobust(["check", "--explain", "--json", "--config", config]) == Nagios.OK
    found = msgspec.json.decode(capsys.readouterr().out)
    assert [check["check"] for check in found if len(check["explain"].split()) < 8] == []
    assert len({check["check"] for check in found}) == len(found)
    assert srobust(["check", "--explain", "disks.*", "--config", config]) == Nagios.OK
    assert "runs in:" in capsys.readouterr().out


def test_a_check_that_is_not_there_is_said(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert srobust(["check", "--only", "disk", "--config", config]) == Nagios.UNKNOWN
    assert "no check is named 'disk'" in capsys.readouterr().err
