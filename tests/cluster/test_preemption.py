"""Jobs that Slurm preempts are saved, requeued once at most and told as preempted, and nobody is blamed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.report.job_view import JobView
from slurm_robust.report.status import status_at
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.test_copies import newest_launch
from tests.cluster.test_sizes import hashes

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

TRAINING = "resized.py --kind ddp --out OUT --steps 5000 --step-s 0.2"
GRACE_S = 25
OPEN = "Nodes=ALL OverSubscribe=NO MaxTime=INFINITE State=UP"
MODES = {  # with and without a GraceTime, each as the name of a partition and of a QOS
    "requeue_grace": f"PreemptMode=REQUEUE GraceTime={GRACE_S}",
    "requeue": "PreemptMode=REQUEUE",
    "cancel_grace": f"PreemptMode=CANCEL GraceTime={GRACE_S}",
    "cancel": "PreemptMode=CANCEL",
}
BY_PARTITION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "RebootProgram=/bin/true",
    *(f"PartitionName={name} PriorityTier=1 {mode} {OPEN}" for name, mode in MODES.items()),
    f"PartitionName=high PriorityTier=10 PreemptMode=OFF {OPEN}",
)
BY_QOS = (
    "PreemptType=preempt/qos",
    "PreemptMode=REQUEUE",
    "SchedulerParameters=preempt_send_user_signal",
    "AccountingStorageEnforce=associations,limits,qos",
)
BY_SUSPENSION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=SUSPEND,GANG",
    "PartitionName=low Nodes=ALL OverSubscribe=FORCE:1 PriorityTier=1 PreemptMode=SUSPEND State=UP",
    "PartitionName=high Nodes=ALL OverSubscribe=FORCE:1 PriorityTier=10 PreemptMode=OFF State=UP",
)


@pytest.fixture
def by_partition(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=2, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=BY_PARTITION)


@pytest.fixture
def by_qos(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    sandbox = sandboxes(nodes=2, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=BY_QOS)

    def sacctmgr(*words: str) -> None:
        sandbox.exec(["sacctmgr", "--immediate", *words], user="root", timeout_s=30.0)

    for name, mode in MODES.items():
        sacctmgr("add", "qos", name, *mode.split())
    sacctmgr("add", "qos", "high", f"Preempt={','.join(MODES)}", "Priority=1000")
    sacctmgr("modify", "user", USER, "set", f"QOS=normal,{','.join(MODES)},high")
    return sandbox


def preempt(sandbox: Sandbox, option: str, nodes: int = 2) -> None:
    """Somebody with more rights wants all nodes for a moment."""
    command = ["sbatch", f"--nodes={nodes}", "--exclusive", "--output=/dev/null", option, "--wrap", "sleep 3"]
    sandbox.exec(command, user=USER, timeout_s=30.0, check=True)


def check_doctor(job: ProtectedJob, option: str) -> None:
    """It shows how long this job has, and that this is little."""
    done = job.sandbox.exec(
        ["srobust", "doctor", "--json", "--job", str(job.id)], user=USER, timeout_s=60.0, check=False
    )
    report = json.loads(done.stdout)
    who = {"qos": "QOS", "partition": "partition"}[option]
    then = f"then the job is cancelled ({who} cancel_grace, PreemptMode=CANCEL)"
    assert f"preemption: {GRACE_S} s (GraceTime={GRACE_S}), {then}" in report["ends"]
    (found,) = (hazard for hazard in report["hazards"] if hazard["rule"] == "ends.grace")
    assert found["text"].startswith(f"GraceTime is {GRACE_S} s, which leaves {GRACE_S - 15} s")


def check_unharmed(job: ProtectedJob) -> None:
    """Nobody is blamed, and nothing is excluded."""
    blamed = ev.IncidentOpened | ev.NodeEvicted | ev.Decided
    assert not [e for e in job.events(object) if isinstance(e, blamed)], job.log
    assert not [e for e in job.events(ev.RequeueStarted) if e.exclude], job.log
    assert "internal error" not in job.log


def check_goes_on(job: ProtectedJob, before: ProtectedJob) -> None:
    """From the step that was saved, bitwise: ``before`` has begun, in an earlier run or as an earlier job."""
    saved = before.events(ev.StorageWritten)[0].step
    assert before.events(ev.GenerationEnded)[0].sealed_step == saved, "it is the newest one"
    runs = 2 if job is before else 1
    job.wait(lambda: len(hashes(job)[1]) == runs, 120, "the next run goes on")
    first, _, state = hashes(job)[1][-1]
    assert (first, state) == (saved + 1, hashes(before)[0][saved]), job.log
    launch = newest_launch(job)
    assert (launch.restore_step, set(launch.tiers)) == (saved, {"storage"}), job.log


def all_modes(sandbox: Sandbox, option: str, **sbatch: str) -> None:
    """A job in each mode; one preemption for all; ``sbatch``: further options by mode."""

    def begin(mode: str) -> ProtectedJob:
        words = (f"--{option}={mode}", *sbatch.get(mode, "").split())
        nodes = 2 if mode.startswith("requeue") else 1
        return ProtectedJob(sandbox, f"--training {mode} {TRAINING}", nodes=nodes, sbatch=words)

    jobs = {mode: begin(mode) for mode in MODES}
    for job in jobs.values():
        job.wait_step(5)
    check_doctor(jobs["cancel_grace"], option)
    preempt(sandbox, f"--{option}=high")

    cancelled = jobs.pop("cancel")
    cancelled.wait(lambda: cancelled.slurm_state() == "PREEMPTED", 60, "its end")
    (ended,) = cancelled.events(ev.RunEnded)
    assert (ended.reason, ended.requeued) == ("preempted by Slurm, which cancels the job", False)
    assert status_at(JobView(events=cancelled.events(ev.Event)), ended.t).phase == "preempted"
    again = begin("cancel")

    requeued = jobs["requeue"]
    (ended,) = requeued.events(ev.RunEnded)
    assert (ended.reason, ended.requeued) == ("preempted by Slurm, which requeues the job", True)
    assert f"end, exit code 143: {ended.reason}" in requeued.log
    assert not requeued.events(ev.RequeueStarted), "Slurm has done it"

    for mode in ("requeue_grace", "cancel_grace"):  # this run asks for it, while there is time
        (started,) = jobs[mode].events(ev.RequeueStarted)
        assert started.reason.startswith("preempted by Slurm, which ends it in "), jobs[mode].log

    for job in jobs.values():
        job.wait(lambda job=job: job.state.restart_count == 1, 120, "next run of the job")
        check_goes_on(job, job)
    check_goes_on(again, cancelled)
    for job in (*jobs.values(), again, cancelled):
        check_unharmed(job)
        assert job.state.restart_count == (0 if job in (again, cancelled) else 1)
    sandbox.exec(["scancel", *(str(job.id) for job in (*jobs.values(), again))], user=USER, check=True)
    assert again.wait_end() == 143
    ended = again.events(ev.RunEnded)[-1]
    assert (ended.reason, ended.preempted) == ("ordered to end by SIGTERM", False), "a scancel is none"


def test_all_modes_by_partition(by_partition: Sandbox) -> None:
    all_modes(by_partition, "partition")


def test_all_modes_by_qos(by_qos: Sandbox) -> None:
    """One of them is warned by ``--signal`` without ``B:``, which Slurm sends to steps."""
    all_modes(by_qos, "qos", requeue_grace="--signal=USR1@60")


def test_a_training_that_is_suspended_for_another_job_goes_on(sandboxes: Callable[..., Sandbox]) -> None:
    sandbox = sandboxes(nodes=1, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=BY_SUSPENSION)
    job = ProtectedJob(sandbox, TRAINING, nodes=1, sbatch=("--partition=low",))
    job.wait_step(5)
    preempt(sandbox, "--partition=high", nodes=1)
    job.wait(lambda: job.slurm_state() == "SUSPENDED", 30, "the job is suspended")
    job.wait(lambda: job.slurm_state() == "RUNNING", 60, "the job goes on")
    job.wait_step(job.step() + 5)
    check_unharmed(job)
    assert len(job.events(ev.GenerationLaunched)) == 1
    sandbox.exec(["scancel", str(job.id)], user=USER, check=True)


def test_a_reboot_asked_as_soon_as_possible_leaves_the_job_alone(by_partition: Sandbox) -> None:
    """It drains the node."""
    job = ProtectedJob(by_partition, TRAINING, nodes=2)
    job.wait_step(5)
    by_partition.exec(["scontrol", "reboot", "ASAP", "n1"], user="root", check=True)
    node = by_partition.exec(["scontrol", "-o", "show", "node", "n1"]).stdout
    assert "DRAIN" in node, node
    job.wait_step(25)
    assert not job.events(ev.IncidentOpened), job.log
    by_partition.exec(["scontrol", "cancel_reboot", "n1"], user="root", check=True)
    by_partition.exec(["scancel", str(job.id)], user=USER, check=True)
    job.wait(lambda: job.slurm_state() == "CANCELLED", 60, "its end")
