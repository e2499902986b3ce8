from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from slurm_robust.config.node import BaselineLimits, NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.checks.drift import (
    CHECKS,
    DriftFacts,
    gather,
    judge_hardware,
    judge_settings,
    judge_software,
)
from tests.unit.nodes.host_files import only, plant, view

PASS, FAIL = Outcome.PASS, Outcome.FAIL
CONFIG = NodeConfig()

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9654 96-Core Processor
microcode\t: 0xa101148
"""


def dimm(size: int, wide: int = 0) -> bytes:
    """A memory device record; ``size`` as the old field has it."""
    raw = bytearray(0x28)
    raw[0x0C:0x0E] = size.to_bytes(2, "little")
    raw[0x1C:0x20] = wide.to_bytes(4, "little")
    return bytes(raw)


def test_all_items_of_software_and_hardware_are_read(tmp_path: Path) -> None:
    pci = "/sys/bus/pci/devices"
    tree = {
        "/proc/sys/kernel/osrelease": "5.14.0-427.el9.x86_64",
        "/proc/cpuinfo": CPUINFO * 500,
        "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  "
        "Release Build\nGCC version: gcc 13",
        "/sys/module/mlx5_core/version": "24.01-0.3.3",
        "/sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002",
        "/sys/class/dmi/id/bios_version": "2.1.5",
        "/sys/class/dmi/id/product_name": "XE9680",
        "/usr/lib64/libslurm.so.39": "",
        "/usr/lib64/libslurm.so.39.0.0": "",
        "/proc/cmdline": "BOOT_IMAGE=(hd0)/vmlinuz-5 ro console=tty0 console=ttyS0 iommu=pt quiet -- x=1",
        "/proc/sys/vm/swappiness": "10",
        "/proc/sys/net/ipv4/tcp_rmem": "4096\t87380\t6291456",
        "/sys/devices/system/cpu/online": "0-191",
        "/sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "performance",
        "/sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "powersave",
        "/sys/devices/system/cpu/cpufreq/boost": "1",
        "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        "/run/slurmd.pid": "4242",
        "/proc/4242/limits": "Limit  Soft Limit  Hard Limit\nMax locked memory  unlimited  unlimited  bytes",
        f"{pci}/0000:17:00.0/uevent": "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330",
        f"{pci}/0000:2a:00.0/uevent": "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2330",
    }  # fmt: skip
    host = plant(tmp_path, tree)
    records = {"17-0": dimm(0x7FFF, 65536), "17-1": dimm(16384), "17-2": dimm(0), "17-3": dimm(0xFFFF)}
    records |= {"17-4": dimm(0x8000 | 1024), "16-0": dimm(1), "17-5": dimm(16384)}
    for name, raw in records.items():
        path = tmp_path / "sys/firmware/dmi/entries" / name / "raw"
        path.parent.mkdir(parents=True)
        path.write_bytes(raw)
    sysctls = BaselineLimits(sysctls=("vm.swappiness", "net.ipv4.tcp_rmem", "vm.none"))
    assert gather(host, NodeConfig(baseline=sysctls)) == DriftFacts(
        software={
            "kernel": "5.14.0-427.el9.x86_64",
            "NVIDIA driver": "550.54.15",
            "BIOS": "2.1.5",
            "microcode": "0xa101148",
            "Slurm library": "libslurm.so.39.0.0",
            "mlx5_core driver": "24.01-0.3.3",
            "mlx5_0 firmware": "28.39.1002",
        },
        settings={
            "kernel option ro": "set",
            "kernel option console": "tty0,ttyS0",
            "kernel option iommu": "pt",
            "kernel option quiet": "set",
            "vm.swappiness": "10",
            "net.ipv4.tcp_rmem": "4096 87380 6291456",
            "CPU governor": "performance,powersave",
            "transparent huge pages": "madvise",
            "slurmd's locked memory": "unlimited",
        },
        hardware={
            "system": "XE9680",
            "CPU model": "AMD EPYC 9654 96-Core Processor",
            "CPUs online": "0-191",
            "memory modules": "1 x 1 MiB, 2 x 16384 MiB, 1 x 65536 MiB",
        },
        devices={"0302 10de:2330": 2},
    )


def test_the_real_machine_has_not_drifted_from_itself() -> None:
    facts = gather(Host(), CONFIG)
    assert facts.software["kernel"]
    results = [finding for check in CHECKS for finding in check.judge(view(facts, baseline=facts), CONFIG)]
    assert {finding.outcome for finding in results} == {PASS}
    assert gather(Host(Path("/nonexistent")), CONFIG) == DriftFacts()


WELL = DriftFacts(
    software={"kernel": "5.14-1", "BIOS": "2.1"},
    settings={"vm.swappiness": "10", "kernel option iommu": "pt"},
    hardware={"CPU model": "EPYC"},
    devices={"0302 10de:2330": 8, "0207 15b3:1021": 8, "0108 144d:a824": 2},
)


def test_without_a_baseline_nothing_is_said() -> None:
    assert [finding for check in CHECKS for finding in check.judge(view(WELL), CONFIG)] == []


def differ(config: NodeConfig = CONFIG, **changes: object) -> list[Finding]:
    now = view(msgspec.structs.replace(WELL, **changes), baseline=WELL)
    found = [finding for check in CHECKS for finding in check.judge(now, config)]
    return [finding for finding in found if finding.outcome is not PASS]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"software": {"kernel": "5.14-2", "BIOS": "2.1"}}, "kernel is 5.14-2, was 5.14-1"),
        ({"software": {"kernel": "5.14-1"}}, "BIOS is none, was 2.1"),
        ({"settings": {"vm.swappiness": "60", "kernel option iommu": "pt"}}, "vm.swappiness is 60, was 10"),
        ({"settings": {"vm.swappiness": "10"}}, "kernel option iommu is none, was pt"),
        (
            {"settings": WELL.settings | {"kernel option quiet": "set"}},
            "kernel option quiet is set, was none",
        ),
        ({"hardware": {"CPU model": "Xeon"}}, "CPU model is Xeon, was EPYC"),
    ],
)
def test_a_difference_names_what_is_and_what_was(changes: dict[str, object], text: str) -> None:
    finding = only(differ(**changes))
    assert (finding.outcome, finding.suggestion, finding.blame) == (FAIL, Suggestion.MONITOR, Party.SITE)
    assert finding.text == text


@pytest.mark.parametrize(
    ("name", "count", "suggestion", "text"),
    [
        (
            "0302 10de:2330", 7, Suggestion.RESET,
            "7 of GPU 10de:2330 instead of 8, 1 missing",
        ),
        (
            "0207 15b3:1021", 6, Suggestion.RESET,
            "6 of InfiniBand adapter 15b3:1021 instead of 8, 2 missing",
        ),
        ("0108 144d:a824", 1, Suggestion.MONITOR, "1 of NVMe drive 144d:a824 instead of 2, 1 missing"),
        ("0302 10de:2330", 9, Suggestion.MONITOR, "9 of GPU 10de:2330 instead of 8, 1 more"),
        ("0403 8086:1", 1, Suggestion.MONITOR, "1 of PCI device 8086:1 instead of 0, 1 more"),
    ],
)  # fmt: skip
def test_a_lost_gpu_or_network_adapter_keeps_jobs_away(
    name: str, count: int, suggestion: Suggestion, text: str
) -> None:
    finding = only(differ(devices=WELL.devices | {name: count}))
    assert (finding.suggestion, finding.text) == (suggestion, text)


def test_a_difference_in_hardware_takes_the_place_of_all_is_well() -> None:
    for changes, count in (({"devices": {}}, 3), ({"hardware": {"CPU model": "Xeon"}}, 1)):
        now = view(msgspec.structs.replace(WELL, **changes), baseline=WELL)  # type: ignore[arg-type]
        assert [finding.outcome for finding in judge_hardware(now, CONFIG)] == [FAIL] * count


def test_items_that_a_site_ignores_may_differ() -> None:
    ignoring = NodeConfig(baseline=BaselineLimits(ignore=("kernel option *", "0108 *", "BIOS")))
    changes = {"settings": {"vm.swappiness": "10"}, "devices": WELL.devices | {"0108 144d:a824": 1}}
    assert differ(ignoring, software={"kernel": "5.14-1"}, **changes) == []


def test_items_that_the_baseline_lacks_are_no_drift() -> None:
    assert differ(software=WELL.software | {"lustre driver": "2.15"}) == []
    assert differ(devices=WELL.devices) == []


def test_what_is_as_it_was_is_one_finding_per_check() -> None:
    same = view(WELL, baseline=WELL)
    for judge in (judge_software, judge_settings, judge_hardware):
        finding = only(judge(same, CONFIG))
        assert (finding.outcome, finding.text) == (PASS, "")
        assert "as in the baseline" in finding.value
