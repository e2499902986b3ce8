"""What a sandbox offers: machines of their own, shared homes, ordinary users, and faults that hurt."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from slurm_robust.sandbox import Sandbox, SandboxError
from slurm_robust.sandbox.errors import ExecFailed, ExecTimedOut, FaultRefused, NotThere
from slurm_robust.sandbox.heal import heal
from slurm_robust.sandbox.procs import is_gone, read_process
from slurm_robust.sandbox.status import read_status
from slurm_robust.slurm.cli_client import CliSlurmClient
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

# A worker whose rank is in its environment, and one that, forked, only has its name; both for a minute.
BY_ENVIRONMENT = 'export RANK=$SLURM_PROCID; exec python -c "import signal; signal.alarm(60); signal.pause()"'
BY_NAME = (
    "python -c \"import ctypes, os, signal; ctypes.CDLL(None).prctl(15, b'srobust-rank%s' % "
    "os.environ['SLURM_PROCID'].encode(), 0, 0, 0); signal.alarm(60); signal.pause()\""
)


def job_state(sandbox: Sandbox, job: int) -> str:
    done = sandbox.exec(["squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T"], check=False)
    return done.stdout.strip()


def start_ranks(sandbox: Sandbox, worker: str, nodes: int = 2) -> int:
    """A job with one worker per node; returns when the ranks run."""
    (sandbox.home("alice") / "worker.sh").write_text(worker)
    script = sandbox.home("alice") / "ranks.sh"
    script.write_text(f"#!/bin/sh\n#SBATCH -N{nodes} --no-kill\nsrun --no-kill sh worker.sh\n")
    job = sandbox.submit(script)
    try:
        wait_for(lambda: all(rank_runs(sandbox, job, r) for r in range(nodes)), 60, f"ranks of job {job}")
    except AssertionError as error:
        seen = sandbox.exec(["sh", "-c", f"scontrol show job {job}; sinfo -N -o '%N %T %E'"]).stdout
        raise AssertionError(f"{error}\n{seen}\n{sandbox.read_log('slurmctld', lines=15)}") from None
    return job


def open_shell(sandbox: Sandbox, node: str) -> subprocess.Popen[str]:
    """A shell in a terminal, as ``srobust sandbox exec`` opens one; it ends with its input."""
    command = [
        "script",
        "--quiet",
        "--command",
        shlex.join([*sandbox.enter_command(node), "bash"]),
        "/dev/null",
    ]
    shell = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("echo is $((2 * 21))\n")
    shell.stdin.flush()
    while "is 42" not in shell.stdout.readline():
        pass
    return shell


def start_exclusive(sandbox: Sandbox, nodes: str) -> int:
    """A job that has these nodes to itself, and whose end takes longer than slurmd's answer to that order."""
    script = "trap 'sleep 2; exit' TERM; touch ready-$SLURM_JOB_ID; sleep 300 & wait"
    options = ["--exclusive", f"--nodelist={nodes}", f"--nodes={nodes.count(',') + 1}", "--output=/dev/null"]
    job = int(sandbox.exec(["sbatch", "--parsable", *options, f"--wrap={script}"]).stdout)
    wait_for((sandbox.home("alice") / f"ready-{job}").exists, 60, f"job {job} runs on {nodes}")
    return job


def rank_runs(sandbox: Sandbox, job: int, rank: int) -> bool:
    try:
        process = read_process(sandbox.fault.rank_pid(job, rank))
    except NotThere:
        return False
    # A shell that is about to become the worker carries the mark as well.
    return process is not None and process.comm != "sh"


# -- machines and users ----------------------------------------------------------------------------


def test_every_node_is_a_machine_of_its_own(sandbox: Sandbox) -> None:
    done = sandbox.exec(["srun", "-N4", "sh", "-c", "echo $(hostname) $(hostname -i) $(ls /sys/class/net)"])
    assert sorted(done.stdout.splitlines()) == [f"n{i} 10.77.0.1{i} eth0 lo" for i in range(1, 5)]
    for place in ("/tmp", "/dev/shm", "/var/tmp"):
        sandbox.exec(["touch", f"{place}/mark"], node="n1")
        # Beside it there may be the way to a checkout that lies below such a place.
        assert "mark" in sandbox.exec(["ls", place], node="n1").stdout.split()
        assert "mark" not in sandbox.exec(["ls", place], node="n2").stdout.split()
        assert not Path(place, "mark").exists()


def test_users_share_their_homes_and_exist_only_inside(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "echo hello > from-n1"], node="n1", user="bob")
    assert sandbox.exec(["cat", "from-n1"], node="n3", user="bob").stdout == "hello\n"
    assert (sandbox.home("bob") / "from-n1").read_text() == "hello\n"
    assert (sandbox.home("bob") / "from-n1").stat().st_uid == 10002
    assert sandbox.exec(["id"], user="bob").stdout.startswith("uid=10002(bob) gid=10002(bob)")
    assert sandbox.exec(["cat", "/home/bob/from-n1"], user="alice", check=False).returncode != 0
    assert not Path("/home/bob").exists()
    assert "bob:" not in Path("/etc/passwd").read_text()


@pytest.mark.releases
def test_an_ordinary_user_runs_this_package_with_this_python(sandbox: Sandbox) -> None:
    done = sandbox.exec(["srun", "-N1", "python", "-c", "import slurm_robust; print(slurm_robust.__file__)"])
    assert done.stdout.strip() == __import__("slurm_robust").__file__
    assert sandbox.exec(["srobust", "version"]).returncode == 0


def test_a_login_shell_finds_srobust_too(sandbox: Sandbox) -> None:
    assert sandbox.exec(["bash", "-lc", "command -v srobust"]).stdout.endswith("/bin/srobust\n")


def test_submit_keeps_the_callers_words(sandbox: Sandbox, tmp_path: Path) -> None:
    script = tmp_path / "words.sbatch"
    script.write_text('#!/bin/sh\nprintf "[%s]" "$@" "$SLURM_JOB_NUM_NODES"\n')
    job = sandbox.submit(script, "two words", 'q"uote', "$HOME", options=["-N2", "--output=out.txt"])
    out = sandbox.home("alice") / "out.txt"
    wait_for(lambda: out.exists() and out.read_text(), 30, f"output of job {job}")
    assert out.read_text() == '[two words][q"uote][$HOME][2]'
    with pytest.raises(ExecFailed, match="Unable to open file nowhere"):
        sandbox.submit("nowhere.sh")


def test_killing_the_entering_process_kills_the_command_inside(sandbox: Sandbox) -> None:
    before = set(sandbox.host_pids("n1"))
    with pytest.raises(ExecTimedOut, match=r"within 0\.5 s: it sleeps"):
        sandbox.exec(["sh", "-c", "echo it sleeps >&2; sleep 100 & sleep 100"], node="n1", timeout_s=0.5)
    wait_for(lambda: {p for p in sandbox.host_pids("n1") if not is_gone(p)} <= before, 5)


def test_the_slurm_client_works_from_outside(sandbox: Sandbox) -> None:
    client = CliSlurmClient(prefix=sandbox.enter_command())
    assert [node.name for node in client.nodes()] == ["n1", "n2", "n3", "n4"]
    job = sandbox.exec(["sbatch", "--parsable", "--hold", "--wrap=true"]).stdout.strip()
    assert client.job(int(job)).user_name == "alice"


def test_gpus_topology_and_own_lines_reach_slurm(sandboxes: Callable[..., Sandbox]) -> None:
    line = "SchedulerParameters=permit_job_expansion"
    sandbox = sandboxes(nodes=3, gpus_per_node=4, leaf_size=2, accounting=False, slurm_conf_lines=(line,))
    done = sandbox.exec(["srun", "-N1", "--gpus-per-node=2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
    assert done.stdout == "0,1\n"
    assert "SwitchName=leaf2 Level=0" in sandbox.exec(["scontrol", "show", "topology"]).stdout
    assert (
        "sched_interval=5,bf_interval=5,permit_job_expansion"
        in sandbox.exec(["scontrol", "show", "config"]).stdout
    )
    # Slurm's programs started without an environment, by HealthCheckProgram say, find the same file.
    assert sandbox.exec(["env", "-u", "SLURM_CONF", "scontrol", "show", "config"]).returncode == 0


def test_accounting_knows_jobs_and_users(sandbox: Sandbox) -> None:
    sandbox.exec(["srun", "true"], user="bob")
    rows = ["sacct", "--user=bob", "--noheader", "--parsable2", "--allocations", "--format=User,State"]
    wait_for(lambda: "bob|COMPLETED" in sandbox.exec(rows, user="bob").stdout, 30, "row of bob's job")


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("worker", [BY_ENVIRONMENT, BY_NAME], ids=["environment", "name"])
def test_a_rank_is_stopped_continued_and_killed(sandbox: Sandbox, worker: str) -> None:
    job = start_ranks(sandbox, worker)
    pid, other = sandbox.fault.rank_pid(job, 1), sandbox.fault.rank_pid(job, 0)
    sandbox.fault.stop_rank(job, 1)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    sandbox.fault.continue_rank(job, 1)
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_SLEEPING)
    sandbox.fault.kill_rank(job, 1)
    wait_for(lambda: is_gone(pid))
    assert psutil.Process(other).status() == psutil.STATUS_SLEEPING
    with pytest.raises(NotThere, match=f"no process of rank 7 of job {job} on any node; ranks seen: 0"):
        sandbox.fault.kill_rank(job, 7)


def test_a_power_cut_leaves_no_process_and_sends_no_packet(sandbox: Sandbox) -> None:
    code = (
        "import socket; s = socket.create_server(('', 5000)); print('up', flush=True);"
        "c, _ = s.accept(); c.sendall(b'hello'); s.accept()"
    )
    server = sandbox.popen(["python", "-uc", code], node="n2")
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    code = (
        "import socket; s = socket.create_connection(('n2', 5000)); print(s.recv(5), flush=True);"
        "s.settimeout(1.5); print(s.recv(5))"
    )
    client = sandbox.popen(["python", "-uc", code], node="n1")
    assert client.stdout is not None
    assert client.stdout.readline() == "b'hello'\n"
    inside = sandbox.host_pids("n2")
    begun = time.time()
    fault = sandbox.fault.power_cut("n2")
    assert begun <= fault.t <= time.time()
    assert all(map(is_gone, inside))
    _, said = client.communicate(timeout=10)
    assert "timed out" in said  # A FIN would have been an empty read, a reset another error.
    assert server.wait(timeout=10) != 0
    with pytest.raises(FaultRefused, match="n2 is off; boot it first"):
        sandbox.fault.power_cut("n2")
    with pytest.raises(SandboxError, match="n2 is off"):
        sandbox.exec(["true"], node="n2")


def test_slurm_sees_that_a_node_has_rebooted(sandbox: Sandbox) -> None:
    job = start_ranks(sandbox, BY_ENVIRONMENT)
    sandbox.exec(["touch", "/tmp/mark"], node="n2")
    sandbox.fault.power_cut("n2")
    sandbox.fault.boot("n2")
    assert sandbox.exec(["ls", "/tmp"], node="n2").stdout == ""
    wait_for(lambda: sandbox.node_states()["n2"].startswith("down"), 30, "n2 down")
    reason = sandbox.exec(["sinfo", "-R", "-h", "-o", "%E"]).stdout
    assert "unexpectedly rebooted" in reason
    with pytest.raises(NotThere, match=f"no process of rank 1 of job {job}"):
        sandbox.fault.kill_rank(job, 1)
    with pytest.raises(FaultRefused, match="n2 is on already"):
        sandbox.fault.boot("n2")


def reaches(sandbox: Sandbox, node: str) -> bool:
    code = f"import socket; socket.create_connection(('{node}', 6818), timeout=0.5)"
    return sandbox.exec(["python", "-c", code], check=False).returncode == 0


def test_a_cut_network_leaves_the_processes_alone(sandbox: Sandbox) -> None:
    before = set(sandbox.host_pids("n3"))
    assert reaches(sandbox, "n3")
    sandbox.fault.cut_network("n3")
    assert not reaches(sandbox, "n3")
    assert reaches(sandbox, "n2")
    assert before <= set(sandbox.host_pids("n3"))
    assert not next(node for node in read_status(sandbox).nodes if node.name == "n3").connected
    sandbox.fault.heal_network("n3")
    wait_for(lambda: reaches(sandbox, "n3"), 10, "n3 on the network")


@pytest.mark.releases
def test_jobs_outlive_a_killed_slurmd(sandbox: Sandbox) -> None:
    job = start_ranks(sandbox, BY_ENVIRONMENT)
    pid = sandbox.fault.rank_pid(job, 1)
    sandbox.fault.kill_slurmd("n2")
    wait_for(lambda: sandbox.fault.daemon_pid("n2", "slurmd") is None)
    with pytest.raises(FaultRefused, match="no slurmd runs on n2"):
        sandbox.fault.kill_slurmd("n2")
    sandbox.fault.start_slurmd("n2")
    with pytest.raises(FaultRefused, match="slurmd runs on n2 already"):
        sandbox.fault.start_slurmd("n2")
    assert psutil.Process(pid).status() == psutil.STATUS_SLEEPING
    assert sandbox.exec(["srun", "-w", "n2", "hostname"]).stdout == "n2\n"


@pytest.mark.releases
def test_slurmctld_is_killed_and_comes_back_with_its_jobs(sandbox: Sandbox) -> None:
    job = start_ranks(sandbox, BY_ENVIRONMENT)
    started = CliSlurmClient(prefix=sandbox.enter_command()).job(job).start_time
    assert started is not None
    # slurmctld saves its state some seconds late: what it has not saved is lost, here as on any cluster.
    saved = sandbox.folder.path / "state" / "job_state"
    wait_for(lambda: saved.exists() and saved.stat().st_mtime >= started + 1, 30, "slurmctld's state on disk")
    sandbox.fault.kill_slurmctld()
    assert not read_status(sandbox).healthy
    sandbox.fault.start_slurmctld()
    assert job_state(sandbox, job) == "RUNNING"
    sandbox.fault.restart_slurmctld()
    assert job_state(sandbox, job) == "RUNNING"


@pytest.mark.parametrize("path", ["/tmp", "/dev/shm"])
def test_a_full_disk_refuses_writes_until_it_is_freed(sandboxes: Callable[..., Sandbox], path: str) -> None:
    sandbox = sandboxes(nodes=2, accounting=False, shm_mb=8, tmp_mb=8)
    write = ["dd", "if=/dev/zero", f"of={path}/x", "bs=64k", "count=1"]
    sandbox.fault.fill_disk("n1", path, mb=2)
    assert sandbox.exec(write, node="n1").returncode == 0
    sandbox.fault.fill_disk("n1", path)
    sandbox.exec(["rm", f"{path}/x"], node="n1")
    sandbox.fault.fill_disk("n1", path)
    assert "No space left on device" in sandbox.exec(write, node="n1", check=False).stderr
    assert sandbox.exec(write, node="n2").returncode == 0
    sandbox.fault.free_disk("n1")
    assert sandbox.exec(write, node="n1").returncode == 0
    with pytest.raises(
        FaultRefused, match="/home is not a node's own disk\n  fix: name one of /tmp, /dev/shm"
    ):
        sandbox.fault.fill_disk("n1", "/home")


def test_a_link_in_tmp_does_not_lead_the_filling_astray(sandbox: Sandbox) -> None:
    victim = sandbox.home("alice") / "victim"
    victim.write_text("mine")
    sandbox.exec(["ln", "-s", "/home/alice/victim", "/tmp/.srobust-fill"], node="n1")
    with pytest.raises(FaultRefused, match=r"cannot write /tmp/\.srobust-fill on n1: "):
        sandbox.fault.fill_disk("n1", "/tmp", mb=1)
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("node", ["n9", "head", "", "../n1"])
def test_faults_refuse_nodes_that_do_not_exist(sandbox: Sandbox, node: str) -> None:
    count = len(sandbox.folder.faults.read_text().splitlines()) if sandbox.folder.faults.exists() else 0
    with pytest.raises(NotThere, match="name one of n1, n2, n3, n4"):
        sandbox.fault.power_cut(node)
    after = len(sandbox.folder.faults.read_text().splitlines()) if sandbox.folder.faults.exists() else 0
    assert after == count


def test_faults_are_written_down(sandbox: Sandbox) -> None:
    fault = sandbox.fault.cut_network("n1")
    last = json.loads(sandbox.folder.faults.read_text().splitlines()[-1])
    assert last == {"t": fault.t, "fault": "cut-network", "target": "n1"}


@pytest.mark.releases
def test_whatever_was_broken_is_healed(sandbox: Sandbox) -> None:
    start_ranks(sandbox, BY_ENVIRONMENT)
    sandbox.exec(["sh", "-c", "setsid sleep 1000 > /dev/null 2>&1 &"], node="n4")
    shell = open_shell(sandbox, "n3")
    sandbox.exec(["touch", "/dev/shm/left"], node="n4")
    sandbox.exec(["scontrol", "create", "reservation", "reservationname=r", "starttime=now", "duration=9",
                  "users=bob", "nodes=n4"], user="root")  # fmt: skip
    sandbox.exec(["scontrol", "update", "nodename=n3", "state=drain", "reason=test"], user="root")
    sandbox.fault.cut_network("n1")
    sandbox.fault.power_cut("n2")
    sandbox.fault.kill_slurmd("n4")
    sandbox.fault.kill_slurmctld()
    heal(sandbox)
    assert read_status(sandbox).healthy
    assert set(sandbox.node_states().values()) == {"idle"}
    assert sandbox.exec(["squeue", "--noheader"]).stdout == ""
    assert "No reservations" in sandbox.exec(["scontrol", "show", "reservations"]).stdout
    assert sandbox.exec(["ls", "/dev/shm"], node="n4").stdout == ""
    assert sandbox.exec(["pgrep", "-u", "alice"], node="n4", check=False).stdout == ""
    assert sandbox.exec(["srun", "-N4", "hostname"]).returncode == 0
    assert shell.poll() is None, "somebody works there"
    shell.communicate(timeout=30)


@pytest.mark.releases
def test_ids_of_forgotten_jobs_are_not_given_to_jobs_after_healing(sandbox: Sandbox) -> None:
    submit = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=true"]
    before = [int(sandbox.exec(submit).stdout) for _ in range(3)]
    sandbox.fault.kill_slurmctld()
    sandbox.fault.start_slurmctld()  # in order again, but what it forgot stays forgotten
    heal(sandbox)
    assert int(sandbox.exec(submit).stdout) > max(before)


@pytest.mark.releases
def test_a_node_that_was_given_back_takes_job_after_job_once_healed(
    sandboxes: Callable[..., Sandbox],
) -> None:
    """Without healing, Slurm leaves it idle after the first one until it pings it, for 150 s and more."""
    sandbox = sandboxes(nodes=2, accounting=False)
    shrunk = start_exclusive(sandbox, "n1,n2")
    sandbox.exec(["scontrol", "update", f"jobid={shrunk}", "nodelist=n1"], user="root")
    heal(sandbox)
    for _ in range(2):
        job = start_exclusive(sandbox, "n2")
        sandbox.exec(["scancel", str(job)])
        wait_for(lambda: sandbox.node_states()["n2"].strip() == "idle", 60, f"n2 has ended job {job}")


def test_a_node_that_dies_by_itself_is_off(sandbox: Sandbox) -> None:
    os.kill(sandbox.node_pid("n3"), signal.SIGKILL)
    wait_for(lambda: not sandbox.control.nodes()["n3"].on, 10, "n3 off")
    sandbox.fault.boot("n3")
    assert reaches(sandbox, "n3")


def test_sandboxes_side_by_side_share_addresses_and_nothing_else(
    sandbox: Sandbox, sandboxes: Callable[..., Sandbox]
) -> None:
    other = sandboxes(nodes=2, accounting=False)
    assert other.name != sandbox.name
    assert other.config.address("n1") == sandbox.config.address("n1")
    sandbox.fault.power_cut("n1")
    assert other.exec(["srun", "-N2", "hostname"]).returncode == 0
    assert sandbox.name in os.listdir(sandbox.folder.path.parent)
    (other.home("alice") / "only-here").touch()
    assert "only-here" not in sandbox.exec(["ls"]).stdout


def test_a_sandbox_boots_in_a_chroot(tmp_path: Path) -> None:
    boot = (
        "from slurm_robust.sandbox import Sandbox, SandboxConfig as C\n"
        "with Sandbox.up(C(nodes=1, accounting=False), name='chroot') as box:\n"
        "    print(box.exec(['srun', 'hostname']).stdout)"
    )
    root = tmp_path / "root"
    root.mkdir()
    script = f'mount --rbind / {root} && exec chroot {root} {sys.executable} -c "$1"'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-ec", script, "sh", boot]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "n1", done.stderr


def test_nothing_of_it_is_seen_from_outside(sandbox: Sandbox) -> None:
    links = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert "switch" not in links
    assert "v-n1" not in links
    assert str(sandbox.folder.path) not in Path("/proc/mounts").read_text()
