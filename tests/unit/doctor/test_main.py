"""The report of ``srobust doctor``, and the command itself without a Slurm."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.doctor.main import Report, render
from slurm_robust.doctor.rule import apply_all
from slurm_robust.doctor.rules import RULES
from slurm_robust.model.errors import ExitCode
from tests.unit.doctor.samples import GOOD, environ, slurm

EVIL = "ib0\x1b[2J\nBAD  nothing"


def report(*, clean: bool = False) -> Report:
    facts = GOOD if clean else environ(NCCL_SOCKET_IFNAME=EVIL)(slurm(SlurmdTimeout="300 sec")(GOOD))
    return Report(host="n1", hazards=apply_all(RULES, facts), unseen=("the job: give one",))


def test_a_person_sees_what_is_wrong_and_why() -> None:
    lines = render(report(), verbose=False).splitlines()
    assert lines[0].startswith(
        "    BAD  nccl.interfaces: NCCL_SOCKET_IFNAME is ib0 BAD nothing, and this node has"
    )
    assert "\x1b" not in "".join(lines)
    assert lines[1].startswith("           why: ")
    assert lines[2].startswith("           fix: ")
    assert lines[-2] == "not seen: the job: give one"
    assert lines[-1].startswith(f"n1: {len(RULES)} rules, 1 bad, 2 note")
    assert not any("good  " in line or "source:" in line for line in lines)


def test_all_of_it() -> None:
    text = render(report(), verbose=True)
    assert all(rule.name in text for rule in RULES)
    assert "source: slurm.conf(5) SlurmdTimeout" in text


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


@pytest.mark.usefixtures("no_slurm")
def test_without_slurm_nothing_is_bad(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {hazard["rule"] for hazard in document["hazards"]} == {rule.name for rule in RULES}
    assert document["unseen"][0].startswith("Slurm: ")


@pytest.mark.usefixtures("no_slurm")
def test_a_bad_script_is_bad(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sbatch"
    script.write_text("#!/bin/sh\n#SBATCH --requeue\n")
    assert main(["doctor", str(script), "--set", "spares=1"]) == 1
    assert "BAD  job.no_kill" in capsys.readouterr().out
    script.write_text("#!/bin/sh\n#SBATCH --no-kill --signal=B:USR1@120\n")
    assert main(["doctor", str(script)]) == 0


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["x.sbatch", "--jobid", "7"], ExitCode.USAGE),
        (["--state", "much"], ExitCode.USAGE),
        (["--jobid", "0"], ExitCode.USAGE),
        (["/no/such/script"], ExitCode.NO_INPUT),
        (["--set", "spares=-1"], ExitCode.USAGE),
        (["--config", "/no/such/file"], ExitCode.NO_INPUT),
    ],
)
@pytest.mark.usefixtures("no_slurm")
def test_errors_have_the_codes_of_the_house(argv: list[str], code: ExitCode) -> None:
    assert main(["doctor", *argv]) == code
