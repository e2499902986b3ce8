"""Where the ranks of a DGX run: by a tree of its sysfs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_robust.agent.numa import NOWHERE, Binding, bindings
from slurm_robust.nodes.host import Host
from slurm_robust.util import process
from tests.unit.nodes.host_files import plant

DEVICES = "/sys/bus/pci/devices"
# A DGX H100: 2 sockets of 56 cores with 2 threads each and 4 GPUs; beside them a BMC's display and a NIC.
SOCKETS = ("0-55,112-167", "56-111,168-223")
FIRST = frozenset((*range(56), *range(112, 168)))
SECOND = frozenset(range(224)) - FIRST
GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
ALL = range(224)


def dgx(
    root: Path, *, nodes: tuple[int, ...] = (0, 0, 0, 0, 1, 1, 1, 1), gpus: tuple[str, ...] = GPUS
) -> Host:
    files = {}
    for bus, node in zip(gpus, nodes, strict=False):
        folder = f"{DEVICES}/0000:{bus}:00.0"
        files[f"{folder}/uevent"] = "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330"
        files[f"{folder}/numa_node"] = str(node)
        files[f"{folder}/local_cpulist"] = SOCKETS[node] if node >= 0 else "0-223"
    files[f"{DEVICES}/0000:03:00.0/uevent"] = "DRIVER=ast\nPCI_CLASS=30000\nPCI_ID=1A03:2000"
    files[f"{DEVICES}/0000:18:00.0/uevent"] = "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021"
    return plant(root, files)


def test_each_rank_runs_beside_its_gpu(tmp_path: Path) -> None:
    found = bindings(8, {}, ALL, dgx(tmp_path))
    assert [binding.node for binding in found] == [0] * 4 + [1] * 4
    assert {frozenset(binding.cpus) for binding in found[:4]} == {FIRST}
    assert {frozenset(binding.cpus) for binding in found[4:]} == {SECOND}


def test_only_cpus_of_the_job_are_taken(tmp_path: Path) -> None:
    found = bindings(8, {}, [*range(8), *range(56, 60)], dgx(tmp_path))
    assert (
        found
        == (Binding(cpus=tuple(range(8)), node=0),) * 4 + (Binding(cpus=tuple(range(56, 60)), node=1),) * 4
    )


def test_no_rank_gets_a_few_cpus_while_others_have_many(tmp_path: Path) -> None:
    host = dgx(tmp_path)
    assert bindings(8, {}, [*range(48), *range(56, 60)], host) == (NOWHERE,) * 8
    assert bindings(8, {}, [*range(48), *range(56, 80)], host) != (NOWHERE,) * 8


def test_the_order_of_visible_gpus_counts(tmp_path: Path) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2,1,0"}
    assert [found.node for found in bindings(8, environ, ALL, dgx(tmp_path))] == [1] * 4 + [0] * 4


@pytest.mark.parametrize(
    ("count", "visible"),
    [(4, None), (16, None), (1, None), (4, "0,1,2,3"), (8, "GPU-a"), (8, ""), (8, "0,0,1,2,3,4,5,6")],
)
def test_where_ranks_and_gpus_are_not_one_to_one_nothing_is_bound(
    tmp_path: Path, count: int, visible: str | None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert bindings(count, environ, ALL, dgx(tmp_path)) == (NOWHERE,) * count


def test_where_nothing_is_known_or_to_be_gained_nothing_is_bound(tmp_path: Path) -> None:
    virtual = dgx(tmp_path / "virtual", nodes=(-1,) * 8)
    assert bindings(8, {}, ALL, virtual) == (NOWHERE,) * 8
    host = dgx(tmp_path / "dgx")
    # CPUs of one socket only: there is no choice for its GPUs, and nothing near the others.
    assert bindings(8, {}, range(56), host) == (NOWHERE,) * 8
    assert bindings(1, {}, ALL, Host(tmp_path / "empty")) == (NOWHERE,)


BOUND = """
import os
from slurm_robust.util import process
cpu = min(os.sched_getaffinity(0))
process.bind((cpu,), {node})
print(sorted(os.sched_getaffinity(0)) == [cpu])
print(next(line.split()[1] for line in open("/proc/self/numa_maps")))
"""


@pytest.mark.parametrize(("node", "policy"), [(0, "prefer"), (-1, "default"), (999, "default")])
def test_a_process_is_bound_and_prefers_the_memory(node: int, policy: str) -> None:
    """A node that is not there changes nothing: a worker is as good without."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    done = subprocess.run(
        [sys.executable, "-c", BOUND.format(node=node)], capture_output=True, text=True, check=True
    )
    bound, told = done.stdout.split()
    assert bound == "True"
    assert told.startswith(policy)


def test_cpus_that_are_gone_leave_a_process_where_it_is() -> None:
    before = os.sched_getaffinity(0)
    process.bind((8191,), -1)
    assert os.sched_getaffinity(0) == before
