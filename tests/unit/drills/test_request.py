"""Ctrl-C at each moment of ``srobust drill``, over real sockets."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from slurm_robust.cli.main import main
from slurm_robust.controller.journal import Journal
from slurm_robust.model.drill import DrillPromise
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import Restart, Symptom
from slurm_robust.model.job import JobDirectory
from slurm_robust.run.preflight import open_directory
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Drill, DrillReply
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders import incidents
from tests.builders.events import run_started
from tests.unit.diagnostics.test_live import serving
from tests.unit.drills.test_follow import planted

PROMISE = DrillPromise(symptom=Symptom.WORKER_EXIT, detect_s=5.0, actions=(Restart(),))

Command = Callable[[Callable[[Drill, JobDirectory], DrillReply]], list[str]]


@pytest.fixture
def command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command until it is interrupted; what it prints, stdout first. Its controller is given."""
    directory = JobDirectory(tmp_path / "1")
    open_directory(directory)
    with closing(Journal(directory.journal)) as journal:
        journal.append(run_started())

    def run(answer: Callable[[Drill, JobDirectory], DrillReply]) -> list[str]:
        with closing(ControllerSocket(load_server(directory.keys))) as server:
            take_epoch(
                directory.epochs,
                host="localhost",
                addresses=("127.0.0.1",),
                port=server.port,
                pid=1,
                run_id="r",
            )
            with serving(server, lambda wish: answer(wish, directory)):
                words = ["drill", str(directory.path), "kill-rank", "--rank", "0", "--json"]
                assert main(words) == ExitCode.INTERRUPTED
        return [text.replace(str(directory.path), "JOB") for text in capsys.readouterr()]

    return run


def interrupt(_: float = 0.0) -> None:
    """Ctrl-C, which interrupts what the main thread waits for."""
    ident = threading.main_thread().ident
    assert ident is not None
    signal.pthread_kill(ident, signal.SIGINT)


def test_ctrl_c_before_a_fault_is_planted_leaves_nothing(command: Command) -> None:
    def answer(wish: Drill, directory: JobDirectory) -> DrillReply:
        assert wish.plan, "the fault was asked for"
        interrupt()
        return DrillReply(ok=False, text="")

    assert command(answer) == ["", "interrupted: nothing was done\n"]


def test_ctrl_c_before_the_answer_says_that_a_fault_may_be_planted(command: Command) -> None:
    def answer(wish: Drill, directory: JobDirectory) -> DrillReply:
        if not wish.plan:
            interrupt()
        return DrillReply(ok=wish.plan, text="kill-rank", node="n1", promise=PROMISE)

    said = "'srobust status JOB' shows whether a fault was planted\n"
    assert command(answer) == ["", f"interrupted before the controller answered: {said}"]


def test_ctrl_c_while_it_waits_leaves_the_drill_and_names_the_command_that_shows_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", interrupt)  # after the first look at the journal

    def answer(wish: Drill, directory: JobDirectory) -> DrillReply:
        if not wish.plan:
            with closing(Journal(directory.journal)) as journal:
                journal.append(planted(PROMISE))
                journal.append(incidents.opened(t=101.0))
        return DrillReply(ok=True, text="kill-rank", drill=int(not wish.plan), node="n1", promise=PROMISE)

    shown, said = command(answer)
    assert said == (
        "drill 1 goes on without this command: the job recovers by itself; "
        "'srobust incident JOB 1' shows it\n"
    )
    assert (json.loads(shown)["is_kept"], json.loads(shown)["progress"]["incident"]) == (None, 1)
