"""Judges the memory of GPUs, and what their driver wants to be done. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_robust.config.node import GpuLimits, NodeConfig
from slurm_robust.kernel.recovery import Recovery
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion
from slurm_robust.nodes.gpus.facts import NVIDIA, Gpu
from slurm_robust.nodes.gpus.judging import GpuView, answering, counted, finding, risen, twin

ECC = "gpu.ecc"
REMAP = "gpu.remap"
RETIRED = "gpu.retired_pages"
RECOVERY = "gpu.recovery"

# NVIDIA exchanges a GPU with this many retired pages ("Dynamic Page Retirement", RMA policy).
_MAX_RETIRED_PAGES = 60


def judge_ecc(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Judge ECC: no new uncorrected error, few corrected ones, ECC as in the baseline.

    The driver counts uncorrected errors until it is loaded anew, also those that it has contained: the page
    is out of use, and new jobs may start ("NVIDIA GPU Memory Error Management", on dynamic page offlining).
    So old ones are only reported; if more is needed, the recovery action and the XID say so.
    """
    for gpu in answering(view.facts):
        if gpu.ecc_enabled is None and gpu.uncorrected is None:
            continue
        findings = list(_ecc(view, config.gpu, gpu))
        # The first failure, else the finding on uncorrected errors.
        yield next((found for found in findings if found.outcome is Outcome.FAIL), findings[1])


def _ecc(view: GpuView, limits: GpuLimits, gpu: Gpu) -> Iterator[Finding]:
    """Yield one finding per question, gravest first."""
    lifetime = gpu.aggregate_uncorrected or 0
    new = risen(view, gpu, lambda known: known.uncorrected)
    old_ones = (gpu.uncorrected or 0) - new
    old = twin(view.baseline, gpu)
    per_hour = risen(view, gpu, lambda known: known.corrected)
    yield finding(
        ECC,
        gpu,
        "SRAM errors above the maker's threshold" if gpu.sram_threshold_exceeded else "",
        value="exceeded" if gpu.sram_threshold_exceeded else "not exceeded",
        limit="maker's threshold",
        source="SRAM ECC status",
        suggestion=Suggestion.REPLACE,
    )
    yield counted(
        ECC,
        gpu,
        "new uncorrected memory errors",
        new,
        limits.max_volatile_uncorrected,
        source="uncorrected ECC errors, last hour",
        suggestion=Suggestion.RESET,
    )
    off = gpu.ecc_enabled is False and old is not None and old.ecc_enabled is True
    yield finding(
        ECC,
        gpu,
        "ECC is off" if off else "",
        value="on" if gpu.ecc_enabled else "off",
        limit="as in the baseline",
        source="ECC mode",
        blame=Party.SITE,
    )
    yield counted(
        ECC,
        gpu,
        "uncorrected memory errors before",
        old_ones,
        limits.max_volatile_uncorrected,
        source="uncorrected ECC errors since the driver was loaded",
    )
    # A GPU's past, which remapping has dealt with: worth attention, no reason to keep jobs away.
    yield counted(
        ECC,
        gpu,
        "uncorrected errors in its life",
        lifetime,
        limits.max_aggregate_uncorrected,
        source="uncorrected ECC errors, lifetime",
    )
    yield counted(
        ECC,
        gpu,
        "corrected errors in an hour",
        per_hour,
        limits.max_corrected_per_hour,
        source="corrected ECC errors, last hour",
    )


def judge_remap(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Find spare rows that took the place of bad ones, or wait for a reset to do so.

    While they wait, "unaffected applications can continue running […] and new workloads can be launched"
    ("NVIDIA GPU Memory Error Management", on the flag); if that is not so, the recovery action asks for more.
    """
    for gpu in answering(view.facts):
        if gpu.remap_pending is None and gpu.remap_failed is None:
            continue
        bad, suggestion = "", Suggestion.NONE
        if gpu.remap_failed:
            bad, suggestion = "row remapping failed", Suggestion.REPLACE
        elif gpu.remap_pending:
            bad, suggestion = "row remapping waits for a reset", Suggestion.MONITOR
        yield finding(
            REMAP,
            gpu,
            bad,
            value=f"{gpu.remapped_uncorrected or 0} uncorrected, {gpu.remapped_corrected or 0} corrected",
            limit="none pending, none failed",
            source="remapped rows",
            suggestion=suggestion,
        )


def judge_retired_pages(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Find pages taken out of use, on GPUs that do not remap rows."""
    for gpu in answering(view.facts):
        if gpu.retired_pages is None:
            continue
        bad, suggestion = "", Suggestion.NONE
        if gpu.vendor == NVIDIA and gpu.retired_pages >= _MAX_RETIRED_PAGES:
            bad, suggestion = f"{gpu.retired_pages} retired pages", Suggestion.REPLACE
        elif gpu.retired_pending:
            bad, suggestion = "page retirement waits for a reset", Suggestion.RESET
        yield finding(
            RETIRED,
            gpu,
            bad,
            value=gpu.retired_pages,
            limit=f"below {_MAX_RETIRED_PAGES}" if gpu.vendor == NVIDIA else "none pending",
            source="retired pages",
            suggestion=suggestion,
        )


def judge_recovery(view: GpuView, config: NodeConfig) -> Iterator[Finding]:
    """Yield what the driver itself says that a GPU needs."""
    for gpu in answering(view.facts):
        if gpu.recovery is None:
            continue
        if gpu.recovery is Recovery.UNKNOWN:
            yield Finding(
                check=RECOVERY,
                outcome=Outcome.UNKNOWN,
                subject=gpu.label,
                text="the driver wants a recovery that is not known here",
                source="GPU recovery action",
            )
            continue
        wanted = gpu.recovery is not Recovery.NONE
        yield finding(
            RECOVERY,
            gpu,
            f"the driver wants: {gpu.recovery.value}" if wanted else "",
            value=gpu.recovery.value,
            limit=Recovery.NONE.value,
            source="GPU recovery action",
            suggestion=gpu.recovery.suggestion,
        )
