"""A real Slurm with topology/block: the blocks that it shows, and a requeue of a job in segments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from slurm_robust.sandbox.boot import slurm_version
from slurm_robust.slurm.cli_client import CliSlurmClient
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.releases, pytest.mark.timeout(600)]

RACKS = {"block1": ("n1", "n2", "n3"), "block2": ("n4", "n5", "n6")}
HAS_SEGMENTS, SHOWS_SEGMENTS = (24, 5), (25, 5)


@pytest.fixture
def racks(sandboxes: Callable[..., Sandbox]) -> Sandbox:
    if slurm_version() < HAS_SEGMENTS:
        pytest.skip("this Slurm has no --segment")
    lines = ("TopologyPlugin=topology/block",)
    return sandboxes(nodes=6, leaf_size=3, accounting=False, slurm_conf_lines=lines)


def test_a_requeued_job_keeps_its_segments(racks: Sandbox) -> None:
    """Each block has room for one segment of two nodes; n2 or n1 dies, and n3 takes its place."""
    client = CliSlurmClient(prefix=racks.enter_command())
    shown = {block.name: block.nodes for block in client.topology() if not block.level}
    assert shown == RACKS
    assert all(block.is_block for block in client.topology())
    job = ProtectedJob(racks, "tiny.py --out OUT --steps 60 --step-s 0.2", nodes=4, sbatch=("--segment=2",))
    job.wait_step(5)
    assert [{node for node in job.state.world.slots if node in rack} for rack in RACKS.values()] == [
        {"n1", "n2"},
        {"n4", "n5"},
    ]
    blocks = {event.node: event.block for event in job.events(ev.FabricSeen)}
    assert blocks == {"n1": "block1", "n2": "block1", "n4": "block2", "n5": "block2"}
    if slurm_version() >= SHOWS_SEGMENTS:  # before, slurmdbd alone knows what a command line asked for
        assert (job.state.segment, client.job(job.id).segment) == (2, 2)
    racks.fault.power_cut("n2")
    job.wait(lambda: len(job.events(ev.AllocationTaken)) == 2, 180, "next run")
    assert set(job.events(ev.AllocationTaken)[1].nodes) == {"n1", "n3", "n4", "n5"}
    job.hurry()
    assert job.wait_end() == 0
