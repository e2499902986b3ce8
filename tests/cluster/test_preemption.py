"""A job that Slurm preempts is saved and requeued once, and nobody is blamed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import USER, ProtectedJob
from tests.cluster.test_copies import newest_launch
from tests.cluster.undisturbed import undisturbed

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

ALONE = "tiny.py --out OUT --steps 200 --step-s 0"
TRAINING = "tiny.py --out OUT --steps 200 --step-s 0.2"
GRACE_S = 25
OPEN = "Nodes=ALL OverSubscribe=NO MaxTime=INFINITE State=UP"
BY_PARTITION = (
    "PreemptType=preempt/partition_prio",
    "PreemptMode=REQUEUE",
    "RebootProgram=/bin/true",
    f"PartitionName=grace PriorityTier=1 GraceTime={GRACE_S} PreemptMode=REQUEUE {OPEN}",
    f"PartitionName=low PriorityTier=1 PreemptMode=REQUEUE {OPEN}",
    f"PartitionName=high PriorityTier=10 PreemptMode=OFF {OPEN}",
)
BY_QOS = (
    "PreemptType=preempt/qos",
    "PreemptMode=REQUEUE",
    "AccountingStorageEnforce=associations,limits,qos",
)


@pytest.fixture
def by_partition(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    return sandboxes(nodes=2, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=BY_PARTITION)


@pytest.fixture
def by_qos(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    sandbox = sandboxes(nodes=2, slurmd_timeout_s=20, cred_expire_s=5, slurm_conf_lines=BY_QOS)

    def sacctmgr(*words: str) -> None:
        sandbox.exec(["sacctmgr", "--immediate", *words], user="root", timeout_s=30.0)

    sacctmgr("add", "qos", "cheap", f"GraceTime={GRACE_S}", "PreemptMode=requeue")
    sacctmgr("add", "qos", "dear", "Preempt=cheap", "Priority=1000")
    sacctmgr("modify", "user", USER, "set", "QOS=normal,cheap,dear")
    return sandbox


def preempt(sandbox: Sandbox, *options: str) -> None:
    """Somebody with more rights wants all nodes for a moment."""
    command = ["sbatch", "--nodes=2", "--exclusive", "--output=/dev/null", *options, "--wrap", "sleep 3"]
    sandbox.exec(command, user=USER, timeout_s=30.0, check=True)


def check_preempted(job: ProtectedJob, expected: str) -> None:
    """It was saved, requeued once, went on where it was, and nobody was blamed."""
    job.wait(lambda: job.state.restart_count == 1, 120, "next run of the job")
    job.wait(lambda: newest_launch(job).generation == 2, 60, "launch")
    (written,) = job.events(ev.StorageWritten)
    launch = newest_launch(job)
    assert (launch.restore_step, launch.tiers) == (written.step, {"storage": 2}), job.log
    assert job.wait_end() == 0
    assert job.out.read_text() == expected
    blamed = ev.IncidentOpened | ev.NodeEvicted | ev.Decided
    assert not [e for e in job.events(object) if isinstance(e, blamed)], job.log
    assert job.state.restart_count == 1
    assert "an error of its own" not in job.log


def test_with_grace_by_partition(by_partition: Sandbox) -> None:
    expected = undisturbed(2, ALONE)
    job = ProtectedJob(by_partition, TRAINING, nodes=2, sbatch=("--partition=grace",))
    job.wait_step(10)
    preempt(by_partition, "--partition=high")
    check_preempted(job, expected)
    (requeue,) = job.events(ev.RequeueStarted)
    assert requeue.reason.startswith("preempted by Slurm, which ends it in "), job.log


def test_without_grace_by_partition(by_partition: Sandbox) -> None:
    expected = undisturbed(2, ALONE)
    job = ProtectedJob(by_partition, TRAINING, nodes=2, sbatch=("--partition=low",))
    job.wait_step(10)
    preempt(by_partition, "--partition=high")
    check_preempted(job, expected)


def test_with_grace_by_qos(by_qos: Sandbox) -> None:
    expected = undisturbed(2, ALONE)
    job = ProtectedJob(by_qos, TRAINING, nodes=2, sbatch=("--qos=cheap",))
    job.wait_step(10)
    preempt(by_qos, "--qos=dear")
    check_preempted(job, expected)
    (requeue,) = job.events(ev.RequeueStarted)
    assert requeue.reason.startswith("preempted by Slurm"), job.log


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
