"""NVIDIA's GPUs, through ``pynvml``. Each question may fail alone: not every driver and GPU knows all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from slurm_robust.kernel import pci
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.recovery import Recovery, recovery
from slurm_robust.nodes.gpus.facts import (
    Gpu,
    GpuError,
    GpuFacts,
    Throttle,
    Use,
    process,
)
from slurm_robust.nodes.gpus.links import NOT_READY
from slurm_robust.nodes.gpus.nvml import Fields, Nvml, NvmlError

T = TypeVar("T")

# VGA and 3D controllers; a GPU's sound or USB function and NVSwitches are of other kinds.
_GPU_KINDS = ("0300", "0302")
_LOADED = "/proc/driver/nvidia/version"

_THROTTLE = {
    0x08: Throttle.HW_SLOWDOWN,
    0x20: Throttle.SW_THERMAL,
    0x40: Throttle.HW_THERMAL,
    0x80: Throttle.POWER_BRAKE,
}
_GPU_IDLE = 0x01

# NVML_FI_DEV_*
_MEMORY_TEMPERATURE = 82
_SLOWDOWN_TLIMIT = 194
_RECOVERY_ACTION = 230
# Replays and recoveries of all links: NVLink up to 3, and 4 if the driver still has them.
_NVLINK_TOTALS = (52, 59)
_FIELDS = (*_NVLINK_TOTALS, _MEMORY_TEMPERATURE, _SLOWDOWN_TLIMIT, _RECOVERY_ACTION)
# Counters of one link: replays, recoveries and CRC errors up to NVLink 4 (gone on Blackwell, by NVML's change
# log); of NVLink 5 errors received, errors of the link itself, and recoveries.
_NVLINK_FAMILIES = ((161, 162, 163), (208, 211, 215))

# A GPU that answers these with an error speaks for nothing else either.
_CORE = ("nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTemperature")

_FABRIC = {1: "not started", 2: "in progress", 3: "completed"}
# NVML_GPU_FABRIC_HEALTH_MASK_*: two bits each, of which 1 is true, 2 false and 0 not supported; then, in four
# bits, what is wrong with the configuration: 1 is nothing.
_FABRIC_HEALTH = {
    0: "bandwidth degraded",
    2: "route recovery in progress",
    4: "route unhealthy",
    6: "access timeout recovery",
}
_CONFIGURATION = {
    2: "wrong system GUID",
    3: "wrong chassis serial number",
    4: "no partition",
    5: "too few NVLinks",
    6: "incompatible firmware",
    7: "wrong location",
    8: "invalid GPU state",
}
_MIB = 2**20


def read_gpus(host: Host) -> GpuFacts:
    """Return all NVIDIA GPUs of this machine. Nothing if there are none."""
    ours = _on_bus(host)
    if not host.is_real:
        return GpuFacts(on_bus=ours)
    try:
        nvml = Nvml()
    except OSError as error:
        # The driver is loaded, so the library is in a place where this process does not look.
        return GpuFacts(on_bus=ours, unreadable=str(error) if _is_loaded(host) else "")
    except ImportError as error:
        return GpuFacts(on_bus=ours, unreadable=str(error))
    except NvmlError as error:
        # The library alone is no fault: one image may serve nodes with and without GPUs.
        missing = not error.absent or ours or _is_loaded(host)
        return GpuFacts(on_bus=ours, fault=f"the driver does not start: {error}" if missing else "")
    try:
        count = nvml.api.nvmlDeviceGetCount()
        return GpuFacts(
            gpus=tuple(_gpu(nvml, index) for index in range(count)),
            driver=nvml.text("nvmlSystemGetDriverVersion"),
            on_bus=ours,
        )
    except nvml.api.NVMLError as error:
        return GpuFacts(on_bus=ours, fault=f"NVML: {error}")
    finally:
        nvml.close()


def _on_bus(host: Host) -> tuple[str, ...]:
    """Return the PCI addresses of GPUs that the driver should have."""
    return tuple(
        device.address
        for device in pci.devices(host)
        if device.vendor == pci.NVIDIA
        and device.kind in _GPU_KINDS
        # A GPU that another driver holds was given away on purpose: to a virtual machine, say.
        and device.driver in ("", "nvidia")
    )


def _is_loaded(host: Host) -> bool:
    return bool(host.read_or(_LOADED))


def _gpu(nvml: Nvml, index: int) -> Gpu:
    api = nvml.api
    bus = uuid = ""
    nvml.errors = {}
    try:
        handle = api.nvmlDeviceGetHandleByIndex(index)
        bus, uuid = _bus(nvml, handle), nvml.text("nvmlDeviceGetUUID", handle)
        fields = nvml.fields(handle, _FIELDS)
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        gpu = Gpu(
            index=index,
            bus=bus,
            uuid=uuid,
            name=nvml.text("nvmlDeviceGetName", handle),
            memory_mb=None if memory is None else int(memory.total) // _MIB,
            serial=nvml.text("nvmlDeviceGetSerial", handle),
            **_memory_errors(nvml, handle),
            pcie_width=nvml.ask("nvmlDeviceGetCurrPcieLinkWidth", handle),
            pcie_max_width=nvml.ask("nvmlDeviceGetMaxPcieLinkWidth", handle),
            pcie_generation=nvml.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle),
            pcie_max_generation=nvml.ask("nvmlDeviceGetMaxPcieLinkGeneration", handle),
            pcie_replays=nvml.ask("nvmlDeviceGetPcieReplayCounter", handle),
            **_speed(nvml, handle, fields),
            **_links(nvml, handle, fields),
            memory_temperature_c=_optional(float, fields.get((_MEMORY_TEMPERATURE, 0))),
            recovery=_recovery(fields),
        )
    except api.NVMLError as error:
        trouble = {
            api.NVML_ERROR_GPU_IS_LOST: GpuError.LOST,
            api.NVML_ERROR_RESET_REQUIRED: GpuError.RESET_REQUIRED,
        }.get(error.value, GpuError.OTHER if nvml.cannot_say(error.value) else GpuError.ERRORS)
        return Gpu(index=index, bus=bus, uuid=uuid, trouble=trouble, error=str(error))
    errors = tuple(f"{name}: {error}" for name, error in nvml.errors.items())
    broken = [f"{name}: {nvml.errors[name]}" for name in _CORE if name in nvml.errors]
    if not broken:
        return msgspec.structs.replace(gpu, errors=errors)
    return msgspec.structs.replace(gpu, errors=errors, trouble=GpuError.ERRORS, error=broken[0])


def _bus(nvml: Nvml, handle: Any) -> str:
    info = nvml.ask("nvmlDeviceGetPciInfo", handle)
    if info is None:
        return ""
    bus = info.busId.decode() if isinstance(info.busId, bytes) else str(info.busId)
    domain, _, rest = bus.partition(":")
    # NVML writes eight digits of the domain and capitals, the kernel four and small letters.
    return f"{int(domain, 16):04x}:{rest}".lower() if rest else ""


def _optional(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def _memory_errors(nvml: Nvml, handle: Any) -> dict[str, Any]:
    def errors(uncorrected: int, aggregate: int) -> Any:
        return nvml.ask("nvmlDeviceGetTotalEccErrors", handle, uncorrected, aggregate)

    mode = nvml.ask("nvmlDeviceGetEccMode", handle)
    rows = nvml.ask("nvmlDeviceGetRemappedRows", handle) or (None,) * 4
    pages = [nvml.ask("nvmlDeviceGetRetiredPages", handle, cause) for cause in (0, 1)]
    retires = any(found is not None for found in pages)
    pending = nvml.ask("nvmlDeviceGetRetiredPagesPendingStatus", handle) if retires else None
    return {
        "ecc_enabled": _optional(bool, mode[0] if mode else None),
        "corrected": errors(0, 0),
        "uncorrected": errors(1, 0),
        "aggregate_uncorrected": errors(1, 1),
        "sram_threshold_exceeded": _sram_threshold(nvml, handle),
        "remapped_corrected": rows[0],
        "remapped_uncorrected": rows[1],
        "remap_pending": _optional(bool, rows[2]),
        "remap_failed": _optional(bool, rows[3]),
        "retired_pages": sum(len(found or ()) for found in pages) if retires else None,
        "retired_pending": _optional(bool, pending),
    }


def _sram_threshold(nvml: Nvml, handle: Any) -> bool | None:
    make = getattr(nvml.api, "c_nvmlEccSramErrorStatus_v1_t", None)
    if make is None:
        return None
    status = make()
    found = nvml.ask("nvmlDeviceGetSramEccErrorStatus", handle, nvml.reference(status))
    return None if found is None else bool(status.bThresholdExceeded)


def _speed(nvml: Nvml, handle: Any, fields: Fields) -> dict[str, Any]:
    api = nvml.api
    bits = nvml.ask("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
    rates = nvml.ask("nvmlDeviceGetUtilizationRates", handle)
    temperature = nvml.ask("nvmlDeviceGetTemperature", handle, api.NVML_TEMPERATURE_GPU)
    persistence = nvml.ask("nvmlDeviceGetPersistenceMode", handle)
    return {
        "temperature_c": _optional(float, temperature),
        "slowdown_c": _slowdown(nvml, handle, temperature, fields),
        "memory_max_c": _optional(
            float,
            nvml.ask("nvmlDeviceGetTemperatureThreshold", handle, api.NVML_TEMPERATURE_THRESHOLD_MEM_MAX),
        ),
        "throttle": None if bits is None else tuple(why for bit, why in _THROTTLE.items() if bits & bit),
        "idle": None if bits is None else bool(bits & _GPU_IDLE),
        "utilization": None if rates is None else int(rates.gpu),
        "sm_clock": nvml.ask("nvmlDeviceGetClockInfo", handle, api.NVML_CLOCK_SM),
        "max_sm_clock": nvml.ask("nvmlDeviceGetMaxClockInfo", handle, api.NVML_CLOCK_SM),
        "application_clock": nvml.ask("nvmlDeviceGetApplicationsClock", handle, api.NVML_CLOCK_SM),
        "persistence": _optional(bool, persistence),
    }


def _slowdown(nvml: Nvml, handle: Any, temperature: int | None, fields: Fields) -> float | None:
    threshold = nvml.api.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    fixed = nvml.ask("nvmlDeviceGetTemperatureThreshold", handle, threshold)
    if fixed is not None or temperature is None:
        return _optional(float, fixed)
    # Hopper and later tell how far they are from the highest temperature they are made to work at, and
    # where the slowdown lies seen from there: -2 is 2 C above it.
    margin = nvml.ask("nvmlDeviceGetMarginTemperature", handle)
    above = -fields.get((_SLOWDOWN_TLIMIT, 0), 0)
    return None if margin is None else float(temperature + margin + above)


def _recovery(fields: Fields) -> Recovery | None:
    action = fields.get((_RECOVERY_ACTION, 0))
    return None if action is None else recovery(action)


def _links(nvml: Nvml, handle: Any, fields: Fields) -> dict[str, Any]:
    invalid = (nvml.api.NVML_ERROR_INVALID_ARGUMENT,)  # The number of a link that this GPU does not have.
    states = [
        _optional(bool, nvml.ask("nvmlDeviceGetNvLinkState", handle, number, not_here=invalid))
        for number in range(nvml.api.NVML_NVLINK_MAX_LINKS)
    ]
    while states and states[-1] is None:
        states.pop()
    return {
        "links": tuple(states) or None,
        "link_errors": _link_errors(nvml, handle, states, fields),
        **_fabric(nvml, handle),
    }


def _link_errors(nvml: Nvml, handle: Any, states: Sequence[bool | None], fields: Fields) -> int | None:
    totals = [fields[field, 0] for field in _NVLINK_TOTALS if (field, 0) in fields]
    if totals:
        return sum(totals)
    links = [number for number, is_up in enumerate(states) if is_up is not None]
    if not links:
        return None  # NVML takes a question about nothing for a wrong one
    for family in _NVLINK_FAMILIES:
        # One link first: asking all of them for what this generation does not count is work for nothing.
        if nvml.fields(handle, [(field, links[0]) for field in family]):
            return sum(nvml.fields(handle, [(field, link) for link in links for field in family]).values())
    return None


def read_cliques(host: Host) -> tuple[frozenset[str], bool]:
    """Return the NVLink cliques of this machine's GPUs, and whether the fabric of one is still being set
    up.

    Raises no error: GPUs that do not answer have no clique.
    """
    if not host.is_real:
        return frozenset(), False
    try:
        nvml = Nvml()
    except (OSError, ImportError, NvmlError):
        return frozenset(), False
    try:
        handles = map(nvml.api.nvmlDeviceGetHandleByIndex, range(nvml.api.nvmlDeviceGetCount()))
        found = [_fabric(nvml, handle) for handle in handles]
    except nvml.api.NVMLError:
        return frozenset(), False
    finally:
        nvml.close()
    cliques = frozenset(one.get("clique", "") for one in found)
    return cliques - {""}, any(one.get("fabric") in NOT_READY for one in found)


def _fabric(nvml: Nvml, handle: Any) -> dict[str, Any]:
    make = getattr(nvml.api, "c_nvmlGpuFabricInfo_v2_t", None)
    if make is None:
        return {}
    info = make()
    if (
        nvml.ask("nvmlDeviceGetGpuFabricInfoV", handle, nvml.reference(info)) is None
        or info.state not in _FABRIC
    ):
        return {}
    if _FABRIC[info.state] in NOT_READY:
        return {"fabric": _FABRIC[info.state]}
    cluster = bytes(info.clusterUuid)
    return {
        "fabric": str(nvml.api.NVMLError(info.status)) if info.status else "completed",
        "fabric_health": fabric_health(info.healthMask),
        # On a single node without a rack's fabric all bytes are 0.
        "clique": f"{_uuid(cluster)}/{info.cliqueId}" if any(cluster) else "",
    }


def _uuid(data: bytes) -> str:
    text = data.hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def fabric_health(mask: int) -> tuple[str, ...]:
    """Return what of the fabric is degraded by NVML's mask. Pure."""
    wrong = mask >> 8 & 0xF
    found = [text for shift, text in _FABRIC_HEALTH.items() if mask >> shift & 3 == 1]
    return (*found, f"configuration: {_CONFIGURATION.get(wrong, wrong)}") if wrong > 1 else tuple(found)


def read_use(host: Host) -> tuple[Use, ...]:
    """Return who uses which GPU now. GPUs that do not answer are left out: other checks speak of them."""
    if not host.is_real:
        return ()
    try:
        nvml = Nvml()
    except (OSError, ImportError, NvmlError):
        return ()  # read_gpus reports it.
    try:
        found = [_use(host, nvml, index) for index in range(nvml.api.nvmlDeviceGetCount())]
        return tuple(use for use in found if use is not None)
    except nvml.api.NVMLError:
        return ()
    finally:
        nvml.close()


def _use(host: Host, nvml: Nvml, index: int) -> Use | None:
    try:
        handle = nvml.api.nvmlDeviceGetHandleByIndex(index)
        # The second version leaves out what the driver reserves: 600 MiB and more on an idle GPU.
        memory = nvml.ask("nvmlDeviceGetMemoryInfo", handle, nvml.api.nvmlMemory_v2)
        memory = memory or nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        holders = nvml.ask("nvmlDeviceGetComputeRunningProcesses", handle) or ()
    except nvml.api.NVMLError:
        return None
    return Use(
        index=index,
        memory_mb=None if memory is None else int(memory.used) // _MIB,
        processes=tuple(process(host, holder.pid) for holder in holders),
    )
