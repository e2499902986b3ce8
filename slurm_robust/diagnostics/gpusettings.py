"""Settings of GPUs that tests of others may change, read before and put back afterwards."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slurm_robust.model.record import Record


class GpuSettings(Record):
    """What is set on one GPU; None where it cannot be read. Clocks in MHz, power in mW."""

    persistence: int | None
    graphics_mhz: int | None
    memory_mhz: int | None
    power_mw: int | None
    compute_mode: int | None


@contextmanager
def restored(nvml: Any = None) -> Iterator[list[str]]:
    """Put back what the block changes. What cannot be put back is in the list afterwards, as text.

    ``nvml`` is ``pynvml`` or what behaves like it. Where there is no driver, nothing is done.
    """
    if nvml is None:
        nvml = importlib.import_module("pynvml")
    trouble: list[str] = []
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield trouble
        return
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        before = [read(nvml, handle) for handle in handles]
        yield trouble
        for index, (handle, wanted) in enumerate(zip(handles, before, strict=True)):
            trouble += (f"gpu{index}: {text}" for text in put_back(nvml, handle, wanted))
    finally:
        nvml.nvmlShutdown()


def read(nvml: Any, handle: Any) -> GpuSettings:
    """What is set now."""

    def ask(name: str, *args: int) -> int | None:
        try:
            return int(getattr(nvml, name)(handle, *args))
        except nvml.NVMLError:
            return None  # consumer GPUs and old drivers lack some

    return GpuSettings(
        persistence=ask("nvmlDeviceGetPersistenceMode"),
        graphics_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_GRAPHICS),
        memory_mhz=ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
        power_mw=ask("nvmlDeviceGetPowerManagementLimit"),
        compute_mode=ask("nvmlDeviceGetComputeMode"),
    )


def put_back(nvml: Any, handle: Any, wanted: GpuSettings) -> Iterator[str]:
    """Set what differs from ``wanted``; yields what could not be set."""
    now = read(nvml, handle)

    def differs(*names: str) -> bool:
        return any(getattr(wanted, n) not in (None, getattr(now, n)) for n in names)

    def attempt(what: str, set_it: Callable[..., object], *values: int | None) -> Iterator[str]:
        try:
            set_it(handle, *values)
        except nvml.NVMLError as error:
            yield f"{what} stays changed ({error})"

    if differs("persistence"):
        yield from attempt("persistence mode", nvml.nvmlDeviceSetPersistenceMode, wanted.persistence)
    if differs("graphics_mhz", "memory_mhz") and None not in (wanted.graphics_mhz, wanted.memory_mhz):
        clocks = (wanted.memory_mhz, wanted.graphics_mhz)
        yield from attempt("application clocks", nvml.nvmlDeviceSetApplicationsClocks, *clocks)
    if differs("power_mw"):
        yield from attempt("power limit", nvml.nvmlDeviceSetPowerManagementLimit, wanted.power_mw)
    if differs("compute_mode"):
        yield from attempt("compute mode", nvml.nvmlDeviceSetComputeMode, wanted.compute_mode)
