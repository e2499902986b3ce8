"""What a shell offers at the TAB key, asked of the function that it is given."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.cli.candidates import FILES, RUNNING_S, candidates, job_names
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.main import main, make_parser
from slurm_robust.terminal.completion import SCRIPTS
from tests.unit.trainings.test_find import started


def jobs(job_dir: str | None) -> list[str]:
    return ["4711", "4690"] if job_dir is None else [f"{job_dir}/1"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", [*HELP]),
        ("sta", ["status", "stacks"]),
        ("help rol", ["rollback"]),
        ("checkpoint v", ["verify"]),
        ("help checkpoint pl", ["plan"]),
        ("sandbox fault kill-", ["kill-slurmd", "kill-slurmctld", "kill-rank"]),
        ("bogus ", []),
        ("status ", ["4711", "4690"]),
        ("status 46", ["4690"]),
        ("status --job-dir /x ", ["/x/1"]),
        ("status --job-dir = /x ", ["/x/1"]),
        ("status --jo", ["--job-dir"]),
        ("status 4711 ", []),
        ("drill 4711 kill-r", ["kill-rank"]),
        ("classify --stream k", ["kernel"]),
        ("classify --stream = k", ["kernel"]),
        ("classify a.log ", [FILES]),
        ("report 4711 --html ", [FILES]),
        ("drill 4711 kill-rank --rank ", []),
        ("config check ", [FILES]),
        ("run --spa", ["--spares"]),
        ("run ", [FILES]),
        ("run train.py --spa", [FILES]),
        ("run -- ", [FILES]),
        ("sandbox exec -- l", [FILES]),
    ],
)
def test_what_is_offered(line: str, expected: list[str]) -> None:
    assert candidates(line.split(" "), make_parser, jobs) == expected


def test_jobs_that_run_are_offered_and_without_any_all(root: Path) -> None:
    for age, job in enumerate((1, 5, 6)):
        os.utime(started(root / str(job)) / "journal.jsonl", (age, age))
    (root / "training-gpt").mkdir()
    assert job_names(None) == ["6", "5", "1", "gpt"]
    (root / "5" / "moment.json").touch()
    (root / "6" / "moment.json").touch()
    assert job_names(None) == ["6", "5", "gpt"]
    os.utime(root / "6" / "moment.json", (1, 1))
    assert job_names(str(root)) == ["5", "gpt"]
    assert RUNNING_S < 3600
    assert job_names("/nowhere") == []


def pressed(line: str, cwd: Path) -> list[str]:
    """What bash offers for a line at whose end the TAB key is pressed."""
    words = ["srobust", *line.split(" ")]
    asked = f"COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _srobust srobust srobust"
    code = f'eval "$(srobust completion bash)"\n{asked}\nprintf "%s\\n" "${{COMPREPLY[@]}}"'
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ, shell = os.environ | {"PATH": path}, ["bash", "-c", code]
    return subprocess.run(
        shell, cwd=cwd, env=environ, capture_output=True, text=True, check=True
    ).stdout.split()


@pytest.mark.slow
def test_bash_offers_it(root: Path, tmp_path: Path) -> None:
    started(root / "4711")
    (tmp_path / "my job.yaml").touch()
    assert pressed("sta", tmp_path) == ["status", "stacks"]
    assert pressed("logs ", tmp_path) == ["4711"]
    assert pressed("drill 4711 --rank = ", tmp_path) == []
    assert pressed("config check my", tmp_path) == ["my", "job.yaml"]
    assert pressed("checkpoint ls --js", tmp_path) == ["--json"]


def test_the_first_word_is_completed_without_any_command() -> None:
    """So it takes no longer than Python's own start and a little more."""
    code = "import sys; from slurm_robust.cli.main import main; main(sys.argv[1:]); print(*sys.modules)"
    argv = [sys.executable, "-c", code, "completion", "--words", "sta"]
    *shown, modules = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown == ["status", "stacks"]
    assert not {"rich", "yaml", "zmq", "psutil", "slurm_robust.report"} & {*modules.split()}


def test_a_line_that_cannot_be_completed_is_no_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "--words", "bogus", "x"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_a_shell_names_its_function(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_srobust srobust" in capsys.readouterr().out
