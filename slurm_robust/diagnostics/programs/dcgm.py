"""NVIDIA's own tests, if they are installed: ``dcgmi diag``, and with much time its EUD.

They have been seen to leave clocks changed (EUD removes a frequency lock), which makes a GPU slow for every
job after it. So settings are read before and put back afterwards.
"""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from slurm_robust.diagnostics.part import Measurement, NotHere, TestPart, failed, late, unknown
from slurm_robust.model.record import Record
from slurm_robust.util.program import run_program

# Seconds that must be left for a level of tests; 4 has the EUD (and needs root).
_LEVELS = ((7200.0, 4), (2400.0, 3), (600.0, 2), (0.0, 1))

_MAX_BYTES = 2**24


def run(part: TestPart) -> Measurement:
    """See the module. Raises ``NotHere`` if it is not installed."""
    program = shutil.which("dcgmi")
    if program is None:
        raise NotHere("dcgmi is not installed")
    level = next(level for seconds, level in _LEVELS if part.limit_s >= seconds)
    with restored() as trouble:
        limit_s = max(1.0, part.limit_s - 2.0)
        command = [program, "diag", "--run", str(level), "--json"]
        done = run_program(command, limit_s=limit_s, max_bytes=_MAX_BYTES, merge=True)
        found = late(limit_s, "dcgmi") if done.code is None else read(done.output.decode(errors="replace"))
    # Not a fault of the GPU, but a person must know.
    text = "; ".join((found.text, *trouble)).strip("; ")
    return msgspec.structs.replace(found, text=text, value=f"level {level}")


def read(output: str) -> Measurement:
    """Return what ``dcgmi diag --json`` says, of release 2 to 4."""
    try:
        document = msgspec.json.decode(output[output.index("{") :])
        (report,) = [v for v in document.values() if isinstance(v, dict) and "test_categories" in v]
        results = [*_results(report)]
    except (ValueError, AttributeError, KeyError, TypeError):
        return unknown(f"dcgmi says: {' '.join(output.split())[:200] or 'nothing'}")
    failures = [text for status, text in results if status == "fail"]
    if failures:
        return failed("; ".join(dict.fromkeys(failures))[:400])
    if not any(status == "pass" for status, _ in results):
        return unknown("dcgmi ran no test")
    return Measurement()


def _results(report: dict[str, list[dict[str, list[dict[str, object]]]]]) -> Iterator[tuple[str, str]]:
    """Yield status and text of every result of every test."""
    for category in report["test_categories"]:
        for test in category["tests"]:
            results = test["results"]
            for result in results if isinstance(results, list) else ():
                gpu = next((result[k] for k in ("gpu_id", "gpu_ids", "entity_id") if k in result), "")
                text = _text(result.get("warnings")) or _text(result.get("info"))
                yield str(result["status"]).lower(), f"gpu{gpu}: {test['name']}: {text}".rstrip(": ")


def _text(value: object) -> str:
    """Return the text: a text, a list of texts, or a list of objects with one, as the release has it."""
    if isinstance(value, list):
        return "; ".join(filter(None, map(_text, value)))
    if isinstance(value, dict):
        return str(value.get("warning", ""))
    return str(value or "")


class GpuSettings(Record):
    """What is set on one GPU and DCGM may change; None if it cannot be read."""

    persistence: int | None
    graphics_mhz: int | None
    memory_mhz: int | None
    power_mw: int | None
    compute_mode: int | None


@contextmanager
def restored(nvml: Any = None) -> Iterator[list[str]]:
    """Put back what the block changes of the GPUs' settings; yields a list that gets what stays changed.

    ``nvml`` is ``pynvml`` or what behaves like it. Without a driver, nothing is done.
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
        before = [settings(nvml, handle) for handle in handles]
        yield trouble
        for index, (handle, wanted) in enumerate(zip(handles, before, strict=True)):
            trouble += (f"gpu{index}: {text}" for text in put_back(nvml, handle, wanted))
    finally:
        nvml.nvmlShutdown()


def settings(nvml: Any, handle: Any) -> GpuSettings:
    """Return what is set now."""

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
    now = settings(nvml, handle)

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
