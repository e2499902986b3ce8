"""Ways out of an allocation: nothing is lost on them, nothing stays behind, and each has an end."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import TypeVar

import pytest

from slurm_robust.ledger.classes import TimeClass
from slurm_robust.ledger.summary import summary_of
from slurm_robust.model import events as ev
from slurm_robust.model.journal import read
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.config import HEAD
from tests.cluster.protected_job import SCRIPTS, USER, ProtectedJob, find_process
from tests.cluster.shared_storage import HOME
from tests.cluster.test_copies import SIXTY, images, newest_launch, repeated
from tests.cluster.undisturbed import undisturbed
from tests.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

E = TypeVar("E")
TINY = "tiny.py --out OUT --steps"
NODES = ("n1", "n2", "n3", "n4")


def drain(sandbox: Sandbox, *nodes: str) -> None:
    update = ["scontrol", "update", f"nodename={','.join(nodes)}", "state=drain", "reason=full"]
    sandbox.exec(update, user="root", check=True)


def told_to_leave(sandbox: Sandbox, job: ProtectedJob) -> None:
    """The end of the run's time is near."""
    sandbox.exec(["scancel", "--batch", "--signal=USR1", str(job.id)], user=USER, check=True)


def copies(sandbox: Sandbox, nodes: tuple[str, ...]) -> list[str]:
    return [f"{node}: {path.name}" for node in nodes for path in images(sandbox, node, "*")]


@pytest.mark.soak
def test_a_requeue_waits_for_a_slurmctld_that_is_away(sandbox: Sandbox) -> None:
    expected = undisturbed(3, SIXTY)
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=3)
    job.wait_step(5)
    pid = sandbox.fault.daemon_pid(HEAD, "slurmctld")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)  # in order: it writes down its jobs
    wait_for(lambda: sandbox.fault.daemon_pid(HEAD, "slurmctld") is None, 30, "slurmctld has ended")
    lost = job.state.world.slots[1]
    sandbox.fault.power_cut(lost)
    wait_for(lambda: "Slurm has not taken the requeue" in job.log, 90, "a line in the job's log")
    assert job.state.restart_count == 0
    sandbox.fault.start_slurmctld()
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    assert lost not in job.state.world.slots, job.log
    assert job.log.count("Slurm has not taken the requeue") == 1
    assert "internal error" not in job.log


def test_on_other_nodes_it_resumes_from_storage_and_nothing_stays_behind(sandbox: Sandbox) -> None:
    expected = undisturbed(2, SIXTY)
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.3", nodes=2)
    job.wait_step(24)
    survivor, lost = job.state.world.slots
    drain(sandbox, survivor)  # it is not to be had again
    sandbox.fault.power_cut(lost)
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    job.wait(lambda: newest_launch(job).generation == 2, 60, "launch")
    launch = newest_launch(job)
    assert not {survivor, lost} & set(launch.slots)
    assert (launch.restore_step >= 23, launch.tiers) == (True, {"storage": 2}), job.log
    assert repeated(job) <= 1, job.log
    job.wait_said(f"generation 2 resumes from step {launch.restore_step}, from storage")
    assert copies(sandbox, (survivor,)) == []
    assert job.wait_end() == 0
    assert job.out.read_text() == expected


def test_a_job_that_waits_and_is_cancelled_leaves_no_copies(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 1000 --step-s 0.1", nodes=2)
    job.wait_step(5)
    drain(sandbox, *NODES)
    told_to_leave(sandbox, job)
    job.wait(lambda: job.slurm_state() == "PENDING", 60, "the job waits")
    assert copies(sandbox, NODES) == []
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.slurm_state() == "CANCELLED", 60, "its end")
    assert copies(sandbox, NODES) == []


def test_a_job_that_an_administrator_holds_is_requeued_and_says_so(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2)
    job.wait_step(5)
    sandbox.exec(["scontrol", "hold", str(job.id)], user="root", check=True)
    told_to_leave(sandbox, job)
    job.wait(lambda: job.slurm_state() == "PENDING", 60, "the job waits")
    words = f"an administrator holds it (JobHeldAdmin) and only one can release it: scontrol release {job.id}"
    job.wait_said(f"the job is requeued but does not start by itself: {words}")
    status = sandbox.exec(["srobust", "status", str(job.id)], user=USER, timeout_s=30, check=True).stdout
    assert "only one can release it" in status
    sandbox.exec(["scontrol", "release", str(job.id)], user="root", check=True)
    assert job.wait_end(timeout=300) == 0
    assert "Traceback" not in job.log


def test_the_advice_for_a_job_that_no_nodes_fit_helps(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=3)
    job.wait_step(5)
    told_to_leave(sandbox, job)
    update = ["scontrol", "update", f"JobId={job.id}"]
    exclude = [*update, "ExcNodeList=n1,n2"]
    wait_for(lambda: not sandbox.exec(exclude, user=USER, check=False).returncode, 60, "the job waits")
    status = ["srobust", "status", str(job.id)]
    wait_for(
        lambda: (
            "a release does not help" in sandbox.exec(status, user=USER, timeout_s=30, check=False).stdout
        ),
        60,
        "advice",
    )
    sandbox.exec([*update, "ExcNodeList="], user=USER, check=True)
    job.wait(lambda: job.state.restart_count == 1, 180, "next run of the job")
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)


def test_scancel_of_an_interactive_job_ends_it_and_blames_nobody(sandbox: Sandbox) -> None:
    """Slurm does not signal what salloc has started."""
    home = sandbox.home(USER)
    shutil.copy(SCRIPTS / "tiny.py", home / "tiny.py")
    run = "srobust run --job-dir interactive tiny.py --out x.sha --steps 5000 --step-s 0.2"
    script = f"salloc --quiet --nodes=2 --no-kill bash -c '{run}; echo $? > code'"
    (home / "interactive.sh").write_text(f"cd ~; setsid {script} > salloc.log 2>&1 < /dev/null &\n")
    sandbox.exec(["bash", "interactive.sh"], user=USER, timeout_s=30.0, check=True)

    def events() -> list[ev.AnyEvent]:
        return [event for path in home.glob("interactive/*/journal.jsonl") for event in read(path)]

    wait_for(lambda: any(isinstance(e, ev.FirstStep) for e in events()), 60, "the first step")
    (folder,) = home.glob("interactive/*")
    sandbox.exec(["scancel", folder.name], user=USER, check=True)
    wait_for((home / "code").exists, 60, "the end of srobust run")
    assert (home / "code").read_text() == "143\n", (home / "salloc.log").read_text()
    assert not [e for e in events() if isinstance(e, ev.NodeEvicted | ev.RequeueStarted | ev.IncidentOpened)]
    assert [e.generation for e in events() if isinstance(e, ev.GenerationLaunched)] == [1]
    assert [e for e in events() if isinstance(e, ev.StorageWritten)], "the newest step of memory"


def test_a_requeue_by_its_owner_is_told_as_one(sandbox: Sandbox) -> None:
    """Slurm's SIGTERM, as of a cancellation, also reaches the command that asks what it means."""
    job = ProtectedJob(sandbox, f"{TINY} 60 --step-s 0.2", nodes=2)
    job.wait_step(5)
    sandbox.exec(["scontrol", "requeue", str(job.id)], user=USER, check=True)
    job.wait(lambda: "the job is requeued" in job.log, 60, "the words")
    assert "cancelled" not in job.log
    job.wait_queued()
    status = sandbox.exec(["srobust", "status", str(job.id)], user=USER, timeout_s=30, check=True).stdout
    assert "StartTime=now" in status
    sandbox.exec(["scontrol", "update", f"JobId={job.id}", "StartTime=now"], user=USER, check=True)
    job.wait(lambda: job.state.restart_count == 1, 60, "next run of the job")
    assert job.wait_end() == 0


def test_scancel_saves_what_memory_has(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 5000 --step-s 0.2", nodes=2)
    job.wait_step(10)
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.slurm_state() == "CANCELLED", 60, "its end")
    (written,) = job.events(ev.StorageWritten)
    (ended,) = job.events(ev.GenerationEnded)
    assert written.step == ended.sealed_step >= 10, job.log
    assert not job.events(ev.IncidentOpened), job.log
    assert copies(sandbox, NODES) == []


def test_scancel_saves_what_memory_has_where_a_node_cannot_write(sandbox: Sandbox) -> None:
    """The other node has copies of its rank."""
    job = ProtectedJob(sandbox, f"{TINY} 5000 --step-s 0.2", nodes=2)
    job.wait_step(10)
    folder, refuses = f"{HOME}/srobust-jobs/{job.id}/checkpoints", job.state.world.slots[1]
    sandbox.exec(["mkdir", "-p", folder], user=USER, check=True)
    sandbox.exec(
        ["mount", "-t", "tmpfs", "-o", "ro,mode=777", "none", folder], node=refuses, user="root", check=True
    )
    try:
        sandbox.exec(["scancel", str(job.id)], user=USER, check=True)
        job.wait(lambda: job.slurm_state() == "CANCELLED", 60, "its end")
    finally:
        sandbox.exec(["umount", "--lazy", folder], node=refuses, user="root", check=False)
    (written,) = job.events(ev.StorageWritten)
    (ended,) = job.events(ev.GenerationEnded)
    assert written.step >= 8, job.log
    assert f"{refuses}: gen-0001/step-" in job.log
    assert "Read-only file system" in job.log
    assert (f"storage has step {written.step}; step" in job.log) is (written.step < ended.sealed_step)


def test_a_suspended_job_goes_on_and_blames_nobody(sandbox: Sandbox) -> None:
    job = ProtectedJob(sandbox, f"{TINY} 5000 --step-s 0.2", nodes=2)
    job.wait_step(10)
    sandbox.exec(["scontrol", "suspend", str(job.id)], user="root", check=True)
    job.wait(lambda: job.slurm_state() == "SUSPENDED", 30, "the job is suspended")
    before, until = job.step(), time.monotonic() + 25.0
    wait_for(lambda: time.monotonic() > until, 40, "longer than a dead node is silent, and than a step takes")
    assert job.step() <= before + 1
    sandbox.exec(["scontrol", "resume", str(job.id)], user="root", check=True)
    job.wait_step(before + 10)
    job.wait(lambda: any("the job was suspended" in e.text for e in job.events(ev.Noted)), 10, "a note")
    found = summary_of(job.events(ev.Event), time.time())
    assert found.classes[TimeClass.SUSPENDED] >= 12_000, found
    blamed = ev.IncidentOpened | ev.NodeEvicted | ev.Decided
    assert not [e for e in job.events(object) if isinstance(e, blamed)], job.log
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)


def test_a_warning_to_all_steps_is_one_to_the_job(sandbox: Sandbox) -> None:
    """As of ``--signal`` without ``B:``, which Slurm sends to steps and not to the batch script."""
    job = ProtectedJob(sandbox, f"{TINY} 5000 --step-s 0.2", nodes=2)
    job.wait_step(10)
    sandbox.exec(["scancel", "--signal=USR1", str(job.id)], user=USER, check=True)
    job.wait(lambda: bool(job.events(ev.RequeueStarted)), 60, "the requeue")
    (requeue,) = job.events(ev.RequeueStarted)
    assert requeue.reason == "the end of this run is near (USR1 to its steps)", job.log
    assert not job.events(ev.IncidentOpened), job.log
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)


PATIENT = "SROBUST_CONFIG_TIMINGS_NODE_DEAD_S=60"
"""An agent that stands still is waited for as long as Slurm leaves, so orders find the job at its end."""


def stand_still(sandbox: Sandbox, node: str) -> None:
    os.kill(find_process(sandbox, node, "-m", "slurm_robust.agent"), signal.SIGSTOP)


def test_a_second_order_ends_a_job_at_once_and_names_what_is_lost(sandbox: Sandbox) -> None:
    """SIGTERM is one order, however often it comes and whoever stood still meanwhile; SIGINT is a second."""
    job = ProtectedJob(sandbox, f"{TINY} 5000 --step-s 0.2", nodes=2, sbatch=(f"--export=ALL,{PATIENT}",))
    job.wait_step(10)
    host, other = job.state.world.slots
    stand_still(sandbox, other)
    supervisor = find_process(sandbox, host, "run", "tiny.py")
    controller = find_process(sandbox, host, "-m", "slurm_robust.controller")

    def order(number: signal.Signals) -> None:
        command = ["scancel", "--batch", f"--signal={number.name.removeprefix('SIG')}", str(job.id)]
        sandbox.exec(command, user=USER, timeout_s=30.0, check=True)

    def pass_time() -> None:
        until = time.monotonic() + 2.0
        wait_for(lambda: time.monotonic() > until)

    os.kill(supervisor, signal.SIGSTOP)
    order(signal.SIGTERM)
    os.kill(controller, signal.SIGTERM)  # Slurm signals all processes of the batch script
    job.wait(lambda: job.events(ev.StopOrdered), 30, "the order")
    pass_time()
    os.kill(supervisor, signal.SIGCONT)  # it passes on what it got
    order(signal.SIGTERM)
    pass_time()
    assert job.state.ended is None, job.log
    order(signal.SIGINT)
    assert job.wait_end(timeout=15) == 143
    assert "lost: a second order to end came" in job.log
    assert not job.events(ev.StorageWritten)


def test_a_second_ctrl_c_ends_an_interactive_job_at_once(sandbox: Sandbox) -> None:
    home = sandbox.home(USER)
    shutil.copy(SCRIPTS / "tiny.py", home / "tiny.py")
    run = "srobust run --job-dir ctrlc tiny.py --out y.sha --steps 5000 --step-s 0.2"
    (home / "run.sh").write_text(f"export {PATIENT}\n{run}\necho $? > ctrlc.code\n")
    salloc = "salloc --quiet --nodes=2 --no-kill bash run.sh"
    terminal = f'setsid script -qfc "{salloc}" ctrlc.log < keys > /dev/null 2>&1 &\nexec 3> keys\n'
    hold = "setsid sleep 300 > /dev/null 2>&1 &\n"  # an end of the keys, which are read to their end
    (home / "terminal.sh").write_text(f"cd ~; mkfifo keys\n{terminal}{hold}")
    sandbox.exec(["bash", "terminal.sh"], user=USER, timeout_s=30.0, check=True)

    def events(kind: type[E]) -> list[E]:
        found = [event for path in home.glob("ctrlc/*/journal.jsonl") for event in read(path)]
        return [event for event in found if isinstance(event, kind)]

    wait_for(lambda: events(ev.FirstStep), 120, "the first step")
    stand_still(sandbox, events(ev.GenerationLaunched)[0].slots[1])
    (home / "keys").write_bytes(b"\x03")
    wait_for(lambda: events(ev.StopOrdered), 30, "the order")
    until = time.monotonic() + 2.0
    wait_for(lambda: time.monotonic() > until)
    assert not events(ev.RunEnded)
    (home / "keys").write_bytes(b"\x03")
    wait_for((home / "ctrlc.code").exists, 30, "the end of srobust run")
    log = (home / "ctrlc.log").read_text(errors="replace")
    assert (home / "ctrlc.code").read_text() == "130\n", log
    assert "lost: a second order to end came" in log
