"""What companions ask Slurm for, and when they end."""

from __future__ import annotations

import shlex

import pytest

from slurm_robust.model.companion import CompanionPool
from slurm_robust.slurm import commands
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.companion import (
    ASK_EVERY_S,
    LONGEST_SILENCE_S,
    Lent,
    companion_job,
    is_companion_of,
    settings_of_borrower,
    stand_by,
)
from slurm_robust.slurm.records import Allocation
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_cluster import FakeCluster
from slurm_robust.testing.fake_slurm import FakeSlurm

OWN = Allocation(job_id=7, nodes=("n1", "n2"), gpus_per_node={"n1": 8, "n2": 8}, batch_host="n1")


def request(time_left_s: float | None = 3601.0, gpus: int = 8) -> SubmitRequest:
    return companion_job(
        7,
        run=2,
        run_id="7-ab",
        source=CompanionPool(reservation="spares"),
        gpus=gpus,
        time_left_s=time_left_s,
        output="/jobs/7/agents/companion-%j.log",
        cwd="/home/alice",
        environ={"SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_ACCOUNT": "llm", "SLURM_JOB_QOS": ""},
        exclude=("n2",),
        options=("--constraint=h200",),
    )


def test_the_command_line() -> None:
    line = commands.sbatch(request())
    for word in (
        "--no-requeue", "--job-name=srobust-companion-7", "--nodes=1", "--partition=gpu", "--exclusive",
        "--reservation=spares", "--time=61", "--chdir=/home/alice", "--exclude=n2", "--gres=gpu:8",
        "--mem=0", "--account=llm", "--constraint=h200",
    ):  # fmt: skip
        assert word in line
    assert not any(word.startswith("--qos") for word in line)
    assert shlex.split(line[-1])[-2:] == ["7", "--run=2"]
    assert line[-1].startswith("exec ")


def test_a_job_without_gpus_or_time_limit() -> None:
    line = commands.sbatch(request(time_left_s=None, gpus=0))
    assert not any(word.startswith("--gres") for word in line)
    assert "--time=UNLIMITED" in line


def test_nodes_of_each_job_get_steps_of_their_own() -> None:
    lent = Lent(OWN)
    lent.add(12, "n5")
    own, of_companion = lent.steps(
        ("n1", "n5", "n2"), ("agent",), name="agents", environ={"SLURM_JOB_NODELIST": "n[1-2]"}
    )
    assert (own.job_id, own.nodes, own.environment) == (7, ("n1", "n2"), {})
    assert (of_companion.job_id, of_companion.nodes, of_companion.gpus_per_node) == (12, ("n5",), 8)
    assert settings_of_borrower(of_companion.environment) == {
        "SLURM_JOB_ID": "7",
        "SLURM_JOBID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_NODELIST": "n[1-2]",
    }
    assert settings_of_borrower({"SLURM_JOB_ID": "7"}) == {}


class Site:
    """A job that runs, and a companion that watches it."""

    def __init__(self) -> None:
        self.slurm = FakeSlurm(FakeCluster())
        self.clock = self.slurm.cluster.clock
        self.job = self.slurm.submit(SubmitRequest(command=("train",), nodes=1))
        self.slurm.job(self.job)

    def stands_by_s(self, run: int = 0) -> float:
        begun = self.clock.monotonic()
        client: SlurmClient = self.slurm
        stand_by(client, self.job, run, self.clock)
        return self.clock.monotonic() - begun


@pytest.mark.parametrize("how", ["cancel", "requeue", "finish", "gone"])
def test_a_companion_ends_with_the_run(how: str) -> None:
    site = Site()

    def end(now: float) -> None:
        if now - begun >= 100 and not done:
            done.append(how)
            match how:
                case "cancel":
                    site.slurm.cancel(site.job)
                case "requeue":
                    site.slurm.requeue(site.job)
                case "finish":
                    site.slurm.cluster.finish(site.job)
                case "gone":
                    del site.slurm.cluster.jobs[site.job]

    begun, done = site.clock.time(), list[str]()
    site.clock.on_advance.append(end)
    assert 100 <= site.stands_by_s() <= 100 + 2 * ASK_EVERY_S


def test_a_companion_of_an_earlier_run_ends_at_once() -> None:
    assert Site().stands_by_s(run=1) == 0


def test_a_restart_of_slurmctld_ends_no_companion() -> None:
    site = Site()
    begun = site.clock.time()

    def restart(now: float) -> None:
        site.slurm.cluster.unreachable = 100 < now - begun < 1000
        if now - begun > 2000:
            site.slurm.cluster.jobs.clear()

    site.clock.on_advance.append(restart)
    assert 2000 <= site.stands_by_s() <= 2000 + 2 * ASK_EVERY_S


def test_without_any_answer_a_companion_ends_some_day() -> None:
    site = Site()
    site.slurm.cluster.unreachable = True
    assert site.stands_by_s() <= LONGEST_SILENCE_S + 2 * ASK_EVERY_S


def test_companions_are_told_from_jobs_of_the_same_name() -> None:
    slurm = FakeSlurm(FakeCluster())
    name = "srobust-companion-7"
    own, other = (
        slurm.job(slurm.submit(SubmitRequest(command=("x",), name=name, comment=f"of job 7, run {run}")))
        for run in ("7-ab", "7-cd")
    )
    assert is_companion_of(own, 7, "7-ab")
    assert not is_companion_of(other, 7, "7-ab")
    assert not is_companion_of(own, 8, "7-ab")
