"""How many snapshots a node takes: what fits, and what is said when not all do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.checkpoint.budget import NODE, MemoryPlan, Room, gather, of_host, plan, write_plan
from slurm_robust.util.numa import HostMemory
from tests.machines import MACHINES, NODES

GB = 10**9


def room(free: float, total: float | None = None) -> Room:
    return Room(name="/dev/shm", total=int((free if total is None else total) * GB), free=int(free * GB))


def plan_for(
    free: float, *, own: float = 1, shared: float = 0, ranks: int = 1, nodes: int = 2
) -> tuple[int, int]:
    made = plan(
        own=int(own * GB), shared=int(shared * GB), ranks=ranks, nodes=nodes, rooms=(room(free, total=0),)
    )
    return made.own_buffers, made.peer_buffers


@pytest.mark.parametrize(
    ("free", "expected"),
    [(7, (5, 2)), (6.9, (3, 2)), (4.9, (2, 2)), (3.9, (2, 1)), (2.9, (2, 0)), (1.9, (1, 0)), (0.9, (0, 0))],
)
def test_the_ladder_is_gone_down_as_memory_gets_less(free: float, expected: tuple[int, int]) -> None:
    assert plan_for(free) == expected


def test_all_ranks_of_the_node_and_the_shared_part_count() -> None:
    assert plan_for(7 * 8, ranks=8) == (5, 2)
    assert plan_for(7 * 8 - 0.1, ranks=8) == (3, 2)
    assert plan_for(10, own=0, shared=2, ranks=8) == (5, 2)
    assert plan_for(9.9, own=0, shared=2, ranks=8) == (3, 2)


def test_a_single_node_keeps_nothing_for_peers() -> None:
    assert plan_for(5, nodes=1) == (5, 0)
    assert plan_for(3, nodes=1) == (3, 0)
    assert plan_for(2, nodes=1) == (2, 0)


def test_a_tenth_of_each_limit_is_left_alone_and_the_tightest_counts() -> None:
    rooms = (room(100), room(7.4, total=10))
    assert plan(own=GB, shared=0, ranks=1, nodes=2, rooms=rooms).own_buffers == 3
    rooms = (room(100), room(8.0, total=10))
    assert plan(own=GB, shared=0, ranks=1, nodes=2, rooms=rooms).own_buffers == 5


@given(
    own=st.integers(0, 10**12),
    shared=st.integers(0, 10**12),
    ranks=st.integers(1, 16),
    nodes=st.integers(1, 9),
    free=st.integers(0, 10**13),
)
def test_a_plan_fits_and_says_why_it_is_not_the_full_one(
    own: int, shared: int, ranks: int, nodes: int, free: int
) -> None:
    made = plan(own=own, shared=shared, ranks=ranks, nodes=nodes, rooms=(room(free / GB),))
    need = ranks * own * (made.own_buffers + made.peer_buffers) + shared * made.own_buffers
    assert need <= free
    assert (made.own_buffers, made.peer_buffers) == (5, 2 if nodes > 1 else 0) or made.reason


def test_the_reason_says_what_was_wanted_what_there_is_and_what_to_do() -> None:
    made = plan(own=GB, shared=0, ranks=4, nodes=2, rooms=(room(20, total=24),))
    assert made.reason == (
        "5 snapshots of each rank and 2 of each peer's need 28.0 GB, and /dev/shm has 20.0 GB free of "
        "24.0 GB (a tenth of which is left alone). Instead: 2 snapshots of each rank and 2 of each peer's "
        "(16.0 GB); a rank that is killed while another is a step ahead may cost a restore from storage. "
        "Give the node a larger /dev/shm"
    )
    none = plan(own=GB, shared=0, ranks=4, nodes=1, rooms=(room(1),))
    assert (
        "Instead: no snapshots in memory; a fault goes back to the newest checkpoint on storage"
        in none.reason
    )
    assert none.short == "/dev/shm has 1.0 GB free of 1.0 GB"


@pytest.mark.parametrize(
    ("shm", "node", "cgroup", "advice"),
    [
        (10, 100, 100, "the node a larger /dev/shm"),
        (100, 100, 10, "the job more memory (--mem)"),
        (100, 10, 100, "the job nodes with more memory"),
        (10, 11, 100, "the node a larger /dev/shm and the job nodes with more memory"),
        (10, 25, 100, "the node a larger /dev/shm"),  # two snapshots would fit
    ],
)
def test_the_advice_is_on_each_limit_that_is_in_the_way_of_one_more(
    shm: float, node: float, cgroup: float, advice: str
) -> None:
    names = {"the file system of /dev/shm": shm, NODE: node, "the cgroup /job_1": cgroup}
    rooms = tuple(Room(name=name, total=int(size * GB), free=int(size * GB)) for name, size in names.items())
    made = plan(own=2 * GB, shared=0, ranks=4, nodes=1, rooms=rooms)
    assert made.own_buffers == 1
    assert made.reason.endswith(f". Give {advice}")


def test_a_plan_is_left_for_the_agent(tmp_path: Path) -> None:
    made = MemoryPlan(own_buffers=3, peer_buffers=2, reason="because")
    write_plan(tmp_path, 7, made)
    assert msgspec.json.decode((tmp_path / "plan-00007.json").read_bytes(), type=MemoryPlan) == made
    assert len(list(tmp_path.iterdir())) == 1


# -- the machine, as files tell it ----------------------------------------------------------------


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """A folder of copies that holds a megabyte."""
    folder = tmp_path / "copies"
    folder.mkdir()
    (folder / "own-00000.0").write_bytes(bytes(2**20))
    return folder


def test_the_real_machine_has_room(copies: Path) -> None:
    rooms = gather(copies)
    assert {room.name for room in rooms} >= {f"the file system of {copies.parent}", "the node"}
    assert all(0 < room.free <= room.total for room in rooms)


def test_limits_of_cgroups_of_version_2_count_at_every_level(tmp_path: Path, copies: Path) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    write(proc / "self", cgroup="0::/job_1/step_0\n")
    write(proc, meminfo="MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable: 50 kB\n")
    write(root / "job_1" / "step_0", memory__max="max\n", memory__current="7000\n")
    write(
        root / "job_1",
        memory__max="10000000\n",
        memory__current="9000000\n",
        memory__stat=f"anon 5\ninactive_file 300000\nactive_file 200000\nshmem {2**20 + 5}\n",
    )
    rooms = {room.name: room for room in gather(copies, proc, root)}
    ours = (copies / "own-00000.0").stat().st_blocks * 512
    job = rooms[f"the cgroup {root / 'job_1'}"]
    assert (job.total, job.free) == (10_000_000, 1_500_000 + ours)
    assert (rooms["the node"].total, rooms["the node"].free) == (102_400, 102_400)
    assert len(rooms) == 3


def test_limits_of_cgroups_of_version_1_count_too(tmp_path: Path, copies: Path) -> None:
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    write(proc / "self", cgroup="5:cpuset:/other\n9:memory:/slurm/job_1\n")
    write(
        root / "memory" / "slurm" / "job_1",
        memory__limit_in_bytes="1000000\n",
        memory__usage_in_bytes="600000\n",
        memory__stat="total_inactive_file 50000\ntotal_shmem 0\n",
    )
    rooms = {room.name: room for room in gather(copies, proc, root)}
    assert rooms[f"the cgroup {root / 'memory' / 'slurm' / 'job_1'}"].free == 450_000


def test_a_machine_that_tells_nothing_has_its_file_system(tmp_path: Path, copies: Path) -> None:
    assert len(gather(copies, tmp_path / "no-proc", tmp_path / "no-cgroup")) == 1


# -- memory of GPUs is not memory of the node -------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "host_mb"),
    [
        ("gb200", 489935 + 489795),
        ("gb200-cdmm", 489935 + 489795),
        ("gh200", 490037),
        ("x86-cxl", 515000 + 516000),
        ("x86", 1031000 + 1032000),
    ],
)
def test_only_memory_of_nodes_with_cpus_counts(
    tmp_path: Path, copies: Path, machine: str, host_mb: int
) -> None:
    folder = MACHINES / machine
    _, node = gather(copies, folder / "proc", tmp_path, folder / NODES)
    assert node.name.startswith(NODE)
    assert node.total == host_mb << 20
    assert 0.7 * node.total < node.free <= node.total


def test_the_reason_says_what_does_not_count(tmp_path: Path, copies: Path) -> None:
    folder = MACHINES / "gb200"
    rooms = gather(copies, folder / "proc", tmp_path, folder / NODES)
    made = plan(own=200 * GB, shared=0, ranks=4, nodes=2, rooms=rooms[1:])
    assert "the node (but 790 GB at NUMA nodes without CPUs) has 970 GB free of 1.0 TB" in made.reason


def test_a_gb200_in_numa_mode_plans_as_one_whose_driver_keeps_the_memory_of_gpus(
    tmp_path: Path, copies: Path
) -> None:
    def plan_of(machine: str) -> MemoryPlan:
        folder = MACHINES / machine
        rooms = gather(copies, folder / "proc", tmp_path, folder / NODES)
        return plan(own=40 * GB, shared=0, ranks=4, nodes=2, rooms=rooms[1:])

    assert plan_of("gb200").own_buffers == plan_of("gb200-cdmm").own_buffers
    assert (plan_of("gb200").own_buffers, plan_of("gb200").peer_buffers) == (3, 2)  # 5 + 2 are 1,120 GB


HOST = HostMemory(total=980 * GB, available=900 * GB, elsewhere=754 * GB)


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (867, 490),  # half of all memory: the kernel's own size when the GPUs' memory is there
        (490, 490),  # the kernel's own size before that
        (800, 800),  # chosen
        (1560, 1560),  # chosen; the limit of the node counts
    ],
)
def test_half_of_all_memory_is_half_of_the_hosts(total: int, expected: int) -> None:
    found = of_host(room(total - 10, total=total), HOST)
    assert (found.total, found.free) == (expected * GB, (expected - 10) * GB)
    # Where all memory is the host's, nothing changes.
    assert of_host(room(494), HostMemory(980 * GB, 900 * GB, 0)) == room(494)


def test_what_the_buffers_hold_already_stays_theirs_when_others_take_the_rest() -> None:
    full = Room(name="/dev/shm", total=100 * GB, free=5 * GB, ours=5 * GB)
    made = plan(own=GB, shared=0, ranks=1, nodes=2, rooms=(full,))
    assert (made.own_buffers, made.peer_buffers) == (3, 2)
    strange = Room(name="/dev/shm", total=100 * GB, free=5 * GB)
    assert plan(own=GB, shared=0, ranks=1, nodes=2, rooms=(strange,)).own_buffers == 0


def test_the_files_of_the_buffers_are_counted(copies: Path, tmp_path: Path) -> None:
    (copies / "own-00000.0").write_bytes(b"x" * 8192)
    assert gather(copies, tmp_path, tmp_path)[0].ours == 8192
