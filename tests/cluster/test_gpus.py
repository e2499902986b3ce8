"""Every node of a sandbox has GPUs of its own, seen through the real ``pynvml`` and broken one by one."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from slurm_robust.sandbox import Sandbox, SandboxError
from slurm_robust.sandbox.heal import heal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

SETTINGS = {"nodes": 2, "gpus_per_node": 8, "accounting": False}
GATHER = (
    "import msgspec\n"
    "from slurm_robust.config.node import NodeConfig\n"
    "from slurm_robust.nodes.gpus.gather import gather_gpus\n"
    "from slurm_robust.kernel.host import Host\n"
    "print(msgspec.json.encode(gather_gpus(Host(), NodeConfig())).decode())\n"
)
UUIDS = (
    "import pynvml as n; n.nvmlInit(); "
    "print(*(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(i)) for i in range(n.nvmlDeviceGetCount())))"
)


def gpus(sandbox: Sandbox, node: str) -> list[dict[str, object]]:
    """As a hook sees them: root, and nothing in the environment."""
    bare = ["env", "-i", sys.executable, "-c", GATHER]
    found: list[dict[str, object]] = json.loads(sandbox.exec(bare, node=node, user="root").stdout)["gpus"]
    return found


def lost(sandbox: Sandbox, node: str) -> list[int]:
    return [index for index, gpu in enumerate(gpus(sandbox, node)) if gpu.get("trouble") == "lost"]


def test_each_node_has_its_own_gpus(sandboxes: Callable[..., Sandbox]) -> None:
    sandbox = sandboxes(**SETTINGS)
    seen = {node: [gpu["uuid"] for gpu in gpus(sandbox, node)] for node in ("n1", "n2")}
    assert [len(found) for found in seen.values()] == [8, 8]
    assert len({*seen["n1"], *seen["n2"]}) == 16

    # A job of an ordinary user sees the same.
    done = sandbox.exec(["srun", "-wn2", sys.executable, "-c", UUIDS])
    assert done.stdout.split() == seen["n2"]

    # Losing one on n1 does not touch n2; the head has none.
    sandbox.gpus("n1").set(3, lost=True)
    assert (lost(sandbox, "n1"), lost(sandbox, "n2")) == ([3], [])
    assert json.loads(sandbox.exec([sys.executable, "-c", GATHER]).stdout).get("gpus", []) == []
    heal(sandbox)
    assert lost(sandbox, "n1") == []


def test_a_node_that_was_off_has_its_gpus_again(sandboxes: Callable[..., Sandbox]) -> None:
    sandbox = sandboxes(**SETTINGS)
    sandbox.fault.power_cut("n1")
    sandbox.fault.boot("n1")
    assert len(gpus(sandbox, "n1")) == 8


def test_gpus_of_nodes_without_any_cannot_be_broken(sandboxes: Callable[..., Sandbox]) -> None:
    sandbox = sandboxes(**SETTINGS)
    with pytest.raises(SandboxError, match="head"):
        sandbox.gpus("head")
