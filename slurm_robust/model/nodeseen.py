"""What prolog and epilog saw of a node around one run of a job: for the job's owner, in the job's folder."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_robust.model.findings import Finding
from slurm_robust.model.record import Record

Counters = dict[str, dict[str, int]]
"""Error counters by name, by device (``gpu0``, ``mlx5_0/1``, ``eth0``)."""

MAX_BYTES = 256 * 1024
"""Largest size of one file."""


class HookSeen(Record):
    """What one run of a hook saw."""

    at: float
    """Seconds since 1970, by the node's clock."""

    boot_id: str = ""
    fit: bool = True
    reason: str = ""
    """Why the node must not run jobs, as a drain would say it."""

    findings: tuple[Finding, ...] = ()
    """All that failed."""

    counters: Counters = {}
    cliques: tuple[str, ...] = ()
    """NVLink cliques of its GPUs, sorted; see :attr:`.facts.Gpu.clique`."""

    skipped: bool = False
    """The job asked that nothing be tested, and the site allows that."""


class DriverError(Record):
    """An XID of a GPU, or an SXID of an NVSwitch, while the job ran."""

    kind: str
    """``xid`` or ``sxid``."""

    code: int
    subject: str
    """PCI address."""

    at: float
    """The last time, in seconds since 1970."""

    count: int = 1
    """Lines in the kernel's log."""


class NodeSeen(Record):
    """A node around one run of a job."""

    job_id: int
    node: str
    epilog: HookSeen
    prolog: HookSeen | None = None
    """None if the node does not know any more what its prolog saw."""

    errors: tuple[DriverError, ...] = ()
    grown: Counters = {}
    """By how much counters rose from prolog to epilog."""

    @property
    def is_silent(self) -> bool:
        """There is nothing to tell."""
        hooks = (self.epilog, *([self.prolog] if self.prolog else []))
        return not (self.errors or self.grown or any(seen.findings or seen.skipped for seen in hooks))


def grown(before: Mapping[str, Mapping[str, int]], after: Mapping[str, Mapping[str, int]]) -> Counters:
    """Return what rose on devices that both readings have; a counter that began anew has not risen. Pure."""
    rises = {
        device: {
            name: count - before[device].get(name, 0)
            for name, count in counters.items()
            if count > before[device].get(name, 0)
        }
        for device, counters in after.items()
        if device in before
    }
    return {device: rise for device, rise in rises.items() if rise}
