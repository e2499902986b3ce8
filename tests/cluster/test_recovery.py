"""Jobs on a real Slurm lose ranks, nodes, networks and controllers, and go on by themselves."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from slurm_robust.model import events as ev
from slurm_robust.model.copies import Tier
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.incident import FaultKind, Requeue, Symptom
from slurm_robust.model.live_status import read as read_live_status
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob, find_process
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TINY = "tiny.py --out OUT --steps"


@pytest.fixture(scope="module")
def reference() -> str:
    """Hash of the weights after 60 steps of two ranks without a fault."""
    return undisturbed(2, f"{TINY} 60 --step-s 0")


@pytest.mark.releases
def test_a_killed_rank_and_a_dead_node_leave_no_trace_in_the_weights(
    sandbox: Sandbox, reference: str
) -> None:
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.2", nodes=3)
    job.wait_step(5)
    sandbox.fault.kill_rank(job.id, 1)
    job.wait_recovered(1)
    dead = job.state.world.slots[1]
    sandbox.fault.power_cut(dead)
    job.wait_recovered(2)
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    first, second = job.events(ev.IncidentOpened)
    assert (first.symptom, second.symptom) == (Symptom.WORKER_EXIT, Symptom.NODE_LOST)
    assert dead not in job.state.world.slots
    assert second.detect_s < 4.0  # beacons come through: without them it is five seconds


def test_ranks_beyond_a_cut_network_write_nothing_that_counts(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.3", nodes=3)
    job.wait_step(5)
    cut = job.state.world.slots[1]
    sandbox.fault.cut_network(cut)
    job.wait_recovered(1)
    sandbox.fault.heal_network(cut)
    job.wait(lambda: job.events(ev.NodeReturned) or job.state.ended, 60, "return of the node")
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    pids = sandbox.host_pids(cut)
    assert not [p for p in pids if (Path(f"/proc/{p}/comm").read_text().startswith("srobust-rank"))]


def peer_step(job: ProtectedJob) -> int:
    """The newest step that all ranks' peers hold, by the controller's moment; -1 for none."""
    path = job.folder / "moment.json"
    tiers = read_live_status(path).tiers if path.exists() else ()
    return max((found.step for found in tiers if found.tier is Tier.PEER), default=-1)


@pytest.mark.releases
def test_without_a_spare_the_job_is_requeued_without_the_dead_node(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2, sbatch=("--nodelist=n1,n2",))
    job.wait_step(5)
    job.wait(lambda: peer_step(job) >= 4, 30, "a copy of step 4 on the peer")
    sandbox.fault.power_cut("n2")
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    (requeue,) = [a for d in job.events(ev.Decided) for a in d.actions if isinstance(a, Requeue)]
    assert requeue.exclude == ("n2",)
    assert "n2" not in job.state.world.slots  # though the user had pinned it
    assert job.log.count("controller 1 of job") == 1  # appended, not truncated
    assert "controller 2 of job" in job.log
    launched = job.events(ev.GenerationLaunched)[-1]
    assert launched.restore_step >= 4, job.log


def test_a_killed_controller_is_replaced_and_training_never_stops(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2)
    job.wait_step(5)
    (controller,) = job.events(ev.ControllerStarted)
    sandbox.exec(["kill", "-9", str(controller.pid)], node=controller.host, user="root", check=True)
    job.wait(lambda: job.state.epoch == 2, 60, "second controller")
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    assert job.state.world.generation == 1
    assert job.events(ev.IncidentOpened) == []


def kill_controller(job: ProtectedJob, sign: bytes) -> None:
    """Kill the newest controller as soon as ``sign`` is in the journal."""
    journal, host = job.folder / "journal.jsonl", job.events(ev.ControllerStarted)[-1].host
    job.wait(lambda: sign in journal.read_bytes(), 30, sign.decode())
    os.kill(find_process(job.sandbox, host, "-m", "slurm_robust.controller"), signal.SIGKILL)


def test_a_training_that_has_ended_does_not_run_again(sandbox: Sandbox) -> None:
    """Its controller is killed once the end is decided, and the next one while it does what is left."""
    ran = sandbox.home(USER) / "ran"
    ran.unlink(missing_ok=True)
    job = ProtectedJob(sandbox, f"-- bash -c 'echo I ran >> {ran.name}; sleep 3'", nodes=2)
    job.wait(lambda: ran.exists() and job.state.world.running, 60, "first output")
    kill_controller(job, b'"event":"end_started"')
    kill_controller(job, b'"event":"controller_started","epoch":2')
    assert job.wait_end() == 0
    assert job.wait_left() == "0:0"
    assert ran.read_text() == "I ran\n" * 2  # one rank on each node
    assert job.state.world.generation == 1
    assert [event.code for event in job.events(ev.RunEnded)] == [0]
    assert job.events(ev.IncidentOpened) == []
    assert job.log.count("was killed by SIGKILL") == 2
    assert "training goes on" not in job.log


def test_a_rank_that_aborts_at_its_end_costs_nothing(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.02 --aborts 0", nodes=2)
    assert job.wait_end() == 0
    assert job.wait_left() == "0:0"
    assert job.out.read_text() == reference
    assert (job.state.world.generation, job.events(ev.IncidentOpened)) == (1, [])
    assert "SIGABRT ended rank 0" in job.log


@pytest.mark.releases
def test_before_the_time_limit_the_job_checkpoints_and_goes_on(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2 --every 1000", nodes=2)
    job.wait_step(5)
    sandbox.exec(["scancel", "--batch", "--signal=USR1", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    (asked,) = job.events(ev.CheckpointRequested)
    assert job.events(ev.GenerationLaunched)[-1].restore_step == asked.step
    assert job.events(ev.IncidentOpened) == []
    assert job.state.world.attempts == ()


def test_a_bug_in_the_script_gives_up_with_its_traceback(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --fail-at 3", nodes=2)
    assert job.wait_end() == ExitCode.DO_NOT_REQUEUE
    # What was only in memory is on storage: an error of the code says nothing against the state.
    assert [e.step for e in job.events(ev.StorageWritten)] == [2]
    assert (job.folder / "checkpoints" / "latest").read_text() == "gen-0001/step-00000002\n"
    assert job.exit_code() == f"{int(ExitCode.DO_NOT_REQUEUE)}:0"
    assert "ValueError: a bug at step 3" in job.log
    assert "ValueError at" in (job.state.ended.reason if job.state.ended else "")
    assert job.state.world.generation == 2  # restarted once


def test_a_killed_agent_is_started_again_and_its_node_is_not_blamed(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"--spares 1 {TINY} 60 --step-s 0.2", nodes=3)
    job.wait_step(5)
    node = job.state.world.slots[1]
    pattern = "slurm_robust.agent --job-dir"
    sandbox.exec(["pkill", "-9", "-f", pattern], node=node, user="root", check=True)
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    assert f"the agent on {node} ended (srun: error: {node}: task 1: Killed" in job.log
    assert (job.state.evicted, job.state.world.slots[1]) == ({}, node)


@pytest.mark.soak
def test_the_loss_of_the_batch_host_does_not_leave_a_job_that_nobody_watches(
    sandbox: Sandbox, reference: str
) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.3", nodes=2)
    job.wait_step(5)
    host = job.state.world.slots[0]
    sandbox.fault.power_cut(host)
    # The other node takes over when Slurm does not reach the host either, and requeues without a standby.
    job.wait(lambda: job.state.restart_count == 1, 240, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    assert host not in job.state.world.slots


def test_slurms_own_daemons_may_stop_and_come_back(sandbox: Sandbox, reference: str) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2)
    job.wait_step(3)
    sandbox.fault.restart_slurmctld()
    sandbox.fault.kill_slurmd(job.state.world.slots[1])
    job.wait_step(20)
    sandbox.fault.start_slurmd(job.state.world.slots[1])
    assert job.wait_end() == 0
    assert job.out.read_text() == reference
    assert job.events(ev.IncidentOpened) == []


def test_a_script_that_knows_nothing_of_us_is_restarted_too(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, "plain.py --steps 100 --step-s 0.1", nodes=2)
    job.wait(lambda: job.events(ev.FirstStep), 120, "first optimizer step")
    sandbox.fault.kill_rank(job.id, 0)
    job.wait_recovered(1)
    assert job.wait_end() == 0
    assert not job.events(ev.FirstStep)[0].reported


def test_any_command_runs_without_a_zygote(sandbox: Sandbox) -> None:
    job = ProtectedJob(
        sandbox, "--nproc-per-node 2 -- bash -c 'echo rank $RANK of $WORLD_SIZE on $(hostname)'", nodes=2
    )
    assert job.wait_end() == 0
    lines = sorted(p.read_text() for p in job.folder.glob("logs/gen-001/rank-*.out"))
    assert [line.rpartition(" on ")[0] for line in lines] == [f"rank {r} of 4" for r in range(4)]


RIVAL = """
import socket, sys
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
print("listens", flush=True)
sys.stdin.read()
"""


def test_a_command_whose_port_another_user_takes_gets_another_one(sandbox: Sandbox) -> None:
    for name in ("port", "rival"):
        (sandbox.home(USER) / name).unlink(missing_ok=True)
    job = ProtectedJob(sandbox, "-- python3 binds.py", nodes=1)
    told = sandbox.home(USER) / "port"
    job.wait(lambda: told.exists() and told.read_text().endswith("\n"), 60, "a program that is about to bind")
    port, node = told.read_text().split()
    words = ["python3", "-c", RIVAL, port]
    rival = sandbox.popen(words, node=node, user="bob", stdin=subprocess.PIPE)
    try:
        assert rival.stdout is not None
        assert rival.stdout.readline() == "listens\n"
        (sandbox.home(USER) / "rival").touch()
        assert job.wait_end() == 0
    finally:
        rival.kill()
        rival.communicate()
    assert [e.generation for e in job.events(ev.GenerationLaunched)] == [1, 2]
    assert [a.signature.kind for a in job.state.world.attempts] == [FaultKind.PORT_TAKEN]
    assert f"a process of bob (uid 10002) listens on port {port}" in job.log


def test_the_exit_code_of_a_training_that_ends_for_good_is_the_jobs(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, "-- bash -c 'exit 2'", nodes=1)
    assert job.wait_end() == 2
    assert job.exit_code() == "2:0"


def test_status_and_drill_on_the_own_job(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 300 --step-s 0.2", nodes=2)
    job.wait_step(3)
    head = sandbox.exec(
        ["srobust", "drill", str(job.id), "kill-rank", "--rank", "1"], user=USER, timeout_s=30
    )
    assert head.returncode == 0, head.stdout + head.stderr  # it has waited, and the promise was kept
    assert [e.drill for e in job.events(ev.Decided)] == [1]
    words = ["srobust", "drill", str(job.id), "raise-error", "--rank", "1", "--json"]
    raised = json.loads(sandbox.exec(words, user=USER, timeout_s=60, check=True).stdout)
    assert (raised["is_kept"], raised["progress"]["blamed"]) == (True, [])
    refused = sandbox.exec(["srobust", "drill", str(job.id), "stop-rank"], user=USER, check=False)
    assert (refused.returncode, "give --yes" in refused.stderr) == (64, True)
    status = sandbox.exec(["srobust", "status", str(job.id), "--json"], user=USER, timeout_s=30, check=True)
    facts = json.loads(status.stdout)
    assert (facts["phase"], facts["generation"], len(facts["incidents"])) == ("training", 3, 2)
    words = ["srobust", "status", str(job.id), "--phases", "--json"]
    shown = json.loads(sandbox.exec(words, user=USER, timeout_s=30, check=True).stdout)
    phases = {times["phase"]: set(times["nodes"]) for times in shown["phases"]}
    assert phases.pop("stop") == {job.state.world.slots[0]}  # the other rank was dead
    own = ("launch", "worker", "imports", "process group", "model", "restore", "first step")
    slots = set(job.state.world.slots)
    assert phases == dict.fromkeys(own, slots)  # and no agent or zygote was waited for
    assert {"detecting", "stopping", "running"} <= shown["stages"].keys()
    words = ["srobust", "status", str(job.id), "--phases", "--generation", "1"]
    first = sandbox.exec(words, user=USER, timeout_s=30, check=True).stdout
    assert "zygote" in first
    assert "from submission or requeue" in first
    table = sandbox.exec(["srobust", "status", str(job.id)], user=USER, timeout_s=30, check=True).stdout
    assert "SIGKILL" in table
    assert "drill 1 by alice" in table
    stranger = sandbox.exec(["srobust", "drill", str(job.folder), "kill-rank"], user="bob", check=False)
    assert stranger.returncode != 0
    assert job.wait_end() == 0


def test_scancel_ends_everything_at_once(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 1000 --step-s 0.1", nodes=2)
    job.wait_step(3)
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.slurm_state() not in ("RUNNING", "COMPLETING"), 60, "end of the job")
    ended = job.state.ended
    assert ended is not None
    assert (ended.code, ended.reason) == (143, "ordered to end by SIGTERM")

    def left() -> list[str]:
        found = sandbox.exec(["ls", "/dev/shm"], node="n1", user="root").stdout.split()
        return [name for name in found if name.startswith("srobust-")]

    wait_for(lambda: not left(), 20, "runtime folder removed")


# -- bad input, as a user meets it ------------------------------------------------------------------------


def test_a_job_directory_that_nodes_do_not_share(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"--job-dir /tmp/jobs {TINY} 5", nodes=2)
    assert job.wait_left() == f"{int(ExitCode.JOB_DIR)}:0"
    assert "every node of the job mounts" in job.log


def test_more_nodes_than_the_allocation_has(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"--nodes 4 {TINY} 5", nodes=2)
    assert job.wait_left() == f"{int(ExitCode.ALLOCATION)}:0"
    assert "the allocation has 2" in job.log


def test_a_second_controller_on_the_same_job_is_refused(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=1)
    job.wait_step(2)
    again = ["srun", f"--jobid={job.id}", "--overlap", "-N1", "-n1"]
    command = ["srobust", "run", "tiny.py", "--out", job.out.name, "--steps", "60", "--step-s", "0.2"]
    second = sandbox.exec([*again, *command], user=USER, check=False)
    assert second.returncode == ExitCode.OTHER_CONTROLLER, second.stderr
    assert "another controller holds this job" in second.stderr + second.stdout
    assert job.wait_end() == 0
    assert job.state.epoch == 1


def test_a_port_that_is_taken(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"--config port.yaml {TINY} 5", nodes=1, sbatch=("--hold",))
    (job.home / "port.yaml").write_text("wire: {port: 6818}\n")
    listener = "import socket,time; s=socket.create_server(('', 6818)); time.sleep(60)"
    taker = sandbox.popen(["python3", "-c", listener], node="n1", user="root")
    try:
        sandbox.exec(["scontrol", "update", f"jobid={job.id}", "reqnodelist=n1"], user=USER, check=True)
        sandbox.exec(["scontrol", "release", str(job.id)], user=USER, check=True)
        code = job.wait_left()
    finally:
        taker.send_signal(signal.SIGKILL)
    assert "6818" in job.log
    assert code not in ("0:0", f"{int(ExitCode.INTERNAL)}:0")


def test_a_damaged_journal_stops_the_next_run_and_keeps_every_byte(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, "-- sleep 1", nodes=1)
    assert job.wait_end() == 0
    journal = job.folder / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    damaged = b"".join([lines[0], b"\x00garbage\n", *lines[2:]])
    journal.write_bytes(damaged)
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait(lambda: f"{journal.name}, line 2" in job.log or "line 2" in job.log, 180, "message")
    assert job.wait_left() == f"{int(ExitCode.JOURNAL)}:0"
    assert hashlib.sha256(journal.read_bytes()).digest() == hashlib.sha256(damaged).digest()


def test_nodes_that_an_administrator_drains_are_left_at_the_next_restart(
    sandbox: Sandbox, reference: str
) -> None:
    job = ProtectedJob(sandbox, f"--spares 2 {TINY} 60 --step-s 0.8", nodes=4)
    job.wait_step(2)
    training, standby = job.state.world.slots[1], job.state.spares[0]
    names = f"nodename={training},{standby}"
    sandbox.exec(["scontrol", "update", names, "state=drain", "reason=bad fan"], user="root", check=True)
    try:
        job.wait(lambda: len(job.state.drained) == 2, 60, "the drains to be seen")
        assert job.state.world.generation == 1  # nothing is done at once
        sandbox.fault.kill_rank(job.id, 0)
        job.wait_recovered(1)
        assert job.state.world.slots[1] not in (training, standby)
        assert job.state.evicted == {}
        assert job.wait_end() == 0
        assert job.out.read_text() == reference
    finally:
        sandbox.exec(["scontrol", "update", names, "state=resume"], user="root", check=False)
