from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.cli.main import main
from slurm_robust.diagnostics.command import Code, code_of, code_of_replay, render, render_replay
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.findings import Outcome
from slurm_robust.model.incident import Diagnosis, TestResult
from slurm_robust.testing.fake_replayer import FakeReplayer, NodeDefect
from tests.contracts.replayer import NODES, run


def results(*outcomes: Outcome) -> tuple[TestResult, ...]:
    return tuple(
        TestResult(test="gemm", node=f"n{i}", peers=(f"n{i}",), outcome=outcome, text="[/bold] is wrong")
        for i, outcome in enumerate(outcomes, 1)
    )


@pytest.mark.parametrize(
    ("diagnosis", "code"),
    [
        (Diagnosis(results=results(Outcome.PASS, Outcome.PASS)), Code.PASSED),
        (Diagnosis(results=results(Outcome.PASS, Outcome.UNKNOWN)), Code.UNKNOWN),
        (Diagnosis(results=results(Outcome.FAIL, Outcome.UNKNOWN)), Code.FAILED),
        (Diagnosis(results=results(Outcome.PASS, Outcome.FAIL)), Code.FAILED),
        (Diagnosis(results=results(Outcome.UNKNOWN)), Code.UNKNOWN),
        (Diagnosis(), Code.UNKNOWN),
    ],
)
def test_the_exit_code_of_a_diagnosis_says_what_it_found(diagnosis: Diagnosis, code: Code) -> None:
    assert code_of(diagnosis) == code


def test_the_table_shows_every_node_and_what_failed() -> None:
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    diagnosis = Diagnosis(
        results=results(Outcome.PASS, Outcome.FAIL),
        suspects=("n2",),
        reason="n2 (gemm)",
        left_out={"dcgm": "no"},
    )
    console.print(render(diagnosis, ("n1", "n2", "n3")))
    text = console.export_text()
    assert text.splitlines()[0] == "suspects: n2"
    assert [line.split()[1] for line in text.splitlines() if line[2:4] == "  "] == ["pass", "fail", "-"]
    assert "n2: gemm: [/bold] is wrong" in text
    assert "left out: dcgm (no)" in text


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("outside")
def test_outside_a_job_this_node_is_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--tests", "storage", "--storage", str(tmp_path), "--json"]) == Code.PASSED
    said = capsys.readouterr()
    (result,) = json.loads(said.out)["results"]
    assert result["outcome"] == "pass"
    assert f"storage on {result['node']}, " in said.err
    missing = str(tmp_path / "gone")
    assert main(["diagnose", "--tests", "storage", "--storage", missing]) == ExitCode.NO_INPUT
    assert "there is no such folder" in capsys.readouterr().err
    assert main(["diagnose", "--tests", "storage"]) == Code.UNKNOWN


@pytest.mark.usefixtures("outside")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tests", "nonsense"], "there is no test nonsense"),
        (["--budget", "0"], "'0' is not a number above 0"),
        (["--budget", "nan"], "'nan' is not a number above 0"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", *arguments]) == ExitCode.USAGE
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("outside")
def test_other_nodes_take_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "--nodes", "n[1-4]"]) == ExitCode.ALLOCATION
    assert "only this node" in capsys.readouterr().err


def printed_replay(verdict: ReplayVerdict) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(render_replay(verdict))
    return capture.get()


def test_a_suspect_comes_first_then_each_group() -> None:
    text = printed_replay(run(FakeReplayer({"n5": NodeDefect.CORRUPTS})))
    first, *_ = text.splitlines()
    assert first == "suspects: n5"
    rows = [
        re.split(r" {2,}", line) for line in text.splitlines() if re.match("(horizontal|vertical) ", line)
    ]
    assert ["horizontal", "0", "n[1-2]", "pass"] in rows
    assert ["vertical", "0", "n[1,5]", "fail other bits than the majority from step 1 on"] in rows
    assert len(rows) == 8


def test_without_groups_there_is_only_the_reason() -> None:
    text = printed_replay(run(FakeReplayer(), NODES[:1]))
    assert text.splitlines()[0] == "suspects: none"
    assert "no replay: " in text
    assert "phase" not in text


@pytest.mark.parametrize(
    ("faults", "nodes", "code"),
    [
        ({}, NODES, Code.PASSED),
        ({"n2": NodeDefect.HANGS}, NODES, Code.FAILED),
        (dict.fromkeys(NODES, NodeDefect.NAN), NODES, Code.UNKNOWN),
        ({}, NODES[:1], Code.UNKNOWN),
        ({"n2": NodeDefect.CORRUPTS}, NODES[:2], Code.UNKNOWN),
    ],
)
def test_the_exit_code_of_a_replay_says_what_it_found(
    faults: dict[str, NodeDefect], nodes: tuple[str, ...], code: Code
) -> None:
    assert code_of_replay(run(FakeReplayer(faults), nodes)) is code
