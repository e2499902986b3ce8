from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_robust.config.node import NodeConfig, StorageLimits
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Outcome, Suggestion
from slurm_robust.nodes.checks.disks import (
    CHECKS,
    Array,
    Disk,
    DisksFacts,
    Space,
    arrays,
    gather,
    judge_errors,
    judge_inodes,
    judge_smart,
    judge_space,
)
from tests.unit.nodes.host_files import only, plant, view

PASS, FAIL, UNKNOWN = Outcome.PASS, Outcome.FAIL, Outcome.UNKNOWN
CONFIG = NodeConfig()


def config(**limits: object) -> NodeConfig:
    return NodeConfig(storage=StorageLimits(**limits))  # type: ignore[arg-type]


MDSTAT = """Personalities : [raid1] [raid6] [raid5] [raid4] [raid0]
md0 : active raid1 sdb1[1] sda1[0]
      1953381440 blocks super 1.2 [2/2] [UU]
      bitmap: 0/15 pages [0KB], 65536KB chunk

md1 : active (auto-read-only) raid5 sdc1[0] sde1[2](F) sdd1[1]
      3906762752 blocks super 1.2 level 5, 512k chunk, algorithm 2 [3/2] [UU_]
      [===>.................]  recovery = 15.0% (293/1953) finish=9.9min speed=100K/sec

md127 : active raid0 nvme0n1[0] nvme1n1[1](F)
      3750483968 blocks super 1.2 512k chunks

md9 : inactive sdf1[0](S)
      976630464 blocks super 1.2

unused devices: <none>"""


def test_arrays_are_read_from_mdstat() -> None:
    assert arrays(MDSTAT) == {
        "md0": Array(level="raid1", active=True, disks=2, working=2),
        "md1": Array(level="raid5", active=True, disks=3, working=2),
        "md127": Array(level="raid0", active=True, disks=2, working=1),
        "md9": Array(level="", active=False, disks=1, working=1),
    }
    assert arrays("") == arrays("Personalities :\nunused devices: <none>") == {}


@given(st.text("md0 :activeraid1[2/]_UF()\n", max_size=60).map(lambda rest: f"md0 : active {rest}"))
def test_any_text_of_mdstat_is_read(text: str) -> None:
    for name, array in arrays(text).items():
        assert name.startswith("md")
        assert array.disks >= 0


def test_disks_are_read_and_what_is_none_is_not(tmp_path: Path) -> None:
    tree = {
        "/proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda1 rw\n2 1 0:9 / /nfs rw - nfs4 n:/x rw",
        "/proc/mdstat": MDSTAT,
        "/sys/block/sda/device/state": "running",
        "/sys/block/sda/device/wwid": "naa.5000c500",
        "/sys/block/sda/device/ioerr_cnt": "0x1f",
        "/sys/block/sdb/device/state": "running",
        "/sys/block/sdb/removable": "1",
        "/sys/block/vda/removable": "0",
        "/sys/block/vda/device/vendor": "0x1af4",
        "/sys/block/dm-0/size": "1",
        "/sys/block/nvme0n1/device/state": "live",
        "/sys/class/nvme/nvme0/state": "live",
        "/sys/class/nvme/nvme0/serial": "S4",
        "/sys/class/nvme/nvme0/hwmon3/temp1_alarm": "0",
        "/sys/class/nvme/nvme1/state": "dead",
        "/sys/class/nvme/nvme1/hwmon4/temp1_alarm": "0",
    }
    (tmp_path / "nfs").mkdir()
    settings = config(min_free_mb={"/": 1, "/sys": 5, "/nfs/x": 3, "/nfs": 2, "/none": 9})
    found = gather(plant(tmp_path, tree), settings)
    assert found.disks == {
        "sda": Disk(id="naa.5000c500", state="running", io_errors=31),
        "vda": Disk(),
        "nvme0": Disk(id="S4", state="live", too_hot=False),
        "nvme1": Disk(state="dead"),
    }
    assert list(found.arrays) == ["md0", "md1", "md127", "md9"]
    assert found.asked == {"/": ("/", "/sys"), "/nfs": ("/nfs/x", "/nfs")}
    assert (
        found.spaces["/"].total_mb == os.statvfs(tmp_path).f_blocks * os.statvfs(tmp_path).f_frsize // 2**20
    )
    assert found.spaces["/nfs"].total_mb > 0
    assert [finding.limit for finding in judge_space(view(found), settings)] == ["5 MiB free", "3 MiB free"]


def test_disks_of_the_real_machine_have_no_fault() -> None:
    settings = config(min_free_mb={"/": 1}, min_free_inodes=1)
    found = gather(Host(), settings)
    results = [finding for check in CHECKS for finding in check.judge(view(found, baseline=found), settings)]
    assert {finding.outcome for finding in results} == {PASS}


def space(free_mb: int, total_mb: int = 10_000, **more: object) -> DisksFacts:
    found = Space(total_mb=total_mb, free_mb=free_mb, **more)  # type: ignore[arg-type]
    return DisksFacts(spaces={"/": found}, asked={"/": ("/", "/tmp", "/var")})


@pytest.mark.parametrize(
    ("now", "job_gone", "outcome", "suggestion"),
    [
        (space(1024), None, PASS, Suggestion.NONE),
        (space(1023), None, FAIL, Suggestion.MONITOR),
        (space(1023), True, FAIL, Suggestion.RESET),
        (space(1023), False, FAIL, Suggestion.MONITOR),
        (space(1023, total_mb=2048), True, FAIL, Suggestion.RESET),
        (space(1023, total_mb=2047), None, UNKNOWN, Suggestion.NONE),
        (space(1024, total_mb=1024), None, PASS, Suggestion.NONE),
        (space(0, error="no answer in time"), None, UNKNOWN, Suggestion.NONE),
    ],
)
def test_free_space_is_held_against_the_highest_limit_of_a_file_system(
    now: DisksFacts, job_gone: bool | None, outcome: Outcome, suggestion: Suggestion
) -> None:
    finding = only(judge_space(view(now, job_gone=job_gone), CONFIG))
    assert (finding.outcome, finding.suggestion, finding.subject) == (outcome, suggestion, "/")
    assert bool(finding.text) == (outcome is not PASS)


@pytest.mark.parametrize(
    ("inodes", "free", "outcome"), [(100_000, 10_000, PASS), (100_000, 9_999, FAIL), (19_999, 9_999, UNKNOWN)]
)
def test_free_inodes_are_held_against_the_limit(inodes: int, free: int, outcome: Outcome) -> None:
    now = space(9999, inodes=inodes, free_inodes=free)
    assert only(judge_inodes(view(now), CONFIG)).outcome is outcome


def test_a_file_system_without_a_number_of_inodes_is_not_judged() -> None:
    assert list(judge_inodes(view(space(9999)), CONFIG)) == []


def disks(**found: Disk) -> DisksFacts:
    return DisksFacts(disks=found)


def sda(io_errors: int | None, state: str = "running", identity: str = "naa.1") -> DisksFacts:
    return disks(sda=Disk(id=identity, state=state, io_errors=io_errors))


@pytest.mark.parametrize(
    ("now", "before", "outcome", "text"),
    [
        (sda(500), (), PASS, ""),
        (sda(15), ((3600.0, sda(5)),), PASS, ""),
        (sda(16), ((3600.0, sda(5)),), FAIL, "11 failed commands"),
        (sda(16), ((3601.0, sda(5)),), PASS, ""),
        (sda(16), ((60.0, sda(5, identity="naa.2")),), PASS, ""),
        (sda(3), ((60.0, sda(500)),), PASS, ""),
        (sda(0, state="offline"), (), FAIL, "disk is offline"),
        (sda(0, state="blocked"), (), PASS, ""),
        (disks(nvme0=Disk(state="dead")), (), FAIL, "disk is dead"),
        (disks(nvme0=Disk(state="resetting")), (), PASS, ""),
    ],
)
def test_a_disk_may_fail_a_few_commands_and_must_take_them(
    now: DisksFacts, before: tuple[tuple[float, DisksFacts], ...], outcome: Outcome, text: str
) -> None:
    finding = only(judge_errors(view(now, *before), CONFIG))
    assert (finding.outcome, finding.text) == (outcome, text)
    assert finding.suggestion is (Suggestion.REPLACE if outcome is FAIL else Suggestion.NONE)


def test_a_disk_that_tells_nothing_is_not_judged_and_one_that_is_gone_is_missed() -> None:
    assert list(judge_errors(view(disks(vda=Disk())), CONFIG)) == []
    renamed = view(disks(sdb=Disk(id="naa.1")), baseline=disks(sda=Disk(id="naa.1")))
    assert list(judge_errors(renamed, CONFIG)) == []
    finding = only(judge_errors(view(disks(), baseline=disks(sda=Disk(id="naa.1"))), CONFIG))
    assert (finding.outcome, finding.suggestion, finding.subject) == (FAIL, Suggestion.MONITOR, "naa.1")


def test_an_array_that_lacks_a_disk_is_reported_and_a_lost_one_is_for_the_repair_desk() -> None:
    found = list(judge_errors(view(DisksFacts(arrays=arrays(MDSTAT))), CONFIG))
    assert {finding.subject: (finding.outcome, finding.suggestion) for finding in found} == {
        "md0": (PASS, Suggestion.NONE),
        "md1": (FAIL, Suggestion.MONITOR),
        "md127": (FAIL, Suggestion.REPLACE),
        "md9": (PASS, Suggestion.NONE),
    }


@pytest.mark.parametrize(("too_hot", "outcome"), [(True, FAIL), (False, PASS)])
def test_a_drive_may_warn_of_itself(too_hot: bool, outcome: Outcome) -> None:
    assert only(judge_smart(view(disks(nvme0=Disk(too_hot=too_hot))), CONFIG)).outcome is outcome
    assert list(judge_smart(view(disks(nvme0=Disk())), CONFIG)) == []
