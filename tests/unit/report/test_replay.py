"""What ``srobust replay`` prints, and its exit code."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from slurm_robust.analysis.replay import ReplayVerdict
from slurm_robust.report.replay import Code, code_of, render
from slurm_robust.testing.fake_replayer import FakeReplayer, Fault
from tests.contracts.replayer import NODES, run


def printed(verdict: ReplayVerdict) -> str:
    console = Console(width=120, file=io.StringIO())
    with console.capture() as capture:
        console.print(render(verdict))
    return capture.get()


def test_a_suspect_comes_first_then_each_group() -> None:
    text = printed(run(FakeReplayer({"n5": Fault.CORRUPTS})))
    first, *_ = text.splitlines()
    assert first == "suspects: n5"
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    assert ["horizontal", "0", "n1, n2", "pass"] in rows
    assert ["vertical", "0", "n1, n5", "fail other bits than the majority from step 1 on"] in rows
    assert len(rows) == 8


def test_without_groups_there_is_only_the_reason() -> None:
    text = printed(run(FakeReplayer(), NODES[:1]))
    assert text.splitlines()[0] == "suspects: none"
    assert "no replay: " in text
    assert "phase" not in text


@pytest.mark.parametrize(
    ("faults", "nodes", "code"),
    [
        ({}, NODES, Code.AGREE),
        ({"n2": Fault.HANGS}, NODES, Code.SUSPECTS),
        (dict.fromkeys(NODES, Fault.NAN), NODES, Code.NO_VERDICT),
        ({}, NODES[:1], Code.NO_VERDICT),
        ({"n2": Fault.CORRUPTS}, NODES[:2], Code.NO_VERDICT),
    ],
)
def test_the_exit_code(faults: dict[str, Fault], nodes: tuple[str, ...], code: Code) -> None:
    assert code_of(run(FakeReplayer(faults), nodes)) is code
