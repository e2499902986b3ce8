"""Checks of what the kernel reported: XIDs, machine checks, lockups, crashes, disks and PCIe."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.events import BEGINS, KernelFacts, summarise, with_earlier
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import DEVICE, KernelEvent, KernelLog, boot_time
from slurm_robust.kernel.shapes import OF_GPUS, SHAPES, Shape
from slurm_robust.kernel.xid import SXID, XID
from slurm_robust.kernel.xids import MANY_PROGRAMS, NodeXids, switches, utc
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, Probe, Source, View

DRIVER = "/proc/driver/nvidia/gpus"
TAINTED = "/proc/sys/kernel/tainted"

# Folder in which a kernel that crashed leaves what it had to say.
PSTORE, PSTORE_KEPT, KDUMP = "/sys/fs/pstore", "/var/lib/systemd/pstore", "/var/crash"

# For so long an event counts that a flood of other messages has pushed out of the log.
_KEPT_S = 3600.0

# Documentation/admin-guide/tainted-kernels.rst
MACHINE_CHECK, DIED = 1 << 4, 1 << 7

BOOT_S = 60.0
"""Machine checks that are logged so soon after the boot are what the hardware kept from before it."""

CRASH_S = 3600.0
"""A record of a crash so long before the boot is of the crash that led to it."""


def gather(host: Host, config: NodeConfig) -> KernelFacts:
    """Reads /dev/kmsg from its beginning: nothing has to be remembered from one run to the next."""
    facts = KernelFacts(boot_at=boot_time(host))
    try:
        with KernelLog(host) as messages:
            records = messages.read(BEGINS)
            cut = messages.cut
        facts = summarise(
            records,
            facts.boot_at,
            time.time(),
            lambda shape: window_s(shape, config),
            injected=config.kernel.injected,
        )
        facts = replace(facts, cut=cut)
    except OSError as failure:
        facts = replace(facts, error=f"{DEVICE}: {failure.strerror}")
    return replace(
        facts,
        tainted=host.number(TAINTED),
        gpus=host.names(DRIVER) if host.path(DRIVER).is_dir() else None,
        owners=_owners(host, facts.events, facts.boot_at),
        crashed_at=_crash_time(host),
    )


def _owners(host: Host, events: tuple[KernelEvent, ...], boot_at: float) -> dict[str, str]:
    if not any(event.process for event in events):
        return {}
    # Logs of healthy nodes name none, and a prolog imports no more than it needs.
    from slurm_robust.kernel.owners import owners

    return owners(host, events, boot_at)


def _crash_time(host: Host) -> float:
    """Return when the newest record of a crash was written; 0 without one.

    Programs leave their dumps in /var/crash too, and any user may write there: kdump's are root's folders.
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
    """Return for how long a message counts that does not last until the next boot."""
    if shape in (XID, SXID):
        return config.gpu.xid_window_s
    if SHAPES[shape].check == "kernel.filesystem":
        return config.storage.io_errors_window_s
    return config.kernel.window_s


# Read anew by every hook: it takes little time and nothing tells sooner of a fault.
SOURCE = Source(name="kernel", facts=KernelFacts, gather=gather, fresh_s=0.0, history_s=_KEPT_S)


def events_of(view: View[KernelFacts]) -> tuple[KernelEvent, ...]:
    """Return the events since the boot: a full log forgets, so what earlier runs saw counts, too."""
    earlier = [sample.facts for sample in view.before if sample.boot_id == view.boot_id]
    return with_earlier(view.facts, earlier)


def unread(check: str, view: View[KernelFacts]) -> Iterator[Finding]:
    """Say if the log could not be read, or not to its end: what it does not say means nothing then."""
    reason = view.facts.error or ("more than can be read in time" if view.facts.cut else "")
    if reason:
        yield Finding(
            check=check, outcome=Outcome.UNKNOWN, text=f"kernel log not read: {reason}", source=DEVICE
        )


def judge_xid(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield the worst for each GPU in the log, with the others by name; and the node's."""
    events = [event for event in events_of(view) if event.shape == XID]
    if view.facts.gpus is None and not events:
        return
    missing = list(unread("kernel.xid", view))
    node = NodeXids(events, view.facts.gpus or (), view.facts.owners, view.at - config.gpu.xid_window_s)
    found = [*missing, *node.findings()]
    yield from found
    if not found:
        yield Finding(check="kernel.xid", outcome=Outcome.PASS, value="no XID that matters", source=DEVICE)


def _judge_shapes(
    check: str, view: View[KernelFacts], config: NodeConfig, more: Iterable[Finding] = ()
) -> Iterator[Finding]:
    """Yield the worst of the check's messages for each subject, and ``more`` that is known."""
    events = [event for event in events_of(view) if event.shape in SHAPES]
    mine = [(SHAPES[event.shape], event) for event in events if SHAPES[event.shape].check == check]
    logged = (_of_shape(shape, event, view, config) for shape, event in mine)
    worst: dict[str, Finding] = {}
    for finding in (*filter(None, logged), *more):
        known = worst.get(finding.subject)
        if known is None or finding.suggestion.weight > known.suggestion.weight:
            worst[finding.subject] = finding
    found = [*worst.values(), *unread(check, view)]
    yield from found
    if not found:
        yield Finding(check=check, outcome=Outcome.PASS, value="nothing in the kernel log", source=DEVICE)


def _of_shape(
    shape: Shape, event: KernelEvent, view: View[KernelFacts], config: NodeConfig
) -> Finding | None:
    window = window_s(shape.name, config)
    if not shape.lasting and event.last_at < view.at - window:
        return None
    times = event.count if shape.lasting else event.recent
    suggestion, limit = shape.suggestion, "none" if shape.often == 1 else f"{shape.often - 1}"
    if shape.corrected:
        most = config.kernel.max_corrected_mce_per_hour * window / 3600
        if times <= most:
            return None
        limit = f"{most:g}"
    elif times < shape.often or (shape.check == "kernel.mce" and event.last_at < view.facts.boot_at + BOOT_S):
        suggestion, limit = Suggestion.MONITOR, "none"
    return Finding(
        check=shape.check,
        outcome=Outcome.FAIL,
        subject=event.subject,
        text=shape.text,
        value=f"{times} messages, last at {utc(event.last_at)}",
        limit=f"{limit} {'since the boot' if shape.lasting else f'within {window:g} s'}",
        source=f"{DEVICE}: {event.line}",
        blame=shape.blame,
        suggestion=suggestion,
    )


def _tainted(view: View[KernelFacts], check: str, flag: int, text: str) -> Iterator[Finding]:
    """Yield what the kernel remembers until the next boot, whether the log still has it or not."""
    if (view.facts.tainted or 0) & flag:
        yield Finding(
            check=check,
            outcome=Outcome.FAIL,
            text=text,
            value=f"tainted {view.facts.tainted}",
            limit=f"without {flag}",
            source=TAINTED,
            suggestion=Suggestion.REBOOT,
        )


def judge_mce(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the processors' and the firmware's reports of broken hardware."""
    more = _tainted(view, "kernel.mce", MACHINE_CHECK, "machine check exception since the boot")
    yield from _judge_shapes("kernel.mce", view, config, more)


def judge_panic(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find a kernel that goes on after a crash of a part of it, and one that crashed before this boot."""
    more = list(_tainted(view, "kernel.panic", DIED, "kernel crashed in part since the boot"))
    crashed_at = view.facts.crashed_at
    if crashed_at >= view.facts.boot_at - CRASH_S:
        at = utc(crashed_at)
        more.append(
            Finding(
                check="kernel.panic",
                outcome=Outcome.FAIL,
                subject="last boot",
                text=f"kernel crashed at {at}: read its record",
                value=at,
                limit="no record of a crash",
                source=f"{PSTORE}, {PSTORE_KEPT}, {KDUMP}",
                suggestion=Suggestion.MONITOR,
            )
        )
    yield from _judge_shapes("kernel.panic", view, config, more)


def _shape_check(check: str, explain: str, written_by: Writer = Writer.KERNEL) -> AnyCheck:
    def judge(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
        return _judge_shapes(check, view, config)

    return Check(
        name=check,
        source=SOURCE,
        judge=judge,
        explain=explain,
        written_by=written_by,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
    )


def judge_sxid(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield one finding for each NVSwitch that reported an error."""
    events = [event for event in events_of(view) if event.shape == SXID]
    return switches(events, view.at - config.gpu.xid_window_s)


def judge_gpu(view: View[KernelFacts], config: NodeConfig) -> Iterator[Finding]:
    """Yield what drivers of GPUs say without a code; nothing on nodes whose drivers are silent."""
    if any(event.shape in SHAPES and SHAPES[event.shape].check == OF_GPUS for event in events_of(view)):
        yield from _judge_shapes(OF_GPUS, view, config)


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="kernel.xid",
        source=SOURCE,
        judge=judge_xid,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
        hangs=True,
        explain=(
            "XIDs, the error codes of NVIDIA's driver, in the kernel log; NVIDIA's Xid catalog explains "
            "each. Those of hardware (48, 64, 79, 95, 119 …) count from the boot on, until the driver says "
            "that the GPU has recovered (XID 154), is loaded anew, or root writes 'slurm-robust: reset "
            "0000:9b:00' (or 'all') into /dev/kmsg after a reset. Those of programs (13, 31, 43 …) are "
            f"the job's business; when they come on {MANY_PROGRAMS} occasions on one GPU within "
            "gpu.xid_window_s, test the GPU. 45 only follows others, or a kill. Fatal errors of NVLink 5 on "
            "two GPUs or more (144 to 150) break it for the whole node: reboot."
        ),
    ),
    Check(
        name="kernel.sxid",
        source=SOURCE,
        judge=judge_sxid,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
        explain=(
            "SXids, the error codes of NVSwitches, in the kernel log. Fatal ones stop NVLink traffic of "
            "the GPUs behind the switch until GPUs and switches are reset together, or the node boots. "
            "Others are worth attention if they come again."
        ),
    ),
    Check(
        name=OF_GPUS,
        source=SOURCE,
        judge=judge_gpu,
        written_by=Writer.DRIVER,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
        explain=(
            "What drivers of GPUs say without a code. AMD: a reset that failed (reboot), hardware errors "
            "that were not corrected, until the driver has reset the GPU, and hangs (watch). NVIDIA: "
            "NV_ERR_RESET_REQUIRED (no new program runs until a reset), and post-RX-detect, which matters "
            "when NVLinks are down, too: then only a reboot helps."
        ),
    ),
    Check(
        name="kernel.mce",
        source=SOURCE,
        judge=judge_mce,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
        explain=(
            "Machine checks: errors that processors, memory and firmware report. One that was not "
            "corrected may have destroyed data: reboot, test the memory, replace the module that it names. "
            "Corrected ones are normal up to kernel.max_corrected_mce_per_hour; more announce a failure."
        ),
    ),
    _shape_check(
        "kernel.lockup",
        "CPUs that are stuck in the kernel (soft and hard lockups, RCU stalls), and processes that wait "
        "for minutes. A CPU that stays stuck takes all jobs with it: reboot. Waiting processes mostly mean "
        "storage that does not answer.",
    ),
    _shape_check(
        "kernel.oom",
        "Processes that the kernel killed for want of memory, other than at the limit of a job. Slurm does "
        "not bound memory where this happens (ConstrainRAMSpace in cgroup.conf), or a daemon was hit: find "
        "out which.",
        Writer.USER,
    ),
    Check(
        name="kernel.panic",
        source=SOURCE,
        judge=judge_panic,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.KERNEL,
        explain=(
            "A part of the kernel crashed (oops, BUG, corrupt memory) and the rest goes on: nothing on the "
            "node can be trusted until it boots. Also records of a crash that led to this boot (pstore, "
            "kdump): read them, for a node that crashes again is one to repair."
        ),
    ),
    _shape_check(
        "kernel.filesystem",
        "Disks and file systems in the kernel log: damage and remounts as read-only (reboot, which checks "
        "the file system), disks that were given up or cannot read (replace), I/O errors and resets "
        "(watch). Loop devices, which users can mount, do not count.",
    ),
    _shape_check(
        "kernel.pcie",
        "Errors that PCIe ports report (AER). After a fatal one the device was cut off and reset: reboot "
        "the node, and reseat or replace the device if it comes again.",
    ),
)
