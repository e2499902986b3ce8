"""How a node's GPUs reach those of others: asked of the stand-in driver, read from the step's environment."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest

from slurm_robust.agent.fabric import FabricWatch, block_of
from slurm_robust.sandbox.gpus import StandInGpus
from tests.unit.nodes.fake_nvml import environment


def test_the_block_of_a_node_is_that_of_topology_block_alone() -> None:
    pattern = "SLURM_TOPOLOGY_ADDR_PATTERN"
    assert block_of({"SLURM_TOPOLOGY_ADDR": "b8.tux1", pattern: "block.node"}) == "b8"
    assert block_of({"SLURM_TOPOLOGY_ADDR": "s0.leaf1.tux1", pattern: "switch.switch.node"}) == ""
    assert block_of({"SLURM_TOPOLOGY_ADDR": "tux1", pattern: "node"}) == ""
    assert block_of({}) == ""


@pytest.mark.parametrize(
    ("cliques", "expected"),
    [((7, 7), "01010101-0101-0101-0101-010101010101/7"), ((7, 8), "")],
    ids=["one clique", "two, which is a fault"],
)
def test_an_agent_learns_the_clique_of_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cliques: tuple[int, ...], expected: str
) -> None:
    gpus = StandInGpus(tmp_path / "gpus", "n1", 2)
    gpus.reset()
    for number, clique in enumerate(cliques):
        gpus.set(number, fabric_state=3, fabric_cluster=1, fabric_clique=clique)
    for name in ("LD_LIBRARY_PATH", "SROBUST_NVML_STATE"):
        monkeypatch.setenv(name, environment(gpus)[name])
    watch = FabricWatch(possible=True)
    told, until = None, time.monotonic() + 30.0
    while watch.fileno() >= 0 and time.monotonic() < until:
        select.select([watch.fileno()], [], [], 1.0)
        told = watch.read() or told
    assert watch.fileno() == -1, "all is said"
    assert (told or ("", ""))[0] == expected


def test_without_a_driver_nothing_is_asked() -> None:
    watch = FabricWatch(possible=False)
    assert watch.fileno() == -1
    assert watch.read() is None
