"""``srobust init`` as people and scripts use it, where Slurm is not there."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.cli.main import main, make_parser
from slurm_robust.cli.words import parse
from slurm_robust.doctor.script import run_of
from slurm_robust.model.errors import ExitCode
from slurm_robust.slurm.options import of_script
from slurm_robust.templates import fill
from slurm_robust.templates.catalog import DEFAULT, kinds, templates
from tests.waiting import wait_for

ROOT = Path(__file__).resolve().parents[3]
TRAINS = "import slurm_robust as sr\nsr.Checkpointer({})\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder on a machine without Slurm."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_batch_script_of_the_repository_is_a_kind() -> None:
    files = {path.name for path in (ROOT / "sbatch_templates").glob("*.sbatch")}
    assert {one.file for one in templates()} == files
    assert kinds()[0] == DEFAULT
    assert all(one.purpose.startswith("A ") and one.purpose.endswith(".") for one in templates())


@pytest.mark.parametrize("kind", kinds())
def test_a_script_that_is_written_has_what_was_asked_for(here: Path, kind: str) -> None:
    (here / "train.py").write_text(TRAINS)
    words = [
        "--nodes",
        "6",
        "--spares",
        "2",
        "--partition",
        "gpu",
        "--gpus-per-node",
        "8",
        "--account",
        "llm",
    ]
    assert main(["init", kind, *words, "--time", "2-00:00:00", "--script", "train.py"]) == 0
    (file,) = here.glob("*.sbatch")
    given = of_script(file.read_text(), {}).given
    asked = {"nodes": "6", "partition": "gpu", "gpus-per-node": "8", "account": "llm", "time": "2-00:00:00"}
    assert asked.items() <= given.items()
    run = run_of(file.read_text())
    assert run is not None
    assert list(run.words[:2]) == ["--spares", "2"]
    assert list(run.words[-3:]) == ["--config", "job.yaml", '"$@"'], "the script stands on sbatch's line"
    assert "sbatch --nodes=5" not in file.read_text(), "the nodes stand in the script"
    assert main(["config", "check", "job.yaml"]) == 0


def test_nothing_is_overwritten_without_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "job.yaml").write_text("mine")
    assert main(["init", "--yes"]) == ExitCode.REFUSED
    assert "job.yaml is there already; nothing was written" in capsys.readouterr().err
    assert [path.name for path in here.iterdir()] == ["job.yaml"]
    assert (here / "job.yaml").read_text() == "mine"
    assert main(["init", "--yes", "--force"]) == 0
    assert (here / "job.yaml").read_text() == fill.config_text()


def test_a_folder_that_takes_one_file_only_is_left_as_it_was(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "job.yaml").mkdir()
    assert main(["init", "--yes", "--force"]) == ExitCode.JOB_DIR
    assert [path.name for path in here.iterdir()] == ["job.yaml"]
    assert "fix: --dir names another folder" in capsys.readouterr().err


def test_json_has_what_was_chosen_and_what_comes_next(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "requeue", "--dir", "jobs/first", "--script", "train.py", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["files"] == ["train-requeue.sbatch", "job.yaml"]
    assert found["next"] == [
        "cd jobs/first",
        "srobust doctor train-requeue.sbatch train.py",
        'job=$(sbatch --parsable train-requeue.sbatch train.py) && echo "job $job"',
        'srobust status "$job"',
    ]
    assert [note.split(" ")[0] for note in found["notes"]] == ["Slurm", "train.py"]


def test_defaults_are_those_of_enter(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "train.py").write_text("import torch\n")
    assert main(["init", "--yes", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "train.py has no slurm_robust.Checkpointer" in found["notes"][1]
    assert "train.sbatch train.py)" in found["next"][1]


def submitted(page: str) -> list[str]:
    """Return the lines of a page that submit the batch script of ``srobust init``."""
    found = re.findall(r"^(sbatch .*train\.sbatch .*?)(?: +#.*)?$", (ROOT / page).read_text(), re.MULTILINE)
    return found + re.findall(r"`(sbatch [^`\n]*train\.sbatch [^`\n]*)`", (ROOT / page).read_text())


WAYS_IN = {
    page: submitted(page)
    for page in (
        "README.md",
        "docs/index.md",
        "docs/user-guide.md",
        "docs/quick-reference.md",
        "docs/tutorial.md",
        "docs/trainings.md",
    )
}


def run_by(folder: Path, line: str) -> argparse.Namespace:
    """Return how ``srobust run`` understands what a batch script gives it, if ``line`` submits that."""
    words = shlex.split(line)
    script = words.index("train.sbatch")
    stand_in = folder / "bin" / "srobust"
    stand_in.parent.mkdir(exist_ok=True)
    stand_in.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    stand_in.chmod(0o755)
    done = subprocess.run(
        ["bash", *words[script:]],
        cwd=folder,
        env={"PATH": f"{stand_in.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return parse(make_parser("run"), done.stdout.splitlines())


def test_each_page_of_the_way_in_submits_the_script() -> None:
    assert all(WAYS_IN.values()), WAYS_IN


@pytest.mark.parametrize("line", sorted({line for lines in WAYS_IN.values() for line in lines}))
def test_what_the_pages_submit_is_what_a_script_of_init_runs(tmp_path: Path, line: str) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    assert main(["init", "--yes", "--dir", str(tmp_path)]) == 0
    args = run_by(tmp_path, line)
    assert args.command[0] == "train.py"
    assert "train.py" not in args.command[1:]
    assert (args.spares, args.config) == (1, Path("job.yaml"))
    if "--from" in line:
        assert args.source == "4711"


def test_a_script_without_checkpointer_is_told_what_a_fault_means(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "train.py").write_text("import torch\n")
    assert main(["init", "--script", "train.py", "--json"]) == 0
    (_, note) = json.loads(capsys.readouterr().out)["notes"]
    assert "train.py has no slurm_robust.Checkpointer: after a fault it starts anew" in note
    (here / "train.py").write_text(TRAINS)
    assert main(["init", "--script", "train.py", "--json", "--force"]) == 0
    assert len(json.loads(capsys.readouterr().out)["notes"]) == 1


class Terminal:
    """``srobust init`` in a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.ours, theirs = pty.openpty()
        self.program = subprocess.Popen(
            [sys.executable, "-m", "slurm_robust.cli", "init"],
            cwd=folder,
            env={"PATH": "/nowhere", "PYTHONPATH": str(ROOT), "TERM": "xterm", "LC_ALL": "C.UTF-8"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)
        self.said = ""

    def shows(self, text: str) -> bool:
        try:
            self.said += os.read(self.ours, 4096).decode()
        except OSError:  # the program has ended
            return text in self.said
        return text in self.said

    def answer(self, question: str, text: str) -> None:
        wait_for(lambda: self.shows(question), 60.0, question)
        self.said = ""
        os.write(self.ours, f"{text}\n".encode())


@pytest.mark.slow
def test_a_terminal_is_asked_and_a_wrong_answer_is_asked_for_again(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    for question, text in (
        ("script of the training", "train.py"),
        ("partition", "gpu"),
        ("standbys (one of them", "3"),
        ("nodes of the job", "3"),
        ("or fewer --spares", "5"),
        ("GPUs of each node", ""),
        ("time limit", "1-00:00:00"),
    ):
        terminal.answer(question, text)
    wait_for(lambda: terminal.shows("srobust status"), 60.0, "the next commands")
    assert terminal.program.wait(60) == 0
    os.close(terminal.ours)
    assert run_by(tmp_path, WAYS_IN["README.md"][0]).command == ("train.py", "--lr", "3e-4")
    given = of_script((tmp_path / "train.sbatch").read_text(), {}).given
    assert (given["partition"], given["nodes"], given["time"]) == ("gpu", "5", "1-00:00:00")


@pytest.mark.slow
def test_an_interrupted_init_leaves_nothing(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.answer("script of the training", "train.py")
    wait_for(lambda: terminal.shows("partition"), 60.0, "the second question")
    terminal.program.send_signal(signal.SIGINT)
    assert terminal.program.wait(60) == ExitCode.INTERRUPTED
    os.close(terminal.ours)
    assert list(tmp_path.iterdir()) == []
