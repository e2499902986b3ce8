"""Judges what makes GPUs slow: heat, brakes, clocks, and a driver that goes to sleep. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.gpus.facts import Gpu, Throttle
from slurm_robust.nodes.gpus.judging import GpuView, answering, earlier, finding, twin

THROTTLE = "gpu.throttle"
TEMPERATURE = "gpu.temperature"
CLOCKS = "gpu.clocks"
PERSISTENCE = "gpu.persistence"

_HARDWARE = (Throttle.HW_THERMAL, Throttle.POWER_BRAKE, Throttle.HW_SLOWDOWN)
_MARGIN_C = 2.0
# Some drivers say 0 for a threshold that they do not know.
_PLAUSIBLE_C = 50.0
_BUSY = 90
_SLOW_SHARE = 0.5


def judge_throttle(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Find brakes of the hardware. Idling, application clocks and a power cap are wishes, not faults."""
    for gpu in answering(view.facts):
        if gpu.throttle is None:
            continue
        hardware = [why for why in _HARDWARE if why in gpu.throttle]
        # The hardware brakes for a moment in healthy nodes too, when many GPUs draw power together.
        lasts = gpu.idle or any(_braked(old) for old in earlier(view, gpu)[-1:])
        reasons = ", ".join(why.value for why in gpu.throttle)
        yield finding(
            THROTTLE,
            gpu,
            reasons,
            value=reasons or "none",
            limit="none",
            source="clocks event reasons",
            suggestion=Suggestion.REPLACE if hardware and lasts else Suggestion.MONITOR,
        )


def _braked(gpu: Gpu) -> bool:
    return any(why in _HARDWARE for why in gpu.throttle or ())


def judge_temperature(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that it is below what the site allows, else below where the hardware would slow down."""
    limits = config.gpu
    for gpu in answering(view.facts):
        if gpu.temperature_c is None and gpu.memory_temperature_c is None:
            continue
        found = [
            _temperature(gpu, "", gpu.temperature_c, limits.max_temperature_c, gpu.slowdown_c),
            _temperature(
                gpu, "memory ", gpu.memory_temperature_c, limits.max_memory_temperature_c, gpu.memory_max_c
            ),
        ]
        known = [one for one in found if one is not None]
        failed = [one for one in known if one.outcome is Outcome.FAIL]
        yield from (failed or known)[:1]


def _temperature(
    gpu: Gpu, what: str, value: float | None, site: float | None, driver: float | None
) -> Finding | None:
    if value is None:
        return None
    limit = site
    if limit is None and driver is not None and driver >= _PLAUSIBLE_C:
        limit = driver - _MARGIN_C
    hot = limit is not None and value > limit
    return finding(
        TEMPERATURE,
        gpu,
        f"{what}{value:g} C; see to its cooling" if hot else "",
        value=f"{value:g} C",
        limit="" if limit is None else f"{limit:g} C",
        source=f"{what}temperature",
        suggestion=Suggestion.REPLACE,
    )


def judge_clocks(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that a GPU works at its speed, and that no clocks were left locked, if the site wants that."""
    for gpu in answering(view.facts):
        top = gpu.max_sm_clock
        if top is None or gpu.sm_clock is None:
            continue
        bad, source, value, limit = "", "SM clock", gpu.sm_clock, round(top * _SLOW_SHARE)
        if (gpu.utilization or 0) >= _BUSY and gpu.sm_clock < limit:
            bad = f"works at {gpu.sm_clock} of {top} MHz"
        elif config.gpu.application_clocks and gpu.application_clock is not None:
            source, value, limit = "application clock", gpu.application_clock, top
            bad = f"application clock {value} of {top} MHz" if value < top else ""
        yield finding(
            CLOCKS,
            gpu,
            bad,
            value=f"{value} MHz",
            limit=f"{limit} MHz",
            source=source,
            blame=Party.SITE if source == "application clock" else Party.NODE,
        )


def judge_persistence(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that the driver stays loaded between jobs, if the site or the baseline wants it."""
    for gpu in answering(view.facts):
        wanted = config.gpu.persistence
        if wanted is None:
            known = twin(view.baseline, gpu)
            wanted = known.persistence if known else None
        if gpu.persistence is None or not wanted:
            continue
        yield finding(
            PERSISTENCE,
            gpu,
            "" if gpu.persistence else "persistence mode is off; start nvidia-persistenced",
            value="on" if gpu.persistence else "off",
            limit="on",
            source="persistence mode",
            blame=Party.SITE,
        )
