"""What can be wrong before the first worker starts: one clear error each, with a fix and a code."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.config.job import JobConfig, ParallelConfig
from slurm_robust.controller import preflight
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.state import JobState
from slurm_robust.policy.replacement import assign
from slurm_robust.slurm.records import Allocation
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Ping, Pong
from slurm_robust.wire.sockets import ControllerSocket
from slurm_robust.worker.lookup import missing
from tests.unit.sample_events import run_started
from tests.users import run_as

ALLOCATION = Allocation(
    job_id=7,
    nodes=("n1", "n2", "n3"),
    cpus_per_node={},
    gpus_per_node={"n1": 8, "n2": 8, "n3": 8},
    batch_host="n1",
    restart_count=0,
)


def check(error: pytest.ExceptionInfo[PreflightError], code: ExitCode, text: str) -> None:
    assert error.value.exit_code == code
    assert text in str(error.value)
    assert error.value.fix


def test_outside_of_slurm() -> None:
    with pytest.raises(PreflightError) as error:
        preflight.find_allocation({"PATH": "/bin"})
    check(error, ExitCode.ALLOCATION, "not inside a Slurm job")


def test_a_heterogeneous_job_is_refused() -> None:
    with pytest.raises(PreflightError) as error:
        preflight.find_allocation(
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_HET_SIZE": "2", "SLURM_NNODES": "1"}
        )
    check(error, ExitCode.ALLOCATION, "heterogeneous (2 components)")


def test_a_script_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.check_command(CommandKind.SCRIPT, ("train.py",), tmp_path)
    check(error, ExitCode.NO_INPUT, "script not found")


@pytest.mark.parametrize("name", ["nowhere", "package.nowhere", "nowhere.train", "half"])
def test_a_module_that_is_not_there(name: str, tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "__init__.py").touch()  # but no __main__.py
    with pytest.raises(PreflightError) as error:
        preflight.check_command(CommandKind.MODULE, (name, "--lr", "1"), tmp_path)
    check(error, ExitCode.NO_INPUT, f"module not found: {name} (searched in {tmp_path}")


@pytest.mark.parametrize("name", ["train", "package.train", "package", "odd.train", "json.tool"])
def test_a_module_that_is_there_or_that_nobody_can_know_of(name: str, tmp_path: Path) -> None:
    for folder in ("package", "odd"):
        (tmp_path / folder).mkdir()
    (tmp_path / "train.py").touch()
    for file in ("__init__", "__main__", "train"):
        (tmp_path / "package" / f"{file}.py").touch()
    (tmp_path / "odd" / "__init__.py").write_text("import only_on_nodes_with_gpus")
    preflight.check_command(CommandKind.MODULE, (name,), tmp_path)


def test_a_program_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "train"
    for words, text in ((("train",), "in no folder of PATH"), (("./train",), "not found")):
        with pytest.raises(PreflightError) as error:
            preflight.check_command(CommandKind.EXEC, words, tmp_path)
        check(error, ExitCode.NO_INPUT, text)
    program.touch()
    with pytest.raises(PreflightError) as error:
        preflight.check_command(CommandKind.EXEC, ("./train",), tmp_path)
    check(error, ExitCode.NO_INPUT, "program not executable")
    program.chmod(0o755)
    preflight.check_command(CommandKind.EXEC, ("./train",), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    preflight.check_command(CommandKind.EXEC, ("train",), tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="root looks everywhere, and only root can be another user")
@pytest.mark.parametrize("kind", [CommandKind.SCRIPT, CommandKind.EXEC])
def test_checkpoints_that_storage_does_not_list_are_not_missing(kind: CommandKind, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert run_as(65534, lambda: preflight.check_command(kind, ("./train",), closed)) == "None"
    assert run_as(65534, lambda: missing(kind, ("./train",), str(closed))) == "None"


@pytest.mark.parametrize(("nodes", "spares"), [(4, 0), (3, 1), (None, 3)])
def test_more_nodes_than_the_allocation_has(nodes: int | None, spares: int) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.sizes(JobConfig(nodes=nodes, spares=spares), ALLOCATION)
    check(error, ExitCode.ALLOCATION, "the allocation has 3")


def test_sizes_default_to_the_allocation_less_the_spares_and_all_gpus() -> None:
    assert preflight.sizes(JobConfig(spares=1), ALLOCATION) == (2, 1, 8)
    assert preflight.sizes(JobConfig(nodes=1, nproc_per_node=2), ALLOCATION) == (1, 0, 2)


def test_a_world_that_the_parallel_sizes_do_not_divide() -> None:
    config = JobConfig(parallel=ParallelConfig(tp=4, pp=5))
    with pytest.raises(PreflightError) as error:
        preflight.sizes(config, ALLOCATION)
    check(error, ExitCode.CONFIG, "tp 4 * pp 5 = 20 does not divide the world of 24 ranks")
    assert "parallel.tp, parallel.pp" in error.value.fix
    assert preflight.sizes(JobConfig(parallel=ParallelConfig(tp=4, pp=3)), ALLOCATION) == (3, 0, 8)


def test_a_job_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError) as error:
        preflight.open_directory(JobDirectory(tmp_path / "file" / "7"))
    check(error, ExitCode.JOB_DIR, "cannot be written")


def test_the_job_directory_is_closed_to_others(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "jobs" / "7")
    before = os.umask(0)
    try:
        preflight.open_directory(directory)
        preflight.open_directory(directory)  # twice is fine
    finally:
        os.umask(before)
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.keys.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def live_controller(tmp_path: Path) -> Iterator[JobDirectory]:
    directory = JobDirectory(tmp_path / "7")
    preflight.open_directory(directory)
    server = ControllerSocket(load_server(directory.keys))
    take_epoch(
        directory.epochs,
        host=socket.gethostname(),
        addresses=("127.0.0.1",),
        port=server.port,
        pid=42,
        run_id="r",
    )
    ended = threading.Event()

    def answer() -> None:
        while not ended.is_set():
            server.socket.poll(20)
            received = server.recv()
            if received is not None and isinstance(received[1], Ping):
                server.send(received[0], Pong(epoch=1, host="n1", pid=42))

    thread = threading.Thread(target=answer)
    thread.start()
    yield directory
    ended.set()
    thread.join()
    server.close()


def test_a_second_controller_is_refused(live_controller: JobDirectory) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.check_alone(live_controller)
    check(error, ExitCode.OTHER_CONTROLLER, "pid 42")


@pytest.mark.slow
def test_a_dead_controller_is_no_hindrance(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "7")
    preflight.open_directory(directory)
    preflight.check_alone(directory)
    take_epoch(directory.epochs, host="127.0.0.1", addresses=("127.0.0.1",), port=9, pid=42, run_id="r")
    preflight.check_alone(directory)


def started(*command: str) -> ev.RunStarted:
    return run_started(t=0.0, job_id=7, command=command)


def test_a_directory_of_another_command_is_not_mixed_up() -> None:
    with pytest.raises(PreflightError) as error:
        preflight.check_history(JobState(), [started("a.py")], ("b.py",))
    check(error, ExitCode.USAGE, "another command: a.py")


def test_a_run_that_is_over_says_so_and_is_not_started_again() -> None:
    over = JobState(ended=ev.RunEnded(t=1.0, code=93, reason="x"))
    assert preflight.check_history(over, [started("a.py")], ("a.py",)) == 93
    assert preflight.check_history(JobState(), [started("a.py")], ("a.py",)) is None
    assert preflight.check_history(JobState(), [], ("a.py",)) is None


def test_evicted_nodes_are_taken_last() -> None:
    assert assign(("n1", "n2", "n3"), 2, {"n1": "dead"}) == (("n2", "n3"), ())
    assert assign(("n1", "n2"), 2, {"n1": "dead"}) == (("n2", "n1"), ())
    assert assign(("n1", "n2", "n3"), 2, {}) == (("n1", "n2"), ("n3",))


def test_nodes_that_come_back_get_their_old_slots() -> None:
    before = ("n3", "n2", "n1")
    assert assign(("n1", "n2", "n3"), 3, {}, before) == (before, ())
    assert assign(("n1", "n3", "n4"), 3, {"n2": "dead"}, before) == (("n3", "n4", "n1"), ())
    assert assign(("n0", "n1", "n2", "n3"), 3, {}, before) == (before, ("n0",))
    assert assign(("n1", "n2", "n3"), 3, {"n2": "dead"}, before) == (("n3", "n2", "n1"), ())
    assert assign(("n1", "n2"), 2, {}, before) == (("n1", "n2"), ())
    assert assign(("n1", "n2", "n3", "n4"), 4, {}, before) == (("n3", "n2", "n1", "n4"), ())


def test_the_plan_survives_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = JobDirectory(tmp_path)
    plan = preflight.make_plan(
        JobConfig(spares=1, preload=("numpy",)), CommandKind.MODULE, ("m", "-x"), {}, ALLOCATION, "7-ab"
    )
    preflight.save_plan(directory, plan)
    assert preflight.load_plan(directory) == plan
