"""Whoever comes after an end, or an order to end, is bound by what the journal says of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.controller.journal import Journal
from slurm_robust.engine.over import code_of, end_of
from slurm_robust.engine.stages.table import begin
from slurm_robust.engine.transitions import (
    ToEnding,
    ToGathering,
    ToReconnecting,
    ToRequeueing,
    ToSaving,
    Transition,
)
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.journal import fold
from tests.builders.events import run_started
from tests.builders.plans import plan

START, OTHER = "one start", "another start"
TRAINING = (
    run_started(),
    ev.ControllerStarted(t=1.0, epoch=1, host="n1", pid=1, port=1, start=START),
    ev.AllocationTaken(t=1.0, restart_count=0, nodes=("n1",), slots=("n1",), spares=()),
    ev.GenerationLaunched(t=2.0, generation=1, slots=("n1",), master="n1:1"),
)
ORDER = ev.StopOrdered(t=3.0, reason="ordered to end by SIGTERM", code=143)
DONE = ev.EndStarted(t=3.0, code=0, reason="every rank ended with code 0")
GAVE_UP = ev.EndStarted(t=3.0, code=93, reason="no", saves=True)
CANCELLED = ev.RunEnded(t=4.0, code=143, reason=ORDER.reason, final=False)
AGAIN = ev.EndStarted(
    t=3.0, code=ExitCode.REQUEUED, reason="n2 is lost", final=False, saves=True, exclude=("n2",)
)
ASKED = ev.RequeueStarted(t=4.0, exclude=("n2",), reason="n2 is lost", failure=True)


def ended(code: int, *, final: bool = True) -> ev.RunEnded:
    return ev.RunEnded(t=4.0, code=code, reason="x", final=final)


def comes(
    folder: Path, *then: ev.AnyEvent, start: str = START, restarts: int = 0
) -> tuple[Transition, Journal]:
    """With what a controller begins that comes after ``then``, and its journal."""
    journal = Journal(folder / "journal.jsonl")
    journal.append(
        *TRAINING, *then, ev.ControllerStarted(t=9.0, epoch=2, host="n1", pid=2, port=2, start=start)
    )
    news, first = begin(journal.events, structs.replace(plan(), restart_count=restarts), 10.0)
    journal.append(*news)
    return first, journal


@pytest.mark.parametrize(
    ("then", "first"),
    [
        ((DONE,), ToEnding(code=0, reason=DONE.reason)),
        ((DONE, ended(0)), ToEnding(code=0, reason="x")),
        ((GAVE_UP,), ToSaving(then=ToEnding(code=93, reason="no"))),
        ((ORDER, CANCELLED), ToEnding(code=143, reason=ORDER.reason, final=False)),
        ((AGAIN,), ToSaving(then=ToRequeueing(exclude=("n2",), reason="n2 is lost", failure=False))),
        ((AGAIN, ASKED), ToRequeueing(exclude=("n2",), reason="n2 is lost", failure=True)),
        ((AGAIN, ASKED, ORDER), ToEnding(code=143, reason=ORDER.reason, final=False)),
        ((ASKED, GAVE_UP), ToSaving(then=ToEnding(code=93, reason="no"))),
        ((ORDER,), ToReconnecting()),  # which sees the order, and stops the ranks
        ((), ToReconnecting()),
    ],
)
def test_the_next_controller_goes_on_with_the_end(
    tmp_path: Path, then: tuple[ev.AnyEvent, ...], first: Transition
) -> None:
    found, journal = comes(tmp_path, *then)
    assert found == first
    if isinstance(first, ToEnding | ToSaving):
        assert not fold(journal.events).world.running


@pytest.mark.parametrize("code", [0, 93, 7])
@pytest.mark.parametrize("decided", [True, False])
def test_an_end_for_good_binds_each_later_run(tmp_path: Path, code: int, decided: bool) -> None:
    end = ev.EndStarted(t=3.0, code=code, reason="x", saves=True) if decided else ended(code)
    for number, (start, restarts) in enumerate([(OTHER, 0), (OTHER, 1), ("", 0)]):
        folder = tmp_path / str(number)
        folder.mkdir()
        found, _ = comes(folder, end, start=start, restarts=restarts)
        then = found.then if isinstance(found, ToSaving) else found
        assert then == ToEnding(code=code, reason="x")
        assert isinstance(found, ToEnding) or restarts == 0  # no memory of other nodes has anything to save


@pytest.mark.parametrize("then", [(ORDER,), (ORDER, CANCELLED), (AGAIN,), (ended(73, final=False),)])
@pytest.mark.parametrize("restarts", [0, 1])
def test_any_other_end_binds_no_other_start(
    tmp_path: Path, then: tuple[ev.AnyEvent, ...], restarts: int
) -> None:
    found, journal = comes(tmp_path, *then, start=OTHER, restarts=restarts)
    assert isinstance(found, ToGathering | ToReconnecting)
    assert fold(journal.events).stop_ordered is None


@pytest.mark.parametrize(
    ("then", "code", "has_ended"),
    [
        ((), None, False),
        ((ORDER,), None, False),
        ((DONE,), 0, False),
        ((DONE, ended(0)), 0, True),
        ((GAVE_UP,), 93, False),
        ((AGAIN,), None, False),
        ((ORDER, CANCELLED), 143, True),
    ],
)
def test_the_code_of_a_run(then: tuple[ev.AnyEvent, ...], code: int | None, has_ended: bool) -> None:
    state = fold((*TRAINING, *then))
    assert code_of(state, START) == code
    assert (end_of(state, START) is not None) == has_ended
    is_final = code in (0, 93)
    assert code_of(state, OTHER) == (code if is_final else None)


SUPERVISOR = """
import json, sys
from pathlib import Path
from slurm_robust.controller import supervisor
from slurm_robust.model.job import JobDirectory
supervisor.STORAGE_S = 0.0
others = supervisor.Others(JobDirectory(Path(".")), 1, sys.argv[2])
command = ["bash", "-c", sys.argv[1], "controller"]
sys.exit(supervisor.Supervisor(command, pauses_s=[0.01], others=others, has_agents=lambda: False).run())
"""


def supervised(folder: Path, script: str, *then: ev.AnyEvent, start: str = START) -> tuple[int, str]:
    """The exit code of a supervisor whose controllers are ``script``, and what it said."""
    lines = (ev.encode_event(event) + b"\n" for event in (*TRAINING, *then))
    (folder / "journal.jsonl").write_bytes(b"".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR, script, start],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", ["kill -9 $$", "exit 70", "exit 73"])
def test_a_supervisor_whose_controllers_die_has_the_code_of_the_journal(tmp_path: Path, script: str) -> None:
    code, said = supervised(tmp_path, script, DONE)
    assert code == 0
    assert "training goes on" not in said or script == "exit 73"
    assert supervised(tmp_path, script, ORDER, CANCELLED)[0] == 143
    assert supervised(tmp_path, script, ORDER, CANCELLED, start=OTHER)[0] in (70, 73)
    assert supervised(tmp_path, script)[0] in (70, 73)
