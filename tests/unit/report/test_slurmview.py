"""A job that Slurm cannot take back because a node is dead."""

from __future__ import annotations

from slurm_robust.report.slurmview import completing_advice
from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm


def test_a_completing_job_waits_for_nodes_that_slurm_has_not_given_up() -> None:
    slurm = FakeSlurm()
    job_id = slurm.submit(SubmitRequest(command=("train.sh",), nodes=2))
    job = slurm.job(job_id)
    assert completing_advice(slurm, job) == ""
    dead = job.nodes[1]
    slurm.cluster.set_node(dead, states=frozenset({"ALLOCATED", "NOT_RESPONDING"}))
    job = slurm.cluster.put(job, states=frozenset({"PENDING", "COMPLETING"}))
    assert completing_advice(slurm, job).startswith(
        f"waits for Slurm to give up node {dead} (SlurmdTimeout=300 s); an administrator can"
    )
    slurm.cluster.unreachable = True
    assert completing_advice(slurm, job) == ""
