from __future__ import annotations

from slurm_robust.model.container import Container
from slurm_robust.slurm import commands
from slurm_robust.slurm.companion import Lent
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.requests import (
    MAX_STEPS,
    NODES_PER_STEP,
    ReservationRequest,
    StepRequest,
    SubmitRequest,
    whole_node_steps,
)


def test_srun_says_everything_itself() -> None:
    request = StepRequest(job_id=7, nodes=("n1", "n3"), command=("agent", "--x"), gpus_per_node=8)
    words = commands.srun(request)
    assert words[0] == "srun"
    assert words[-2:] == ["agent", "--x"]
    for option in (
        "--jobid=7",
        "--nodelist=n1,n3",
        "--nodes=2",
        "--ntasks=2",
        "--ntasks-per-node=1",
        "--overlap",
        "--no-kill",
        "--whole",
        "--mem=0",
        "--gres=gpu:8",
        "--cpu-bind=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--input=none",
        "--export=ALL",
    ):
        assert option in words


def test_a_step_does_not_inherit_what_the_user_submitted_with() -> None:
    environ = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_CPUS_PER_TASK": "2",
        "SLURM_TRES_PER_TASK": "cpu=2",
        "SLURM_GPUS_PER_TASK": "1",
        "SLURM_CPU_BIND": "cores",
        "SLURM_DISTRIBUTION": "cyclic",
        "SLURM_MEM_PER_CPU": "100",
        "SLURM_EXACT": "1",
        "SLURM_SOMETHING_NEW": "1",
        "SRUN_CPUS_PER_TASK": "2",
        "SBATCH_GRES": "gpu:1",
        "PMIX_RANK": "0",
        "SLURM_SPANK_SITE": "kept",
    }
    request = StepRequest(job_id=7, nodes=("n1",), command=("x",), environment={"A": "1"})
    assert commands.step_environment(environ, request) == {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SLURM_JOB_ID": "7",
        "SLURM_SPANK_SITE": "kept",
        "A": "1",
    }


def test_a_step_has_nodes_with_as_many_gpus() -> None:
    held = Allocation(job_id=7, nodes=("n1", "n2", "n3"), gpus_per_node={"n1": 8, "n2": 4, "n3": 8})
    steps = whole_node_steps(held, held.nodes, ("agent",))
    assert [(s.nodes, s.gpus_per_node) for s in steps] == [(("n1", "n3"), 8), (("n2",), 4)]
    no_gpus = Allocation(job_id=7, nodes=("n1", "n2"))
    (step,) = whole_node_steps(no_gpus, ("n2",), ("agent",))
    assert (step.nodes, step.gpus_per_node) == (("n2",), None)


def test_all_steps_of_a_job_run_in_its_container() -> None:
    container = Container(srun_options=("--container-image=a",), python=("python3",))
    lent = Lent(Allocation(job_id=7, nodes=("n1",)), {"n9": 8}, container)
    steps = lent.steps(("n1", "n9"), ("/venv/python", "-m", "x"), name="agents", environ={})
    assert [step.job_id for step in steps] == [7, 8]
    for step in steps:
        assert commands.srun(step)[-4:] == ["--container-image=a", "python3", "-m", "x"]


def test_a_step_is_so_small_that_slurm_makes_no_tree_of_it() -> None:
    nodes = tuple(f"n{number}" for number in range(1, 15))
    steps = whole_node_steps(Allocation(job_id=7, nodes=nodes), nodes, ("agent",))
    assert [len(step.nodes) for step in steps] == [6, 6, 2]
    assert tuple(node for step in steps for node in step.nodes) == nodes


def test_a_huge_job_has_one_step() -> None:
    for count, steps in ((NODES_PER_STEP * MAX_STEPS, MAX_STEPS), (NODES_PER_STEP * MAX_STEPS + 1, 1)):
        nodes = tuple(f"n{number}" for number in range(count))
        assert len(whole_node_steps(Allocation(job_id=7, nodes=nodes), nodes, ("agent",))) == steps


def test_a_request_to_submit_is_the_arguments_of_sbatch() -> None:
    request = SubmitRequest(
        command=("sleep", "1 0"),
        wrap=True,
        name="j",
        time_limit_s=61,
        excluded_nodes=("n2", "n1"),
        hold=True,
        requeue=False,
        comment="a\nb",
        options=("--mem=1G",),
    )
    assert commands.sbatch(request) == [
        "sbatch",
        "--parsable",
        "--no-requeue",
        "--job-name=j",
        "--time=2",
        "--comment=a b",
        "--exclude=n[1-2]",
        "--hold",
        "--mem=1G",
        "--wrap",
        "sleep '1 0'",
    ]


def test_a_request_for_a_reservation_is_the_arguments_of_scontrol() -> None:
    request = ReservationRequest(
        name="spare", nodes=("n1", "n2"), users=("alice", "bob"), flags=("IGNORE_JOBS",), partition="main"
    )
    assert commands.create_reservation(request) == [
        "scontrol",
        "create",
        "reservation",
        "reservationname=spare",
        "starttime=now",
        "duration=UNLIMITED",
        "nodes=n[1-2]",
        "users=alice,bob",
        "flags=IGNORE_JOBS",
        "partition=main",
    ]
    counted = commands.create_reservation(ReservationRequest(name="spare", node_count=3, duration_s=7200))
    assert counted[4:] == ["starttime=now", "duration=120", "nodecnt=3"]
    begun = ReservationRequest(name="turn", nodes=("n1",), start_time=1795417200.9, duration_s=60)
    assert commands.create_reservation(begun)[4:6] == ["starttime=uts1795417200", "duration=1"]


def test_jobs_and_steps_are_cancelled_or_get_a_signal() -> None:
    assert commands.cancel(7, None, None) == ["scancel", "7"]
    assert commands.cancel(7, "0", None) == ["scancel", "7.0"]
    assert commands.cancel(7, None, "USR1") == ["scancel", "--signal=USR1", "7"]
    assert commands.cancel(7, "batch", "USR1") == ["scancel", "--batch", "--signal=USR1", "7"]


def test_reasons_and_comments_are_one_line() -> None:
    assert commands.drain(["n2", "n1"], "x\ny")[2:] == ["nodename=n[1-2]", "state=drain", "reason=x y"]


def test_a_job_that_is_waited_for_says_where_and_how_long() -> None:
    request = SubmitRequest(
        command=("python", "-m", "x"),
        name="q",
        nodes=1,
        required_nodes=("n2",),
        reservation="srobust-quarantine-n2",
        time_limit_s=61.0,
        work_dir="/",
        exclusive=True,
        options=("--immediate=120",),
    )
    words = commands.srun_job(request)
    assert words[0] == "srun"
    assert words[-3:] == ["python", "-m", "x"]
    for option in (
        "--ntasks=1",
        "--nodes=1",
        "--nodelist=n2",
        "--reservation=srobust-quarantine-n2",
        "--time=2",
        "--chdir=/",
        "--exclusive",
        "--immediate=120",
        "--input=none",
    ):
        assert option in words[:-3]


def test_the_past_is_asked_for_in_whole_seconds() -> None:
    assert "start=now-91" in commands.node_events(90.5)
    assert commands.node_events(90.5)[:4] == ["sacctmgr", "--parsable2", "show", "event"]
    assert {"sacct", "--allusers", "--duplicates", "--allocations", "--starttime=now-60"} <= set(
        commands.runs(60)
    )
