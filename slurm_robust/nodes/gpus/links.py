"""Judges the links of GPUs: NVLink, its fabric, and PCIe. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.config.node import GpuLimits, NodeConfig
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.gpus.facts import Gpu
from slurm_robust.nodes.gpus.judging import GpuView, answering, counted, earlier, finding, risen, twin

NVLINK = "gpu.nvlink"
PCIE = "gpu.pcie"


def judge_nvlink(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """As many links up as the site, the baseline or an earlier run says; the fabric is ready."""
    for gpu in answering(view.facts):
        if gpu.links is None:
            continue
        if gpu.fabric == "in progress":
            yield Finding(
                check=NVLINK,
                outcome=Outcome.UNKNOWN,
                subject=gpu.label,
                text="NVLink fabric is being initialised",
                source="fabric state",
            )
            continue
        found = [_links_up(view, config.gpu, gpu), _fabric(gpu), _link_errors(view, config.gpu, gpu)]
        failed = [one for one in found if one.outcome is Outcome.FAIL]
        yield (failed or found)[0]


def _links_up(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Finding:
    up = gpu.links_up
    wanted, source, suggestion = _wanted_links(view, limits, gpu)
    bad = ""
    if up < wanted:
        down = " ".join(str(number) for number, is_up in enumerate(gpu.links or ()) if is_up is False)
        bad = f"{up} of {wanted} NVLinks up" + (f", down: {down}" if down else "")
    return finding(
        NVLINK, gpu, bad, value=up, limit=wanted, source=source, suggestion=suggestion, blame=Party.FABRIC
    )


def _wanted_links(view: GpuView, limits: GpuLimits, gpu: Gpu) -> tuple[int, str, Suggestion]:
    """How many links should be up, who says so, and what to do if they are not."""
    if limits.min_nvlinks is not None:
        return limits.min_nvlinks, "NVLink state, gpu.min_nvlinks", Suggestion.RESET
    known = twin(view.baseline, gpu)
    if known is not None and known.links is not None:
        return known.links_up, "NVLink state, baseline", Suggestion.RESET
    before = max((old.links_up for old in earlier(view, gpu)), default=0)
    if before > gpu.links_up:
        return before, "NVLink state, earlier in this boot", Suggestion.RESET
    # Cards with bridges may differ from each other, so what neighbours have is only a hint.
    neighbours = max(other.links_up for other in answering(view.facts) if other.name == gpu.name)
    return neighbours, "NVLink state, other GPUs", Suggestion.MONITOR


def _fabric(gpu: Gpu) -> Finding:
    ready = gpu.fabric in (None, "completed")
    return finding(
        NVLINK,
        gpu,
        "" if ready else f"NVLink fabric: {gpu.fabric}; see nvidia-fabricmanager",
        value=gpu.fabric or "none",
        limit="completed",
        source="fabric state",
        suggestion=Suggestion.RESET,
        blame=Party.FABRIC,
    )


def _link_errors(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Finding:
    new = risen(view, gpu, lambda known: known.link_errors)
    too_many = new > limits.max_link_errors_per_hour
    return finding(
        NVLINK,
        gpu,
        f"NVLink replays and recoveries in an hour: {new}" if too_many else "",
        value=new,
        limit=limits.max_link_errors_per_hour,
        source="NVLink error counters",
        blame=Party.FABRIC,
    )


def judge_pcie(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Lanes and speed as the site or the baseline says, else as the GPU and its slot could have."""
    for gpu in answering(view.facts):
        if gpu.pcie_width is None and gpu.pcie_generation is None:
            continue
        found = [
            one
            for one in (_width(view, config.gpu, gpu), _generation(view, config.gpu, gpu))
            if one is not None
        ]
        found.append(_replays(view, config.gpu, gpu))
        failed = [one for one in found if one.outcome is Outcome.FAIL]
        yield (failed or found)[0]


def _width(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Finding | None:
    if gpu.pcie_width is None:
        return None
    known = twin(view.baseline, gpu)
    wanted, source = limits.min_pcie_width, "gpu.min_pcie_width"
    suggestion = Suggestion.REPLACE
    if wanted is None and known is not None:
        wanted, source = known.pcie_width, "baseline"
    if wanted is None:
        # Some slots are wired with fewer lanes than they claim.
        wanted, source, suggestion = gpu.pcie_max_width, "what GPU and slot can", Suggestion.MONITOR
    narrow = wanted is not None and gpu.pcie_width < wanted
    return finding(
        PCIE,
        gpu,
        f"PCIe x{gpu.pcie_width} instead of x{wanted}; reseat the card" if narrow else "",
        value=f"x{gpu.pcie_width}",
        limit=f"x{wanted}" if wanted else "",
        source=f"PCIe link width, {source}",
        suggestion=suggestion,
    )


def _generation(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Finding | None:
    if gpu.pcie_generation is None:
        return None
    known = twin(view.baseline, gpu)
    wanted, source, suggestion = limits.min_pcie_generation, "gpu.min_pcie_generation", Suggestion.REBOOT
    if wanted is None:
        wanted, source = (
            (known.pcie_generation, "baseline") if known else (gpu.pcie_max_generation, "maximum")
        )
        # Many GPUs slow their link down when they have nothing to do.
        is_busy = gpu.idle is False and bool(gpu.utilization)
        suggestion = Suggestion.REBOOT if known and is_busy else Suggestion.MONITOR
        if known is None and not is_busy:
            wanted = None
    slow = wanted is not None and gpu.pcie_generation < wanted
    return finding(
        PCIE,
        gpu,
        f"PCIe generation {gpu.pcie_generation} instead of {wanted}" if slow else "",
        value=f"generation {gpu.pcie_generation}",
        limit=f"generation {wanted}" if wanted else "",
        source=f"PCIe link speed, {source}",
        suggestion=suggestion,
    )


def _replays(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Finding:
    new = risen(view, gpu, lambda known: known.pcie_replays)
    return counted(
        PCIE,
        gpu,
        "PCIe replays in an hour",
        new,
        limits.max_pcie_replays_per_hour,
        source="PCIe replay counter",
    )
