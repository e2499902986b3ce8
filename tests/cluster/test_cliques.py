"""Standbys and NVLink cliques on a real Slurm with stand-in GPUs: agents tell cliques, slots go by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_robust.model import events as ev
from slurm_robust.sandbox import Sandbox
from tests.cluster.protected_job import ProtectedJob

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

RACKS = {"n1": 1, "n2": 2, "n3": 1, "n4": 2}
"""The racks of nodes; n3 and n4 stand by."""

CLUSTERS = {1: "01010101-0101-0101-0101-010101010101", 2: "02020202-0202-0202-0202-020202020202"}


def test_the_standby_of_the_clique_of_the_lost_node_takes_its_slot(
    sandboxes: Callable[..., Sandbox],
) -> None:
    sandbox = sandboxes(nodes=4, gpus_per_node=2, accounting=False)
    for node, rack in RACKS.items():
        sandbox.gpus(node).set(fabric_state=3, fabric_cluster=rack, fabric_clique=1)
    options = "--spares 2 --nproc-per-node 1 tiny.py --out OUT --steps 200 --step-s 0.2"
    job = ProtectedJob(sandbox, options, nodes=4)
    job.wait(lambda: len({seen.node for seen in job.events(ev.FabricSeen)}) == 4, 60, "cliques of all nodes")
    cliques = {seen.node: seen.clique for seen in job.events(ev.FabricSeen)}
    assert cliques == {node: f"{CLUSTERS[rack]}/1" for node, rack in RACKS.items()}
    job.wait_step(5)
    sandbox.fault.power_cut("n2")
    job.wait_recovered(1)
    assert job.state.world.slots == ("n1", "n4")
    job.hurry()
    assert job.wait_end() == 0
