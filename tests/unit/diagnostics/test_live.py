"""``srobust stacks`` over real sockets, with a simulated job behind the controller's end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from slurm_robust.cli.main import main
from slurm_robust.controller.journal import Journal
from slurm_robust.diagnostics.live import (
    LiveStacks,
    NewestStep,
    NotLive,
    StackSample,
    StackVerdict,
    explain,
    unanswered,
)
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.live_status import encode
from slurm_robust.model.state import JobState
from slurm_robust.run.preflight import open_directory
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.job import Sim
from slurm_robust.testing.sim.training import doing
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Refused, ShowStacks, StacksShown
from slurm_robust.wire.protocol import PROTOCOL
from slurm_robust.wire.sockets import ControllerSocket
from tests.builders.live_statuses import live_status
from tests.unit.engine.stories import controller_of, trained
from tests.unit.report.test_logs import ENDED, STARTED

SLOTS = ("n1", "n2", "n3", "n4")


@pytest.fixture
def sim() -> Sim:
    """A job that one of its ranks stops."""
    made = trained(4)
    made.hang_rank(2, shows=lambda order: doing(2, "n3", "forward@/home/me/model.py", state="T"))
    return made


@pytest.fixture
def directory(tmp_path: Path, sim: Sim) -> JobDirectory:
    found = JobDirectory(tmp_path / "1")
    prepare(found, sim)
    return found


def prepare(found: JobDirectory, sim: Sim) -> None:
    open_directory(found)
    with closing(Journal(found.journal)) as journal:
        for event in sim.journal:
            journal.append(event)


@contextmanager
def serving(server: ControllerSocket, answer: Callable[[Any], Any]) -> Iterator[None]:
    """Answers each wish until the block is left."""
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            if server.socket.poll(20) and (received := server.recv()) is not None:
                identity, wish = received
                server.send(identity, answer(wish))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def controller(directory: JobDirectory, sim: Sim) -> Iterator[None]:
    """Answers looks as the loop does; between two of them a second passes."""
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        take_epoch(
            directory.epochs, host="localhost", addresses=("127.0.0.1",), port=server.port, pid=1, run_id="r"
        )

        def answer(wish: object) -> StacksShown:
            assert isinstance(wish, ShowStacks)
            shown = controller_of(sim).show_stacks(wish)
            sim.run(1.0)
            return shown

        with serving(server, answer):
            yield


def test_the_rank_that_blocks_the_others_is_seen_at_a_glance(
    directory: JobDirectory, sim: Sim, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller(directory, sim):
        assert main(["stacks", str(directory.path)]) == ExitCode.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Stacks of 4 ranks of job 1, ")
    assert lines[0].endswith(", generation 1 on 4 nodes, by py-spy")
    assert lines[1].startswith("  No incident is open")
    assert lines[2].startswith("  They place the fault at rank 2 (exactly there, confidence 95%)")
    usual, odd = lines[4:6]
    assert usual.split()[:4] == ["3", "ranks:", "0-1,3", "n[1-2,4]"]
    assert "waits for other ranks" in usual
    assert odd.split()[:4] == ["1", "rank:", "2", "n3"]
    assert "is stopped" in odd
    assert odd.rstrip().endswith("(unlike most)")


def leaves(directory: JobDirectory, step: int, age_s: float) -> None:
    """The controller's live status: this step, so many seconds ago; steps of 2 s are usual."""
    status = structs.replace(live_status(), t=time.time(), step=step, step_age_s=age_s, usual_step_s=2.0)
    directory.live_status.write_bytes(encode(status))


def test_training_that_goes_on_is_no_fault_of_the_rank_that_was_last(
    directory: JobDirectory, sim: Sim, capsys: pytest.CaptureFixture[str]
) -> None:
    sim.hang_rank(2, shows=lambda order: doing(2, "n3", "forward@/home/me/model.py"))
    leaves(directory, 238, 0.4)
    with controller(directory, sim):
        assert main(["stacks", str(directory.path)]) == ExitCode.SUCCESS
        said = capsys.readouterr().out
        assert main(["stacks", str(directory.path), "--json"]) == ExitCode.SUCCESS
    printed = msgspec.json.decode(capsys.readouterr().out, type=StackSample)
    assert "Training goes on (step 238, 0." in said
    assert "no fault. Last to arrive: rank 2." in said
    assert "They place the fault" not in said
    assert printed.verdict is StackVerdict.GOES_ON


@pytest.mark.parametrize(("age_s", "state"), [(7.0, "S"), (0.4, "T")])
def test_a_rank_that_stands_still_is_named_before_an_incident_is_open(
    age_s: float, state: str, directory: JobDirectory, sim: Sim, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the age of the newest step, and by a process that is stopped whatever that is."""
    sim.hang_rank(2, shows=lambda order: doing(2, "n3", "forward@/home/me/model.py", state=state))
    leaves(directory, 238, age_s)
    with controller(directory, sim):
        assert main(["stacks", str(directory.path)]) == ExitCode.SUCCESS
    said = capsys.readouterr().out
    assert "since step 238 (usual 2 s); no incident is open yet." in said
    assert "They place the fault at rank 2" in said
    assert "goes on" not in said


def test_a_step_that_is_made_between_two_looks_shows_that_training_goes_on() -> None:
    newest = NewestStep(step=9, age_s=60.0, usual_s=0.1, has_moved=True)
    assert newest.is_fresh
    assert not structs.replace(newest, has_moved=False).is_fresh


def test_whole_stacks_are_there_when_asked_for(
    directory: JobDirectory, sim: Sim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = tmp_path / "stacks.json"
    with controller(directory, sim):
        assert main(["stacks", str(directory.path), "--rank", "2", "--save", str(saved)]) == 0
        text = capsys.readouterr().out
        assert main(["stacks", str(directory.path), "--json"]) == 0
        printed = msgspec.json.decode(capsys.readouterr().out, type=StackSample)
        assert main(["stacks", str(directory.path), "--raw"]) == 0
        raw = capsys.readouterr().out
    assert "Rank 2 on n3, by py-spy" in text
    assert "forward (/home/me/model.py)" in text
    assert "Rank 1 on" not in text
    assert [f"Rank {rank} on n{rank + 1}" in raw for rank in range(4)] == [True] * 4
    sample = msgspec.json.decode(saved.read_bytes(), type=StackSample)
    assert [stack.rank for stack in sample.ranks] == [0, 1, 2, 3]
    assert (printed.localisation.ranks, printed.ranks) == ((2,), ())


@pytest.mark.parametrize("command", [["stacks"], ["drill", "kill-rank", "--rank", "0"]])
def test_a_controller_of_another_release_is_named_and_not_taken_for_a_silent_one(
    directory: JobDirectory, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(ControllerSocket(load_server(directory.keys))) as server:
        take_epoch(
            directory.epochs, host="localhost", addresses=("127.0.0.1",), port=server.port, pid=1, run_id="r"
        )
        with serving(server, lambda wish: Refused(refused="a\x1bsked", protocol=9)):
            assert main([command[0], str(directory.path), *command[1:]]) == ExitCode.NO_INPUT
    said = capsys.readouterr().err
    assert f"it speaks protocol 9, this command {PROTOCOL}: it does not know 'a" in said
    assert "use the srobust of the release that runs the job" in said


def test_a_silent_node_is_named_and_changes_the_exit_code(
    directory: JobDirectory, sim: Sim, capsys: pytest.CaptureFixture[str]
) -> None:
    sim.nodes["n4"].is_mute = True
    with controller(directory, sim):
        assert main(["stacks", str(directory.path)]) == 1
    assert "asked n4 for stacks, no answer within 6 s" in capsys.readouterr().out


def test_a_rank_that_does_not_exist_is_refused(
    directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stacks", str(directory.path), "--rank", "4"]) == ExitCode.USAGE
    assert "ranks are 0 to 3" in capsys.readouterr().err


def test_a_job_that_has_ended_says_where_its_stacks_are(
    directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(Journal(directory.journal)) as journal:
        journal.append(ev.RunEnded(t=1.0, code=0, reason="all ranks are done"))
    assert main(["stacks", str(directory.path)]) == ExitCode.NO_INPUT
    said = capsys.readouterr().err
    assert "job 1 has ended: all ranks are done" in said
    assert f"srobust incident {directory.path} N --stacks" in said


@pytest.mark.slow
def test_a_controller_that_is_gone_is_not_waited_for(
    directory: JobDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stacks", str(directory.path)]) == ExitCode.NO_INPUT
    assert "has no controller yet" in capsys.readouterr().err
    take_epoch(directory.epochs, host="127.0.0.1", addresses=(), port=1, pid=os.getpid(), run_id="r")
    assert main(["stacks", str(directory.path)]) == ExitCode.NO_INPUT
    assert "the controller of job 1 (127.0.0.1, port 1) does not answer" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_does_not_cost_the_sample(
    directory: JobDirectory, sim: Sim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with controller(directory, sim):
        assert main(["stacks", str(directory.path), "--save", str(tmp_path / "no" / "x")]) != 0
    said = capsys.readouterr()
    assert "They place the fault at rank 2" in said.out
    assert "cannot be written" in said.err


def test_a_generation_that_the_journal_does_not_know_is_refused_with_the_reason() -> None:
    taken = LiveStacks(generation=3, nodes=SLOTS, stacks=(), silent=(), limit_s=6.0)
    with pytest.raises(NotLive, match="generation 3 is not in the journal yet"):
        explain(taken, JobState(), 0.0)


# -- a controller that does not answer --------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["drill", "JOB", "kill-rank"], ["stacks", "JOB"]])
def test_a_job_that_has_ended(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = b"".join(ev.encode_event(event) + b"\n" for event in (STARTED, ENDED))
    (tmp_path / "journal.jsonl").write_bytes(events)
    assert main([str(tmp_path) if argument == "JOB" else argument for argument in arguments]) == 66
    assert "job 7 has ended: every rank ended with code 0" in capsys.readouterr().err


def test_a_controller_that_is_silent_because_slurm_ended_the_job(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    state = JobState(job_id=slurm.submit(SubmitRequest(command=("train.sh",))))
    epoch = take_epoch(tmp_path, host="n1", addresses=("10.0.0.1",), port=7, pid=1, run_id="r")
    assert "does not answer; Slurm: RUNNING" in str(unanswered(state.job_id, epoch, slurm))
    slurm.cluster.finish(state.job_id, "CANCELLED")
    assert str(unanswered(state.job_id, epoch, slurm)) == "job 1 has ended: Slurm says CANCELLED"


def test_a_requeued_job_that_is_pending_is_said_to_be(tmp_path: Path) -> None:
    slurm = FakeSlurm()
    job = slurm.job(slurm.submit(SubmitRequest(command=("train.sh",), nodes=3)))
    epoch = take_epoch(tmp_path, host="n1", addresses=("10.0.0.1",), port=7, pid=1, run_id="r")
    pending = frozenset({"PENDING"})
    slurm.cluster.set_node("n1", states=frozenset({"DOWN"}))
    slurm.cluster.set_node("n2", states=frozenset({"DOWN"}))
    slurm.cluster.put(job, states=pending, reason="Resources", restart_count=2, nodes=())
    found = unanswered(1, epoch, slurm)
    says = "job 1 was requeued and is PENDING (Resources), needs 3 nodes"
    assert str(found) == f"{says}: nothing of it runs now"
    assert found.fix == "'srobust status 1' shows what it waits for"
    slurm.cluster.put(job, states=pending, reason="JobHeldUser", restart_count=2, nodes=(), priority=0)
    assert unanswered(1, epoch, slurm).fix == "held (JobHeldUser): scontrol release 1"
