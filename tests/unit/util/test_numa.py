"""NUMA nodes: which have CPUs, what the host has, and from where the real kernel takes a file's memory."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_robust.checkpoint.image import Buffer
from slurm_robust.util import numa
from slurm_robust.util.numa import HostMemory, parse_list, read_memory, without_cpus
from tests.machines import MACHINES, NODES

MB = 2**20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-3,8\n", {0, 1, 2, 3, 8}),
        ("0", {0}),
        ("\n", set()),
        ("0-2,10,18,26", {0, 1, 2, 10, 18, 26}),
        ("zero", set()),
        ("3-", {3}),
    ],
)
def test_lists_of_the_kernel_are_read(text: str, expected: set[int]) -> None:
    assert parse_list(text) == expected


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ("gb200", {2, 10, 18, 26}),
        ("gb200-cdmm", set()),
        ("gh200", {1}),
        ("x86-cxl", {2}),
        ("x86", set()),
        ("none", set()),
    ],
)
def test_nodes_without_cpus_are_found(machine: str, expected: set[int]) -> None:
    assert without_cpus(MACHINES / machine / NODES) == expected


def test_memory_of_gpus_is_neither_there_nor_available() -> None:
    folder = MACHINES / "gb200"
    assert read_memory(folder / "proc", folder / NODES) == HostMemory(
        total=(489935 + 489795) * MB,
        available=(370318 + 465004 + 90000 - 400) * MB,
        elsewhere=4 * 188416 * MB,
    )


def test_files_in_the_memory_of_gpus_are_not_available_to_the_host(tmp_path: Path) -> None:
    """The kernel counts what it could take back there as available."""
    machine = shutil.copytree(MACHINES / "gh200", tmp_path / "machine")
    meminfo = machine / NODES / "node1" / "meminfo"
    before = read_memory(machine / "proc", machine / NODES)
    free, cache = 97279 * 1024, 40000 * 1024
    text = meminfo.read_text().replace(str(free), str(free - cache))
    meminfo.write_text(text.replace("Inactive(file):         0", f"Inactive(file):  {cache}"))
    assert str(cache) in meminfo.read_text()
    assert read_memory(machine / "proc", machine / NODES) == before


def test_a_machine_whose_nodes_say_nothing_counts_all_memory(tmp_path: Path) -> None:
    proc = MACHINES / "gb200" / "proc"
    found = read_memory(proc, tmp_path)
    assert found is not None
    assert (found.total, found.elsewhere) == ((489935 + 489795 + 4 * 188416) * MB, 0)
    assert read_memory(tmp_path, tmp_path) is None


def test_where_no_node_with_cpus_has_memory_all_of_it_counts(tmp_path: Path) -> None:
    """A virtual machine whose CPUs are at one node and whose memory is at the other."""
    machine = shutil.copytree(MACHINES / "gh200", tmp_path / "machine")
    (machine / NODES / "has_memory").write_text("1\n")
    assert without_cpus(machine / NODES) == frozenset()
    found = read_memory(machine / "proc", machine / NODES)
    assert found is not None
    assert (found.total, found.elsewhere) == ((490037 + 97280) * MB, 0)


# -- the real kernel --------------------------------------------------------------------------------


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new file in shared memory, on a machine that seems to have a GPU's memory as node 1."""
    if not Path("/proc/self/numa_maps").exists():
        pytest.skip("a kernel without NUMA")
    monkeypatch.setattr(numa, "NODES", MACHINES / "gh200" / NODES)
    path = Path(f"/dev/shm/srobust-test-numa-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def policy(path: Path) -> str:
    """By what policy the kernel takes memory for the mapping of a file: ``bind:0``."""
    rows = (line.split() for line in Path("/proc/self/numa_maps").read_text().splitlines())
    (found,) = {row[1] for row in rows if f"file={path}" in row}
    return found


def test_memory_for_snapshots_is_bound_to_nodes_with_cpus(file: Path) -> None:
    buffer = Buffer(file)
    buffer.reserve(3 * MB)
    assert policy(file) == "bind:0"
    buffer.reserve(9 * MB)  # a larger state: what is added is bound, too
    assert policy(file) == "bind:0"
    buffer.close()
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0):
        assert policy(file) == "bind:0"  # for whoever maps it later


def test_where_all_memory_is_the_hosts_nothing_is_bound(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "NODES", MACHINES / "x86" / NODES)
    buffer = Buffer(file)
    buffer.reserve(MB)
    assert policy(file) == "default"
    buffer.close()


def test_a_kernel_that_refuses_is_named_once_and_the_memory_is_reserved(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "has_memory").write_text("0,998-999")
    (tmp_path / "has_cpu").write_text("998")  # the kernel here has no such node
    monkeypatch.setattr(numa, "NODES", tmp_path)
    for size in (MB, 2 * MB):
        with file.open("wb+") as opened:
            numa.reserve(opened.fileno(), size)
            assert os.fstat(opened.fileno()).st_blocks * 512 >= size
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the kernel does not let snapshots be bound to the host's memory (mbind"
    ]
    assert os.strerror(errno.EINVAL) in caplog.text
