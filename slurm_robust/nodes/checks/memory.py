"""Checks of the memory: how much there is, how much is free, what it says of its own errors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.model.findings import Finding, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, NOT_LIVE, AnyCheck, Check, Probe, Source, View, judged
from slurm_robust.nodes.counters import HOUR_S, grown, readings
from slurm_robust.util import numa

MEMINFO, SHM, EDAC = "/proc/meminfo", "/dev/shm", "/sys/devices/system/edac/mc"


class Controller(Record):
    """A memory controller's errors since the boot."""

    corrected: int = 0
    uncorrected: int = 0
    worst: str = ""
    """The module that has most of them."""


class MemoryFacts(Record):
    """The node's memory, in MiB."""

    total: int
    available: int
    """Without that of nodes that have no CPUs (:mod:`slurm_robust.util.numa`)."""

    elsewhere: int | None = None
    """What of the total is in nodes that have no CPUs, as GPUs'; None if an earlier release did not look."""

    shared: int = 0
    """What files of /dev/shm and other tmpfs take."""

    huge: int = 0
    """Set aside as huge pages."""

    shm_total: int | None = None
    """The size of /dev/shm; None if it is not mounted."""

    shm_free: int | None = None
    controllers: dict[str, Controller] = {}
    """By name (``mc0``); none if the kernel has no driver for them."""


def gather(host: Host, config: NodeConfig) -> MemoryFacts:
    """Read the sizes and the counters. Raises ``RuntimeError`` if /proc/meminfo does not say."""
    lines = (line.partition(":") for line in host.read(MEMINFO).splitlines())
    pages = {name: int(rest.split()[0]) for name, _, rest in lines if rest.split()[:1]}
    found = numa.read_memory(host.path("/proc"), host.path(str(numa.NODES)))
    if found is None:
        raise RuntimeError(f"{MEMINFO} has no MemTotal or MemAvailable")
    shm_total, shm_free = _space(host)
    return MemoryFacts(
        total=(found.total + found.elsewhere) >> 20,
        available=found.available >> 20,
        elsewhere=found.elsewhere >> 20,
        shared=pages.get("Shmem", 0) // 1024,
        huge=_huge_kib(pages) // 1024,
        shm_total=shm_total,
        shm_free=shm_free,
        controllers={
            name: _controller(host, f"{EDAC}/{name}")
            for name in host.names(EDAC)
            if name.startswith("mc") and name[2:].isdigit()
        },
    )


def _huge_kib(pages: dict[str, int]) -> int:
    """Return huge pages of all sizes; before Linux 4.19 only those of the default size are known."""
    return pages.get("Hugetlb", pages.get("HugePages_Total", 0) * pages.get("Hugepagesize", 0))


def _space(host: Host) -> tuple[int | None, int | None]:
    try:
        space = os.statvfs(host.path(SHM))
    except OSError:
        return None, None
    return space.f_blocks * space.f_frsize // 2**20, space.f_bavail * space.f_frsize // 2**20


def _controller(host: Host, folder: str) -> Controller:
    """Return one controller; its modules are read only if something went wrong."""
    corrected = host.number(f"{folder}/ce_count") or 0
    uncorrected = host.number(f"{folder}/ue_count") or 0
    worst = _worst_module(host, folder) if corrected or uncorrected else ""
    return Controller(corrected=corrected, uncorrected=uncorrected, worst=worst)


def _worst_module(host: Host, folder: str) -> str:
    errors = {}
    for name in host.names(folder):
        if name.startswith(("dimm", "rank")):
            module = f"{folder}/{name}"
            label = host.read_or(f"{module}/dimm_label") or name
            uncorrected = host.number(f"{module}/dimm_ue_count") or 0
            errors[label] = (uncorrected, host.number(f"{module}/dimm_ce_count") or 0)
    worst = max(errors, key=lambda label: errors[label], default="")
    return worst if worst and any(errors[worst]) else ""


# Seconds only: what is free now is not what was free a minute ago.
SOURCE = Source(name="memory", facts=MemoryFacts, gather=gather, fresh_s=10.0, history_s=HOUR_S)


def judge_size(view: View[MemoryFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the size against the site's limit, else against the baseline.

    Memory of GPUs comes and goes with their driver, so it is no part of the baseline.
    """
    total, limits = view.facts.total, config.memory
    least = limits.min_total_mb
    source = MEMINFO
    if least is None and view.baseline is not None:
        usual = view.baseline.total
        if view.baseline.elsewhere is not None:
            usual -= view.baseline.elsewhere
            total -= view.facts.elsewhere or 0
        least = int(usual * (1 - limits.max_missing_share))
        source = f"{MEMINFO}, baseline"
    missing = least is not None and total < least
    yield judged(
        "memory.size",
        f"only {total} MiB of memory: look for a module that failed" if missing else "",
        value=f"{total} MiB",
        limit="" if least is None else f"at least {least} MiB",
        source=source,
        suggestion=Suggestion.REPLACE,
    )


def judge_free(view: View[MemoryFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge free memory if no job runs. Huge pages are set aside on purpose; tmpfs is another check's."""
    if not view.job_gone:
        return
    facts = view.facts
    usable = max(1, facts.total - (facts.elsewhere or 0) - facts.huge)
    share = min(1.0, (facts.available + facts.shared) / usable)
    least = config.memory.min_free_share
    yield judged(
        "memory.free",
        f"{1 - share:.0%} of memory in use though no job runs" if share < least else "",
        value=f"{share:.0%} available",
        limit=f"at least {least:.0%}",
        source=MEMINFO,
        suggestion=Suggestion.REBOOT,
    )


def judge_shm(view: View[MemoryFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge /dev/shm if no job runs: what a job keeps there is its own business."""
    total, free = view.facts.shm_total, view.facts.shm_free
    if not view.job_gone or not total or free is None:
        return
    least = config.memory.min_free_shm_share
    bad = free / total < least
    yield judged(
        "memory.shm",
        f"{SHM} has {free} MiB free though no job runs: remove what is left over" if bad else "",
        subject=SHM,
        value=f"{free} of {total} MiB free",
        limit=f"at least {least:.0%}",
        source=f"statvfs {SHM}",
        blame=Party.JOB,
    )


def _corrected_by(name: str) -> Callable[[MemoryFacts], int | None]:
    def value(facts: MemoryFacts) -> int | None:
        controller = facts.controllers.get(name)
        return controller.corrected if controller else None

    return value


def judge_ecc(view: View[MemoryFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield one finding for each controller."""
    for name, controller in view.facts.controllers.items():
        recent = grown(readings(view, _corrected_by(name)), HOUR_S, view.at)
        most = config.memory.max_corrected_per_hour
        module = f", most in {controller.worst}" if controller.worst else ""
        text, suggestion = "", Suggestion.MONITOR
        if controller.uncorrected:
            # One error may have been a particle; a module that does it again is broken.
            again = controller.uncorrected > 1
            suggestion = Suggestion.REPLACE if again else Suggestion.REBOOT
            text = f"{controller.uncorrected} uncorrected memory errors since the boot{module}"
        elif recent > most:
            text = f"{recent} corrected memory errors within an hour{module}"
        yield judged(
            "memory.ecc",
            text,
            subject=name,
            value=f"{controller.uncorrected} uncorrected, {controller.corrected} corrected since the boot",
            limit=f"0 uncorrected, {most} corrected in an hour",
            source=f"{EDAC}/{name}",
            suggestion=suggestion,
        )


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="memory.size",
        source=SOURCE,
        judge=judge_size,
        written_by=Writer.KERNEL,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        hangs=True,
        explain=(
            "How much memory the kernel has, against memory.min_total_mb or the baseline. A module that "
            "fails its test at boot is left out silently: find it in the BMC's log, reseat or replace it. "
            "Memory of GPUs, which comes with their driver (GB200, NUMA mode), is no part of the baseline."
        ),
    ),
    Check(
        name="memory.free",
        source=SOURCE,
        judge=judge_free,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "How much memory is available where no job runs (memory.min_free_share). What is missing is "
            "held by processes that were left over, by the kernel, or by a file system's own cache that "
            "does not count as available (ZFS: lower the limit). Files in tmpfs and huge pages are not "
            "counted as missing."
        ),
    ),
    Check(
        name="memory.shm",
        source=SOURCE,
        judge=judge_shm,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "Free space of /dev/shm where no job runs: files there take memory until they are "
            "removed. See snapshots.stale for those of training jobs."
        ),
    ),
    Check(
        name="memory.ecc",
        source=SOURCE,
        judge=judge_ecc,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain=(
            "Errors that memory controllers count (EDAC). An uncorrected one may have destroyed data: "
            "reboot and test, replace the module when it comes again. Many corrected ones announce that: "
            "watch the module."
        ),
    ),
)
