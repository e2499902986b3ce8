"""Judges the links of GPUs: NVLink, its fabric, and PCIe. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from slurm_robust.config.node import GpuLimits, NodeConfig
from slurm_robust.kernel.shapes import POST_RX, SHAPES
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.check import SETTLED_S, judged
from slurm_robust.nodes.gpus.facts import Gpu
from slurm_robust.nodes.gpus.judging import GpuView, answering, counted, earlier, finding, risen, twin

NVLINK = "gpu.nvlink"
FABRIC = "gpu.fabric"
PCIE = "gpu.pcie"

LINK_STATE = "NVLink state"
"""How the source of a finding about links that are up or down begins, whatever its text says."""

NOT_READY = ("not started", "in progress")
"""States of a fabric that is not set up, or not yet."""


def judge_nvlink(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge whether the links that the site, the baseline or an earlier run says are up, the fabric ready."""
    for gpu in answering(view.facts):
        if gpu.links is None and gpu.fabric is None:
            continue
        fabric = _fabric(view, gpu)
        if fabric.outcome is Outcome.UNKNOWN:
            yield fabric
            continue
        found = [fabric]
        if gpu.links is not None:
            found = [_links_up(view, config.gpu, gpu), fabric, _link_errors(view, config.gpu, gpu)]
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
    """Return how many links should be up, who says so, and what to do if they are not."""
    if limits.min_nvlinks is not None:
        return limits.min_nvlinks, f"{LINK_STATE}, gpu.min_nvlinks", Suggestion.RESET
    known = twin(view.baseline, gpu)
    if known is not None and known.links is not None:
        return known.links_up, f"{LINK_STATE}, baseline", Suggestion.RESET
    before = max((old.links_up for old in earlier(view, gpu)), default=0)
    if before > gpu.links_up:
        return before, f"{LINK_STATE}, earlier in this boot", Suggestion.RESET
    # Cards with bridges may differ from each other, so what neighbours have is only a hint.
    neighbours = max(other.links_up for other in answering(view.facts) if other.name == gpu.name)
    return neighbours, f"{LINK_STATE}, other GPUs", Suggestion.MONITOR


def _fabric(view: GpuView, gpu: Gpu) -> Finding:
    about = partial(
        finding, NVLINK, gpu, value=gpu.fabric or "none", limit="completed", source="fabric state"
    )
    if gpu.fabric in NOT_READY:
        since = _not_ready_since(view, gpu)
        minutes = int(view.at - since) // 60
        if view.at - since >= SETTLED_S:
            bad = f"NVLink fabric {gpu.fabric} for {minutes} minutes: CUDA will fail with 802"
            return about(
                f"{bad}; restart nvidia-fabricmanager, else reboot",
                suggestion=Suggestion.RESET,
                blame=Party.FABRIC,
            )
        if gpu.fabric == "in progress" or view.facts.uptime_s is not None:
            return Finding(
                check=NVLINK,
                outcome=Outcome.UNKNOWN,
                subject=gpu.label,
                text="NVLink fabric is being initialised",
                value=f"{gpu.fabric} for {minutes} minutes",
                source="fabric state",
            )
    if gpu.fabric in (None, "completed"):
        bad = f"NVLink fabric: {', '.join(gpu.fabric_health)}" if gpu.fabric_health else ""
        return about(bad, suggestion=Suggestion.MONITOR, blame=Party.FABRIC)
    bad = f"NVLink fabric: {gpu.fabric}; see nvidia-fabricmanager"
    return about(bad, suggestion=Suggestion.RESET, blame=Party.FABRIC)


def _not_ready_since(view: GpuView, gpu: Gpu) -> float:
    """Return since when at the latest: the boot, or the last run of this boot that saw it ready."""
    uptime = view.facts.uptime_s
    samples = [sample for sample in view.before if sample.boot_id == view.boot_id and sample.at <= view.at]
    since = view.at - uptime if uptime is not None else min((one.at for one in samples), default=view.at)
    for sample in samples:
        known = twin(sample.facts, gpu)
        if known is not None and known.fabric not in NOT_READY:
            since = max(since, sample.at)
    return since


def judge_fabric(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge that the node's GPUs are of one NVLink clique, that of the baseline. Nothing without cliques."""
    cliques = sorted({gpu.clique for gpu in answering(view.facts)} - {""})
    if not cliques:
        return
    known = sorted({gpu.clique for gpu in answering(view.baseline)} - {""}) if view.baseline else []
    bad = ""
    if len(cliques) > 1:
        bad = f"GPUs are of {len(cliques)} NVLink cliques: {', '.join(cliques[:3])}"
    elif known and cliques != known:
        bad = "NVLink clique is not the one of the baseline"
    yield judged(
        FABRIC,
        bad,
        value=f"clique {', '.join(cliques[:3])}",
        limit=f"clique {', '.join(known[:3])}" if known else "one clique",
        source="fabric info",
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
    """Judge lanes and speed by the site or the baseline, else by what the GPU and its slot could have."""
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


def together(findings: Sequence[Finding]) -> list[Finding]:
    """Return the same findings, some of them graver for what others say.

    Links that are down while the driver fails to detect peers stay down: only a reboot helps, no reset.
    """
    failed = [found for found in findings if found.outcome is Outcome.FAIL]
    undetected = SHAPES[POST_RX]
    stuck = any(found.check == undetected.check and found.text == undetected.text for found in failed)
    down = [found for found in failed if found.check == NVLINK and found.source.startswith(LINK_STATE)]
    if not (stuck and down):
        return list(findings)
    graver = {id(found) for found in down if found.suggestion.weight < Suggestion.REBOOT.weight}
    return [
        replace(
            found,
            text=f"{found.text}; the driver cannot detect them (post-RX-detect), reboot",
            suggestion=Suggestion.REBOOT,
        )
        if id(found) in graver
        else found
        for found in findings
    ]
