"""What a hook saw of its node, for the job's owner; and what the prolog keeps of it for the epilog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.xid import SXID, XID
from slurm_robust.model.findings import Outcome
from slurm_robust.model.nodeseen import DriverError, HookSeen
from slurm_robust.model.record import UNREADABLE
from slurm_robust.nodes.checks import ethernet, gpu, infiniband, kernel
from slurm_robust.nodes.memory import Memory
from slurm_robust.nodes.verdict import Report

MAX_KEPT = 64
"""Jobs of which the node keeps what the prolog saw; the oldest give way."""

MAX_FINDINGS, MAX_ERRORS = 64, 64
SKIP = "srobust-skip-checks"
"""The word in a job's comment that asks for a prolog without tests."""

_GPU_COUNTERS = (
    *("corrected", "uncorrected", "remapped_corrected", "remapped_uncorrected"),
    *("link_errors", "pcie_replays"),
)


def wants_no_tests(config: NodeConfig, environ: Mapping[str, str]) -> bool:
    """Return whether the site lets jobs skip the prolog's tests, and this one's comment asks for that.

    slurmd itself sets the variable (``prep_script_slurmd.c``), from what slurmctld has of the job; releases
    that do not set it test every job.
    """
    return config.hooks.may_skip and SKIP in environ.get("SLURM_JOB_COMMENT", "").replace(",", " ").split()


def seen_by(report: Report, memory: Memory) -> HookSeen:
    """Return what a run of the checks saw, with the counters that it has read."""
    failed = [found for found in report.findings if found.outcome is Outcome.FAIL]
    return HookSeen(
        at=report.at,
        boot_id=report.boot_id,
        fit=report.fit,
        reason=report.reason,
        findings=tuple(failed[:MAX_FINDINGS]),
        counters=dict(_counters(report, memory)),
        cliques=_cliques(report, memory),
    )


def _cliques(report: Report, memory: Memory) -> tuple[str, ...]:
    gpus = memory.newest(gpu.GPUS, report.at, report.boot_id)
    return tuple(sorted({one.clique for one in gpus.facts.gpus} - {""})) if gpus is not None else ()


def _counters(report: Report, memory: Memory) -> Iterator[tuple[str, dict[str, int]]]:
    if (ports := memory.newest(infiniband.SOURCE, report.at, report.boot_id)) is not None:
        for name, port in ports.facts.ports.items():
            if port.counters is not None:
                yield name, port.counters
    if (links := memory.newest(ethernet.SOURCE, report.at, report.boot_id)) is not None:
        for name, link in links.facts.interfaces.items():
            lost = {"lost": link.lost} if link.lost else {}
            yield name, link.errors | lost
    if (gpus := memory.newest(gpu.GPUS, report.at, report.boot_id)) is not None:
        for one in gpus.facts.gpus:
            known = ((name, getattr(one, name)) for name in _GPU_COUNTERS)
            yield one.label, {name: count for name, count in known if count is not None}


def driver_errors(report: Report, memory: Memory, since: float) -> tuple[DriverError, ...]:
    """Return what the driver reported from ``since`` on, without the lines, which name other processes."""
    log = memory.newest(kernel.SOURCE, report.at, report.boot_id)
    events = log.facts.events if log is not None else ()
    found = [
        DriverError(kind=e.shape, code=e.code, subject=e.subject, at=e.last_at, count=e.count)
        for e in events
        if e.shape in (XID, SXID) and e.last_at >= since
    ]
    return tuple(sorted(found, key=lambda error: error.at)[-MAX_ERRORS:])


def keep(config: NodeConfig, job: int, seen: HookSeen) -> None:
    """Keep what the prolog saw, for the epilog. A disk that refuses it costs only that half."""
    folder = _folder(config)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = folder / f".{job}.{os.getpid()}"
        beside.write_bytes(msgspec.json.encode(seen))
        beside.rename(folder / f"{job}.json")
        kept = sorted((path.stat().st_mtime, path) for path in folder.iterdir())
        for _, path in kept[:-MAX_KEPT]:
            path.unlink(missing_ok=True)
    except OSError:
        pass


def take(config: NodeConfig, job: int) -> HookSeen | None:
    """Return what :func:`keep` kept, once."""
    path = _folder(config) / f"{job}.json"
    try:
        data = path.read_bytes()
        path.unlink()
        return msgspec.json.decode(data, type=HookSeen)
    except (OSError, *UNREADABLE):
        return None


def _folder(config: NodeConfig) -> Path:
    return Path(config.paths.state) / "jobs"
