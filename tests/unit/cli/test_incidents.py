"""The two commands as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.evidence import bundle
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from tests.unit.report import incident_journal


@pytest.fixture
def job(tmp_path: Path) -> str:
    return str(incident_journal.bundle_of_all(tmp_path / str(incident_journal.JOB)).path)


def test_the_list_for_people_and_for_programs(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incidents", job]) == 0
    assert capsys.readouterr().out.startswith("job 4711 (stopped): 6 incidents\n")
    assert main(["incidents", job, "--last", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["left_out"], found["job"], len(found["incidents"])) == (5, "stopped", 1)
    assert found["incidents"][0]["blamed"] == "the code (ValueError at train.py:88)"


def test_one_incident_for_programs(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["incident", job, "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["incident"]["verdict"]["suspects"] == ["n3"]
    assert found["stacks"]["groups"][0]["ranks"] == [4]
    assert set(found["files"]) > {"README.txt", "incident.json", "stacks.txt", "logs/gen-003/rank-00004.err"}
    assert Path(found["folder"], "README.txt").is_file()
    assert main(["incident", job, "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["root"]["exit"]["rank"] == 3


def test_stacks_and_logs_are_shown_on_demand(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["incident", job, "3"])
    short = capsys.readouterr().out
    main(["incident", job, "3", "--stacks", "--logs"])
    long = capsys.readouterr().out
    assert long.startswith(short)
    assert "ioctl (/usr/lib/libc.so.6)" in long[len(short) :]
    # First those of the node that was blamed, before and after.
    order = [line for line in long.splitlines() if line.startswith("logs/")]
    assert order[:4] == [f"logs/gen-00{g}/rank-0000{r}.err" for r in (4, 5) for g in (3, 4)]
    assert "4 files more in" in long


def test_nothing_of_a_log_is_obeyed_by_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = JobDirectory(tmp_path)
    events = [*incident_journal.start(), *incident_journal.rank_killed()]
    incident_journal.write(directory, events)
    incident_journal.write_logs(
        directory, 1, range(8), "\x1b]0;owned\x07\x1b[31mred\x1b[0m\x9b2J[bold]not markup[/]\n"
    )
    bundle.save(directory, 1, events)
    main(["incident", str(tmp_path), "1", "--logs"])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "  red[bold]not markup[/]\n" in said


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["incident", "JOB", "9"], ExitCode.NO_INPUT, "has no incident 9; it has 1-6"),
        (["incident", "JOB", "x"], ExitCode.USAGE, "'x' is not a number from 1"),
        (["incident", "JOB", "0"], ExitCode.USAGE, "'0' is not a number from 1"),
        (["incident", "JOB"], ExitCode.USAGE, "which incident of"),
        (["incidents", "JOB", "--last", "-1"], ExitCode.USAGE, "argument --last"),
        (["incidents", "/nowhere/7"], ExitCode.NO_INPUT, "there is no folder /nowhere/7"),
    ],
)
def test_a_wrong_argument_is_named_with_its_fix(
    argv: list[str], code: int, message: str, job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([job if arg == "JOB" else arg for arg in argv]) == code
    said = capsys.readouterr().err
    assert message in said
    assert "\n  fix: " in said
