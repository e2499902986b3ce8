"""A job that Slurm cannot take back because a node is dead."""

from __future__ import annotations

from slurm_robust.slurm.requests import SubmitRequest
from slurm_robust.testing.fake_slurm import FakeSlurm
from slurm_robust.trainings.slurmview import completing_advice, view_of
from tests.builders.events import allocation_taken, run_started


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


def test_a_requeued_job_needs_its_slots_and_takes_its_spares() -> None:
    """NumNodes shows what was left of it."""
    slurm = FakeSlurm()
    job = slurm.job(slurm.submit(SubmitRequest(command=("train.sh",), nodes=3)))
    pending = frozenset({"PENDING"})
    for node in ("n1", "n2", "n3"):
        slurm.cluster.set_node(node, states=frozenset({"DOWN"}))
    slurm.cluster.put(job, states=pending, reason="Resources", restart_count=1, nodes=(), num_nodes=2)
    events = (
        run_started(t=1.0, job_id=job.job_id, slots=2, spares=1),
        allocation_taken(("n1", "n2"), ("n3",)),
    )
    assert view_of(events, slurm).describe() == "PENDING (Resources), needs 2 to 3 nodes"
