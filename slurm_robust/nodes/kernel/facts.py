"""What the kernel says of the node: its log, its state, and records of crashes."""

from __future__ import annotations

import time
from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.model.findings import Finding, Outcome
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import Source, View
from slurm_robust.nodes.host import Host
from slurm_robust.nodes.kernel import shapes
from slurm_robust.nodes.kernel.events import BEGINS, SXID, XID, Happened, KernelEvent, summarise, with_earlier
from slurm_robust.nodes.kernel.kmsg import DEVICE, KernelLog, boot_time

DRIVER = "/proc/driver/nvidia/gpus"
TAINTED = "/proc/sys/kernel/tainted"

# Where a kernel that crashed leaves what it had to say.
PSTORE, PSTORE_KEPT, KDUMP = "/sys/fs/pstore", "/var/lib/systemd/pstore", "/var/crash"

# For so long an event counts that a flood of other messages has pushed out of the log.
_KEPT_S = 3600.0


class KernelFacts(Record):
    """``log`` is what the log says, ``error`` why it cannot be read, ``cut`` that it was not read to its end.

    ``gpus``: PCI addresses of the GPUs that NVIDIA's driver has, in its order; None without the driver.
    ``crashed_at``: when a crash left a record, the newest; 0 for none.
    """

    boot_at: float
    log: Happened = Happened()
    error: str = ""
    cut: bool = False
    tainted: int | None = None
    gpus: tuple[str, ...] | None = None
    crashed_at: float = 0.0


def gather(host: Host, config: NodeConfig) -> KernelFacts:
    """Reads /dev/kmsg from its beginning: nothing has to be remembered from one run to the next."""
    boot_at = boot_time(host)
    log, error, cut = Happened(), "", False
    try:
        with KernelLog(host) as messages:
            records = messages.read(BEGINS)
            cut = messages.cut
        log = summarise(
            records,
            boot_at,
            time.time(),
            lambda shape: window_s(shape, config),
            injected=config.kernel.injected,
        )
    except OSError as failure:
        error = f"{DEVICE}: {failure.strerror}"
    return KernelFacts(
        boot_at=boot_at,
        log=log,
        error=error,
        cut=cut,
        tainted=host.number(TAINTED),
        gpus=host.names(DRIVER) if host.path(DRIVER).is_dir() else None,
        crashed_at=_crash_time(host),
    )


def _crash_time(host: Host) -> float:
    """When the newest record of a crash was written; 0 without one.

    Programs leave their dumps in /var/crash too, and anybody may write there: kdump's are root's folders.
    """
    records = [f"{PSTORE}/{name}" for name in host.names(PSTORE) if name.startswith("dmesg")]
    records += [f"{PSTORE_KEPT}/{name}" for name in host.names(PSTORE_KEPT)[-64:]]
    records += [
        f"{KDUMP}/{name}"
        for name in host.names(KDUMP)[-64:]
        if any(part.startswith(("vmcore", "dump.")) for part in host.names(f"{KDUMP}/{name}"))
    ]
    times = [0.0]
    for record in records:
        try:
            info = host.path(record).lstat()
        except OSError:
            continue
        if info.st_uid == 0:
            times.append(info.st_mtime)
    return max(times)


def window_s(shape: str, config: NodeConfig) -> float:
    """For how long a message counts that does not last until the next boot."""
    if shape in (XID, SXID):
        return config.gpu.xid_window_s
    if shapes.SHAPES[shape].check == "kernel.filesystem":
        return config.storage.io_errors_window_s
    return config.kernel.window_s


# Read anew by every hook: it takes little time and nothing tells sooner of a fault.
SOURCE = Source(name="kernel", facts=KernelFacts, gather=gather, fresh_s=0.0, history_s=_KEPT_S)


def events_of(view: View[KernelFacts]) -> tuple[KernelEvent, ...]:
    """Since the boot: the log forgets when it is full, so what earlier runs saw counts, too."""
    earlier = [sample.facts.log for sample in view.before if sample.boot_id == view.boot_id]
    return with_earlier(view.facts.log, earlier)


def unread(check: str, view: View[KernelFacts]) -> Iterator[Finding]:
    """That the log could not be read, or not to its end: what it does not say means nothing then."""
    reason = view.facts.error or ("more than can be read in time" if view.facts.cut else "")
    if reason:
        yield Finding(
            check=check, outcome=Outcome.UNKNOWN, text=f"kernel log not read: {reason}", source=DEVICE
        )


def when(event: KernelEvent) -> str:
    """The time of the newest message."""
    return utc(event.last_at)


def utc(at: float) -> str:
    """``2026-11-21T15:04:05Z``: short, and the same in every time zone."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))
