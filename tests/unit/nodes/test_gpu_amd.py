"""AMD's GPUs from a copy of sysfs, and NVIDIA's that no driver has."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.nodes.gpus.facts import AMD, GpuError, GpuProcess, Use
from slurm_robust.nodes.gpus.gather import gather_gpus, gather_use
from tests.unit.nodes.host_files import plant

CONFIG = NodeConfig()
FIRST, SECOND = "0000:0c:00.0", "0000:22:00.0"


def card(bus: str, unique: str) -> dict[str, str]:
    """An MI300X, as the amdgpu driver shows it."""
    folder = f"/sys/devices/pci/{bus}"
    return {
        f"{folder}/vendor": "0x1002",
        f"{folder}/unique_id": unique,
        f"{folder}/product_name": "AMD Instinct MI300X OAM",
        f"{folder}/serial_number": "692251001124",
        f"{folder}/gpu_busy_percent": "7",
        f"{folder}/current_link_width": "16",
        f"{folder}/max_link_width": "16",
        f"{folder}/current_link_speed": "32.0 GT/s PCIe",
        f"{folder}/max_link_speed": "32.0 GT/s PCIe",
        f"{folder}/pcie_replay_count": "4",
        f"{folder}/mem_info_vram_used": str(300 * 2**20),
        f"{folder}/ras/umc_err_count": "ue: 1\nce: 20",
        f"{folder}/ras/sdma_err_count": "ue: 0\nce: 3",
        f"{folder}/ras/features": "feature mask: 0x1",
        f"{folder}/ras/gpu_vram_bad_pages": "0x00000001 : 0x00001000 : R\n0x00000002 : 0x00001000 : P",
        f"{folder}/hwmon/hwmon4/temp1_label": "junction",
        f"{folder}/hwmon/hwmon4/temp1_input": "43000",
        f"{folder}/hwmon/hwmon4/temp1_crit": "100000",
        f"{folder}/hwmon/hwmon4/temp2_label": "mem",
        f"{folder}/hwmon/hwmon4/temp2_input": "35500",
        f"{folder}/hwmon/hwmon4/temp2_crit": "105000",
    }


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = plant(
        tmp_path,
        {
            **card(FIRST, "0x1a"),
            **card(SECOND, "0x2b"),
            "/sys/devices/pci/0000:01:00.0/vendor": "0x1a03",
            "/sys/module/amdgpu/version": "6.10.5",
            # Location 0x2200 is bus 0x22, device 0, function 0.
            "/sys/class/kfd/kfd/topology/nodes/0/properties": "location_id 0\ndomain 0",
            "/sys/class/kfd/kfd/topology/nodes/1/properties": "simd_count 1216\nlocation_id 8704\ndomain 0",
            "/sys/class/kfd/kfd/topology/nodes/1/gpu_id": "51110",
            "/sys/class/kfd/kfd/proc/4711/vram_51110": str(256 * 2**20),
            "/sys/class/kfd/kfd/proc/4712/vram_51110": "0",
            "/proc/4711/stat": "4711 (python3) S 1 4711",
        },
        # The cards are not numbered by their place on the bus; connectors are no cards.
        {
            "/sys/class/drm/card0/device": "/sys/devices/pci/0000:01:00.0",
            "/sys/class/drm/card1/device": f"/sys/devices/pci/{SECOND}",
            "/sys/class/drm/card2/device": f"/sys/devices/pci/{FIRST}",
        },
    )
    (tmp_path / "sys/class/drm/card1-HDMI-A-1").mkdir()
    return made


def test_every_fact_that_sysfs_has(host: Host) -> None:
    facts = gather_gpus(host, CONFIG)
    assert facts.driver == "6.10.5"
    first, second = facts.gpus
    assert (first.index, first.bus, first.uuid, first.vendor) == (0, FIRST, "0x1a", AMD)
    assert (second.index, second.bus, second.uuid) == (1, SECOND, "0x2b")
    assert (first.name, first.serial) == ("AMD Instinct MI300X OAM", "692251001124")
    assert (first.uncorrected, first.corrected, first.ecc_enabled) == (1, 23, True)
    assert (first.retired_pages, first.retired_pending) == (1, True)
    assert (first.temperature_c, first.slowdown_c) == (43.0, 100.0)
    assert (first.memory_temperature_c, first.memory_max_c) == (35.5, 105.0)
    assert (first.pcie_width, first.pcie_generation, first.pcie_replays) == (16, 5, 4)
    assert first.utilization == 7
    assert first.recovery is None


def test_a_card_that_fell_off_the_bus_reads_as_ones(host: Host) -> None:
    folder = host.path(f"/sys/devices/pci/{FIRST}")
    (folder / "config").write_bytes(b"\x02\x10\xa1\x74")
    assert gather_gpus(host, CONFIG).gpus[0].trouble is None
    (folder / "config").write_bytes(b"\xff" * 64)
    lost, other = gather_gpus(host, CONFIG).gpus
    assert (lost.trouble, lost.bus) == (GpuError.LOST, FIRST)
    assert other.trouble is None


def test_a_link_that_the_kernel_does_not_know_has_no_value(host: Host) -> None:
    folder = host.path(f"/sys/devices/pci/{FIRST}")
    (folder / "current_link_width").write_text("255\n")
    (folder / "current_link_speed").write_text("Unknown\n")
    gpu = gather_gpus(host, CONFIG).gpus[0]
    assert (gpu.pcie_width, gpu.pcie_generation) == (None, None)


def test_a_card_without_error_counters_has_none(host: Host) -> None:
    for path in host.path(f"/sys/devices/pci/{FIRST}/ras").iterdir():
        path.unlink()
    gpu = gather_gpus(host, CONFIG).gpus[0]
    assert (gpu.ecc_enabled, gpu.uncorrected, gpu.retired_pages) == (None, None, None)


def test_processes_that_use_a_card(host: Host) -> None:
    assert gather_use(host, CONFIG).gpus == (
        Use(index=0, memory_mb=300),
        Use(index=1, memory_mb=300, processes=(GpuProcess(pid=4711, name="python3"),)),
    )


def test_a_machine_without_gpus_has_no_facts(tmp_path: Path) -> None:
    facts = gather_gpus(Host(tmp_path), CONFIG)
    assert (facts.gpus, facts.on_bus, facts.fault, facts.unreadable) == ((), (), "", "")
    assert gather_use(Host(tmp_path), CONFIG).gpus == ()


def test_nvidias_cards_that_the_driver_should_have(tmp_path: Path) -> None:
    def function(number: int, kind: str, vendor: str = "10DE", driver: str = "") -> dict[str, str]:
        lines = [f"DRIVER={driver}"] if driver else []
        lines += [f"PCI_CLASS={kind}", f"PCI_ID={vendor}:2335"]
        return {f"/sys/bus/pci/devices/0000:0{number}:00.0/uevent": "\n".join(lines)}

    host = plant(
        tmp_path,
        {
            **function(1, "30200", driver="nvidia"),
            **function(2, "30000"),
            **function(3, "30200", driver="vfio-pci"),
            **function(4, "40300"),  # its sound
            **function(5, "68000", driver="nvidia-nvswitch"),
            **function(6, "30000", vendor="1A03"),
        },
    )
    assert gather_gpus(host, CONFIG).on_bus == ("0000:01:00.0", "0000:02:00.0")
