"""What can be wrong before the first worker starts: one clear error each, with a fix and a code."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs

from slurm_robust.analysis.logs.site_rules import check_log_rules, load_log_rules
from slurm_robust.cli.main import main
from slurm_robust.config import plan as plan_file
from slurm_robust.config.job import (
    AgentsConfig,
    CheckpointConfig,
    DetectConfig,
    JobConfig,
    ParallelConfig,
)
from slurm_robust.config.plan import RunPlan
from slurm_robust.controller.journal import Journal
from slurm_robust.evidence.incidents import incident_reports
from slurm_robust.model import events as ev
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.job import CommandKind, JobDirectory
from slurm_robust.model.journal import another_job, read
from slurm_robust.model.state import JobState
from slurm_robust.policy.replacement import assign
from slurm_robust.policy.resharding import Sizes
from slurm_robust.run import preflight
from slurm_robust.run.command import slurm_times
from slurm_robust.slurm.records import Allocation, Switch
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.testing.sim.job import Sim
from slurm_robust.wire.epochs import take_epoch
from slurm_robust.wire.keys import load_server
from slurm_robust.wire.messages import Ping, Pong, Refused
from slurm_robust.wire.sockets import ControllerSocket
from slurm_robust.worker.lookup import missing
from tests.builders.events import allocation_taken, run_started
from tests.builders.plans import plan
from tests.unit.engine.stories import evicted, trained
from tests.users import as_root, run_as

ALLOCATION = Allocation(
    job_id=7,
    nodes=("n1", "n2", "n3"),
    gpus_per_node={"n1": 8, "n2": 8, "n3": 8},
    batch_host="n1",
    restart_count=0,
)


def check(error: pytest.ExceptionInfo[PreflightError], code: ExitCode, text: str) -> None:
    assert error.value.exit_code == code
    assert text in str(error.value)
    assert error.value.fix


IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1,n2"}


@pytest.mark.parametrize(
    ("environ", "code", "said", "fix"),
    [
        ({"PATH": "/bin"}, ExitCode.ALLOCATION, "not inside a Slurm job", ""),
        (
            {**IN_JOB, "SLURM_HET_SIZE": "2", "SLURM_NNODES": "1"},
            ExitCode.ALLOCATION,
            "heterogeneous (2 components)",
            "",
        ),
        (
            {**IN_JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2"},
            ExitCode.USAGE,
            "srun has started 'srobust run' 2 times",
            "exec srobust run",
        ),
    ],
    ids=["outside of Slurm", "a heterogeneous job", "srun srobust run"],
)
def test_where_srobust_run_cannot_begin_it_says_why(
    environ: dict[str, str], code: ExitCode, said: str, fix: str
) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.find_allocation(environ)
    check(error, code, said)
    assert fix in error.value.fix


@pytest.mark.parametrize(
    "environ",
    [
        {},  # of a batch script
        {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "2"},  # salloc's own shell
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_one_srobust_run_in_a_step_is_not_refused(environ: dict[str, str]) -> None:
    assert preflight.find_allocation({**IN_JOB, **environ}).nodes == ("n1", "n2")


def contained(tmp_path: Path, mounts: str = "") -> RunPlan:
    """A job whose image has ``mounts`` besides its own, and whose checkpoints lie in another folder."""
    options = ("--container-image=/train.sqsh", *((f"--container-mounts={mounts}",) if mounts else ()))
    checkpoint = CheckpointConfig(directory=str(tmp_path / "checkpoints"), local_directory="disk")
    config = JobConfig(agents=AgentsConfig(srun_options=options), checkpoint=checkpoint)
    return plan(cwd=str(tmp_path / "run"), config=config)


def test_the_container_of_a_job_has_all_its_folders(tmp_path: Path) -> None:
    directory = JobDirectory(tmp_path / "jobs" / "7")
    made = contained(tmp_path)
    preflight.check_container(made, directory)
    folders = ("/dev/shm", *(str(tmp_path / name) for name in ("checkpoints", "jobs", "run")))
    mounts = ",".join(f"{folder}:{folder}" for folder in folders)
    assert f"--container-mounts={mounts}" in made.container(directory).srun_options
    assert (tmp_path / "checkpoints").is_dir()  # else there is nothing to mount


def test_a_container_with_something_else_in_the_place_of_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.check_container(
            contained(tmp_path, f"/x:{tmp_path}"), JobDirectory(tmp_path / "jobs" / "7")
        )
    check(error, ExitCode.CONFIG, f"agents.srun_options mounts /x on {tmp_path}")


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ((), "scontrol and srun cannot be found here"),
        (("srun",), "scontrol cannot be found here"),
        (("scontrol",), "srun cannot be found here"),
    ],
)
def test_without_slurms_commands_nothing_begins(tmp_path: Path, there: tuple[str, ...], text: str) -> None:
    for name in there:
        (tmp_path / name).touch(0o755)
    with pytest.raises(PreflightError) as error:
        preflight.check_slurm_commands({"PATH": str(tmp_path)})
    check(error, ExitCode.REFUSED, text)
    assert "outside of it and its agents inside" in error.value.fix


def test_with_slurms_commands_it_begins(tmp_path: Path) -> None:
    for name in ("scontrol", "srun"):
        (tmp_path / name).touch(0o755)
    preflight.check_slurm_commands({"PATH": f"/nowhere:{tmp_path}"})


@pytest.mark.parametrize(
    ("option", "gpus", "tasks", "expected"),
    [(None, 0, 0, 1), (None, 0, 3, 3), (2, 0, 3, 2), (None, 8, 1, 8), (None, 8, 4, 8)],
)
def test_tasks_per_node_are_ranks_per_node_where_nothing_else_says_it(
    option: int | None, gpus: int, tasks: int, expected: int
) -> None:
    allocation = structs.replace(
        ALLOCATION, gpus_per_node=dict.fromkeys(ALLOCATION.nodes, gpus), tasks_per_node=tasks
    )
    _, nproc = preflight.sizes(JobConfig(nproc_per_node=option), allocation)
    assert nproc == expected


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
    for command, text in ((("train",), "in no folder of PATH"), (("./train",), "not found")):
        with pytest.raises(PreflightError) as error:
            preflight.check_command(CommandKind.EXEC, command, tmp_path)
        check(error, ExitCode.NO_INPUT, text)
    program.touch()
    with pytest.raises(PreflightError) as error:
        preflight.check_command(CommandKind.EXEC, ("./train",), tmp_path)
    check(error, ExitCode.NO_INPUT, "program not executable")
    program.chmod(0o755)
    preflight.check_command(CommandKind.EXEC, ("./train",), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    preflight.check_command(CommandKind.EXEC, ("train",), tmp_path)


@as_root
@pytest.mark.parametrize("kind", [CommandKind.SCRIPT, CommandKind.EXEC])
def test_checkpoints_that_storage_does_not_list_are_not_missing(kind: CommandKind, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    assert run_as(65534, lambda: preflight.check_command(kind, ("./train",), closed)) == "None"
    assert run_as(65534, lambda: missing(kind, ("./train",), str(closed))) == "None"


@pytest.mark.parametrize(("nodes", "spares"), [(4, 0), (4, 1), (None, 3)])
def test_more_nodes_than_the_allocation_has(nodes: int | None, spares: int) -> None:
    with pytest.raises(PreflightError) as error:
        preflight.sizes(JobConfig(nodes=nodes, spares=spares), ALLOCATION)
    check(error, ExitCode.ALLOCATION, "the allocation has 3")
    assert f"submit with 'sbatch --nodes={(nodes or 1) + spares}'" in error.value.fix


def test_sizes_default_to_the_allocation_less_the_spares_and_all_gpus() -> None:
    assert preflight.sizes(JobConfig(spares=1), ALLOCATION) == (Sizes(slots=2, spares=1), 8)
    assert preflight.sizes(JobConfig(nodes=1, nproc_per_node=2), ALLOCATION) == (Sizes(slots=1, spares=0), 2)


def test_a_run_with_too_few_nodes_for_its_spares_keeps_its_slots() -> None:
    found, _ = preflight.sizes(JobConfig(spares=1), ALLOCATION, before=3, later_run=True)
    assert (found.slots, found.spares) == (3, 0)
    found, _ = preflight.sizes(JobConfig(nodes=3, spares=1), ALLOCATION)
    assert (found.slots, found.spares) == (3, 0)


def test_a_world_that_the_parallel_sizes_do_not_divide() -> None:
    config = JobConfig(parallel=ParallelConfig(tp=4, pp=5))
    with pytest.raises(PreflightError) as error:
        preflight.sizes(config, ALLOCATION)
    check(error, ExitCode.CONFIG, "tp 4 * pp 5 = 20 does not divide the world of 24 ranks")
    assert "parallel.tp, parallel.pp" in error.value.fix
    assert "(5, 10, 15 fit): submit with 'sbatch --nodes=5'" in error.value.fix
    with pytest.raises(PreflightError) as error:
        preflight.sizes(JobConfig(parallel=config.parallel, spares=1), ALLOCATION)
    assert "submit with 'sbatch --nodes=6'" in error.value.fix, "a spare does not train"
    with pytest.raises(PreflightError) as error:
        preflight.sizes(JobConfig(parallel=config.parallel, nodes=3), ALLOCATION)
    assert "submit a new job with another --nodes of 'srobust run'" in error.value.fix
    config = JobConfig(parallel=ParallelConfig(tp=4, pp=3))
    assert preflight.sizes(config, ALLOCATION) == (Sizes(slots=3, spares=0), 8)


@pytest.mark.parametrize(
    ("config", "nodes"),
    [(JobConfig(nodes=4, spares=1), 5), (JobConfig(parallel=ParallelConfig(tp=16), spares=1), 4)],
)
def test_a_requeued_job_gets_other_nodes_by_slurm_since_its_script_stays(
    config: JobConfig, nodes: int
) -> None:
    job = ALLOCATION.job_id
    with pytest.raises(PreflightError) as error:
        preflight.sizes(config, ALLOCATION, before=4, later_run=True)
    assert f"'scontrol requeue {job}', and while it is pending" in error.value.fix
    assert f"'scontrol update JobId={job} NumNodes={nodes}-{nodes} StartTime=now'" in error.value.fix
    assert f"or submit a new job (of this training, or with --from {job})" in error.value.fix


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


@pytest.fixture(params=[Pong(epoch=1, host="n1", pid=42), Refused(refused="ping", protocol=9)])
def live_controller(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[JobDirectory]:
    """A controller of this release, and one of another that does not know the question."""
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
                server.send(received[0], request.param)

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
    plan_file.save_plan(directory, plan)
    assert plan_file.load_plan(directory) == plan


def test_the_plan_says_whether_slurm_may_requeue_the_job() -> None:
    slurm = FakeSlurm()
    job = slurm.job(slurm.submit(SubmitRequest(command=("x",))))
    views = ((None, True), *((structs.replace(job, requeue=may), may) for may in (True, False)))
    for view, may in views:
        plan = preflight.make_plan(JobConfig(), CommandKind.SCRIPT, ("x.py",), {}, ALLOCATION, "7-ab", view)
        assert plan.requeues is may


# -- A job id that comes again is another job; a requeue of the same job is not --------------------

NOW = time.time()


def history(
    *submitted: float | None, cluster: str = "a", t: float = NOW - 3600, code: int | None = 0
) -> list[ev.AnyEvent]:
    """A journal with a run for each submit time."""
    started = run_started(t=t, job_id=2, command=("x.py",), cluster=cluster)
    runs = [allocation_taken(("n1",), t=t, restart_count=i, submitted=at) for i, at in enumerate(submitted)]
    return [started, *runs, *([] if code is None else [ev.RunEnded(t=t, code=code, reason="done")])]


@pytest.mark.parametrize(
    ("before", "restart_count", "submitted", "how"),
    [
        ((100.0,), 0, 100.0, ""),  # srobust runs twice in one batch script
        ((100.0,), 1, 900.0, ""),  # requeued
        ((100.0, 500.0), 3, 900.0, ""),  # and once more, before srobust ran
        ((100.0, 500.0), 0, 900.0, "submitted at"),
        ((100.0, 500.0), 0, 100.0, ""),  # slurmctld came back with an older state
        ((100.0,), 0, 900.0, "submitted at"),
        ((100.0,), 0, None, ""),  # Slurm does not say
        ((None,), 0, 900.0, ""),  # a journal of an older version
    ],
)
def test_another_job_of_the_same_id_is_told_apart(
    before: tuple[float | None, ...], restart_count: int, submitted: float | None, how: str
) -> None:
    found = another_job(history(*before), "a", restart_count, submitted)
    assert found.startswith(how)
    assert bool(found) is bool(how)


def test_another_cluster_is_another_job() -> None:
    assert another_job(history(100.0), "b", 0, 100.0) == "of cluster a"
    assert another_job(history(100.0, cluster=""), "b", 0, 100.0) == ""
    assert another_job([], "b", 0, 100.0) == ""


def folder(path: Path, events: list[ev.AnyEvent]) -> JobDirectory:
    directory = JobDirectory(path / "2")
    directory.path.mkdir()
    journal = Journal(directory.journal)
    for event in events:
        journal.append(event)
    journal.close()
    return directory


def test_the_folder_of_another_job_is_moved_aside_and_nothing_is_lost(tmp_path: Path) -> None:
    for again in ("", "-2"):
        directory = folder(tmp_path, history(100.0))
        said = preflight.move_aside(directory, read(directory.journal), "submitted at x")
        stamp = time.strftime("%Y-%m-%dT%H:%M", time.localtime(NOW - 3600))
        moved = tmp_path / f"2.old-{stamp}{again}"
        assert str(moved) in said
        assert len(read(moved / "journal.jsonl")) == 3
        assert not directory.path.exists()


def test_a_job_of_another_cluster_that_may_still_run_is_left_alone(tmp_path: Path) -> None:
    directory = folder(tmp_path, history(100.0, t=time.time() - 20, code=None))
    with pytest.raises(PreflightError) as error:
        preflight.move_aside(directory, read(directory.journal), "of cluster a")
    assert error.value.exit_code == ExitCode.OTHER_CONTROLLER
    assert "--job-dir" in error.value.fix
    assert directory.journal.exists()


def test_when_the_job_was_submitted_and_started_is_slurms_word() -> None:
    slurm = FakeSlurm()
    number = slurm.submit(SubmitRequest(command=("x",)))
    job = preflight.find_job(slurm, number)
    assert job is not None
    assert job == slurm.job(number)
    assert structs.replace(job, submit_time=100.0, start_time=103.0).queued_s == 3.0
    assert structs.replace(job, submit_time=None).queued_s is None
    slurm.cluster.unreachable = True
    assert preflight.find_job(slurm, number) is None


# -- A site's own rules for logs: refused before the job starts, obeyed while it runs, never in the way --

RULES = """
- name: board-burnt
  symptom: driver_error
  blame: infrastructure
  action: evict
  any: ['fabric-agent: board \\d{1,3} burnt']
- name: neighbour-lost
  symptom: secondary
  blame: secondary
  action: none
  tier: effect
  any: ['fabric-agent: neighbour lost']
"""
BURNT = "fabric-agent: board 3 burnt"
LOST = "fabric-agent: neighbour lost"


def config(*names: str) -> JobConfig:
    return JobConfig(detect=DetectConfig(log_rules=names))


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return path


def crashed(*rules: str) -> Sim:
    """Two ranks have failed; the first to be seen only lost the other one."""
    sim = trained(2, 1, config=config(*rules))
    for rank, line in enumerate((LOST, BURNT)):
        sim.exit_rank(rank, tail=(line,))
    sim.run_until(lambda: sim.state.world.generation == 2, within_s=60.0)
    return sim


def test_the_controller_obeys_a_sites_log_rules(rules: Path) -> None:
    assert not evicted(crashed())
    sim = crashed(str(rules))
    assert evicted(sim) == {"n2"}
    (report,) = incident_reports(sim.journal)
    assert report.root is not None  # whoever reads the journal may not have the rules
    assert report.root.exit.rank == 1


def test_a_broken_file_of_log_rules_is_refused_with_its_line(rules: Path) -> None:
    check_log_rules(config(rules.name), rules.parent)
    rules.write_text(RULES.replace("action: evict", "action: explode"))
    with pytest.raises(PreflightError) as error:
        check_log_rules(config(rules.name), rules.parent)
    assert error.value.exit_code == ExitCode.CONFIG
    assert str(error.value).startswith(f"detect.log_rules: {rules}, line 5: rules[0].action must be one of")
    assert error.value.fix


def test_srobust_run_refuses_broken_log_rules_before_anything_is_made(
    rules: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(rules.parent)
    for name, value in (("JOB_ID", "7"), ("JOB_NODELIST", "n1"), ("SUBMIT_DIR", str(rules.parent))):
        monkeypatch.setenv(f"SLURM_{name}", value)
    command = ["run", "--set", "detect.log_rules=gone.yaml", "--", "true"]
    assert main(command) == ExitCode.CONFIG
    said = capsys.readouterr().err
    assert "detect.log_rules: " in said
    assert "gone.yaml: the rules cannot be read: No such file or directory" in said
    assert not (rules.parent / "srobust-jobs").exists()


def test_log_rules_that_were_lost_meanwhile_cost_only_themselves(rules: Path) -> None:
    rules.unlink()
    known, trouble = load_log_rules(config(str(rules)), Path("/"))
    assert {rule.name for rule in known.rules}
    assert not any(rule.site for rule in known.rules)
    assert trouble.startswith("logs are read by the built-in rules only; detect.log_rules: ")
    assert "cannot be read" in trouble


# -- Times of slurm.conf against those of the job --------------------------------------------------


def test_the_jobs_own_slurm_is_asked() -> None:
    gpus = Allocation(job_id=1, nodes=("n1", "n2"), gpus_per_node={"n1": 8, "n2": 8})
    none = Allocation(job_id=1, nodes=("n1", "n2"), gpus_per_node={"n1": 0, "n2": 0})
    assert len(slurm_times(FakeSlurm(), JobConfig(), gpus)) == 1
    assert slurm_times(FakeSlurm(), JobConfig(), none) == ()


RACKS = (
    Switch(name="rack1", level=0, nodes=("n1", "n2", "n8"), is_block=True),
    Switch(name="rack2", level=0, nodes=("n3",), is_block=True),
    Switch(name="rack[1-2]", level=1, nodes=("n1", "n2", "n3", "n8"), is_block=True),
)


def test_blocks_and_segments_of_the_allocation_are_found_where_slurm_has_blocks() -> None:
    cluster = FakeCluster(["n1", "n2", "n3"])
    slurm = FakeSlurm(cluster)
    job_id = slurm.submit(SubmitRequest(command=("true",), nodes=3, options=("--segment=3",)))
    shown, allocation = slurm.job(job_id), slurm.allocation(job_id)
    job = structs.replace(shown, segment=0)
    assert preflight.placement(slurm, allocation, job, {}) == ({}, 0), "no topology/block"
    cluster.switches = RACKS
    blocks = {"n1": "rack1", "n2": "rack1", "n3": "rack2"}
    assert preflight.placement(slurm, allocation, shown, {}) == (blocks, 3)
    assert preflight.placement(slurm, allocation, job, {}) == (blocks, 3), (
        "before 25.05 sbatch's options say it"
    )
    assert preflight.placement(slurm, allocation, None, {}) == (blocks, 0)
    cluster.unreachable = True
    assert preflight.placement(slurm, allocation, job, {}) == ({}, 0)
