"""Disks: free space and inodes, failed commands, degraded arrays, and what a disk says of itself."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import partial

import msgspec

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import holding, mounted
from slurm_robust.model.findings import Finding, Outcome, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, Hang, Probe, Source, View, judged
from slurm_robust.nodes.counters import HOUR_S, grown, readings
from slurm_robust.util.isolate import call

BLOCK, NVME, MDSTAT = "/sys/block", "/sys/class/nvme", "/proc/mdstat"
_MIB = 2**20
# Made up by the kernel, removable, or spoken for by their controller (NVMe).
_NO_DISKS = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd", "rbd", "nvme")
# States in which a disk takes no commands; others are on the way from one to another.
_DEAD = frozenset(("offline", "transport-offline", "dead", "deleting", "deleting (no IO)"))


class Space(Record):
    """A file system as an ordinary user finds it."""

    total_mb: int = 0
    free_mb: int = 0
    inodes: int = 0
    free_inodes: int = 0
    error: str = ""
    """Why it could not be asked."""


class Disk(Record, omit_defaults=True):
    """A disk or an NVMe controller."""

    id: str = ""
    """Stays the same when names change."""

    state: str = ""
    io_errors: int | None = None
    """Failed commands."""

    too_hot: bool | None = None
    """It is above its critical temperature."""


class Array(Record):
    """A software RAID."""

    level: str
    active: bool
    disks: int
    """How many it should have."""

    working: int


class DisksFacts(Record):
    """File systems, disks and arrays."""

    spaces: dict[str, Space] = {}
    """By mount point."""

    asked: dict[str, tuple[str, ...]] = {}
    """The paths that the site limits, by the mount point of the file system that they are in."""

    disks: dict[str, Disk] = {}
    arrays: dict[str, Array] = {}


def gather(host: Host, config: NodeConfig) -> DisksFacts:
    """Read all. Raises ``OSError`` without a table of mounts."""
    spaces, asked = _spaces(host, config)
    return DisksFacts(spaces=spaces, asked=asked, disks=_disks(host), arrays=arrays(host.read_or(MDSTAT)))


def _spaces(host: Host, config: NodeConfig) -> tuple[dict[str, Space], dict[str, tuple[str, ...]]]:
    mounts = mounted(host)
    spaces: dict[str, Space] = {}
    asked: dict[str, tuple[str, ...]] = {}
    shared: dict[str, str] = {}
    for path in config.storage.min_free_mb:
        holder = holding(path, mounts)
        if holder is None:
            continue
        if holder.is_network:
            shared[path] = holder.path
        elif not os.path.exists(host.path(path)):
            continue
        else:
            spaces[holder.path] = _space(host, path)
        asked[holder.path] = (*asked.get(holder.path, ()), path)
    tasks = {path: partial(_packed_space, host, path) for path in shared}
    answers = call(tasks, dict.fromkeys(tasks, config.storage.answer_s), config.storage.answer_s)
    for path, answer in answers.items():
        space = (
            msgspec.msgpack.decode(answer.value, type=Space) if answer.value else Space(error=answer.error)
        )
        spaces[shared[path]] = space
    return spaces, asked


def _packed_space(host: Host, path: str) -> bytes:
    return msgspec.msgpack.encode(_space(host, path))


def _space(host: Host, path: str) -> Space:
    try:
        found = os.statvfs(host.path(path))
    except OSError as error:
        return Space(error=error.strerror or "cannot be asked")
    return Space(
        total_mb=found.f_blocks * found.f_frsize // _MIB,
        free_mb=found.f_bavail * found.f_frsize // _MIB,
        inodes=found.f_files,
        free_inodes=found.f_favail,
    )


def _disks(host: Host) -> dict[str, Disk]:
    found = {}
    for name in host.names(BLOCK):
        folder = f"{BLOCK}/{name}"
        if name.startswith(_NO_DISKS) or not host.path(f"{folder}/device").is_dir():
            continue
        if host.number(f"{folder}/removable") == 1:
            continue
        found[name] = Disk(
            id=host.read_or(f"{folder}/device/wwid") or host.read_or(f"{folder}/wwid"),
            state=host.read_or(f"{folder}/device/state"),
            io_errors=host.number(f"{folder}/device/ioerr_cnt"),
        )
    for name in host.names(NVME):
        state = host.read_or(f"{NVME}/{name}/state")
        found[name] = Disk(
            id=host.read_or(f"{NVME}/{name}/serial"),
            state=state,
            # This asks the drive itself: one that does not live would only answer after a minute.
            too_hot=_is_too_hot(host, f"{NVME}/{name}") if state == "live" else None,
        )
    return found


def _is_too_hot(host: Host, folder: str) -> bool | None:
    for name in host.names(folder):
        if name.startswith("hwmon") and (alarm := host.number(f"{folder}/{name}/temp1_alarm")) is not None:
            return bool(alarm)
    return None


# As text: re compiles it when it is first needed, and every hook imports this.
_ARRAY = r"(?m)^(md\S*) : (active|inactive)(?: \([^)]*\))* ?(.*)\n(.*)$"


def arrays(text: str) -> dict[str, Array]:
    """Return what ``/proc/mdstat`` tells, by name of the array."""
    found = {}
    for name, state, members, numbers in re.findall(_ARRAY, text):
        level = members.split(" ")[0] if "[" not in members.split(" ")[0] else ""
        counts = re.search(r"\[(\d+)/(\d+)\]", numbers)
        disks = int(counts[1]) if counts else members.count("[")
        working = int(counts[2]) if counts else disks - members.count("(F)")
        found[name] = Array(level=level, active=state == "active", disks=disks, working=working)
    return found


def judge_space(view: View[DisksFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find file systems with less free space than the most that any limit asks of them."""
    for mount, space in view.facts.spaces.items():
        limits = [config.storage.min_free_mb.get(path, 0) for path in view.facts.asked.get(mount, ())]
        limit = max(limits, default=0)
        yield _room(view, "space", mount, space.error, (space.total_mb, space.free_mb, limit), "MiB")


def judge_inodes(view: View[DisksFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find file systems that can hold few more files. Some have no fixed number of inodes, and tell 0."""
    limit = config.storage.min_free_inodes
    for mount, space in view.facts.spaces.items():
        if space.inodes:
            yield _room(view, "inodes", mount, "", (space.inodes, space.free_inodes, limit), "inodes")


def _room(
    view: View[DisksFacts], check: str, mount: str, error: str, numbers: tuple[int, int, int], unit: str
) -> Finding:
    total, free, limit = numbers
    is_full = free < limit and not error
    # A limit that an empty file system could hardly keep says nothing about this node.
    is_small = total < 2 * limit and is_full
    outcome = Outcome.UNKNOWN if error or is_small else Outcome.FAIL if is_full else Outcome.PASS
    text = error or (f"{free} {unit} free" if is_full else "")
    # While a job may run, the space may be its own and come back with its end.
    failed = Suggestion.RESET if view.job_gone else Suggestion.MONITOR
    return Finding(
        check=f"disks.{check}",
        subject=mount,
        outcome=outcome,
        text=f"{text}, but the whole has only {total}: the limit does not fit" if is_small else text,
        value="" if error else f"{free} of {total} {unit} free",
        limit=f"{limit} {unit} free",
        source="statvfs",
        suggestion=failed if outcome is Outcome.FAIL else Suggestion.NONE,
    )


def judge_errors(view: View[DisksFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find disks that take no commands, fail too many or have gone, and arrays that lack some."""
    limits = config.storage
    for name, disk in view.facts.disks.items():
        track = readings(view, partial(_errors, name=name, identity=disk.id))
        rose = grown(track, limits.io_errors_window_s, view.at)
        is_dead = disk.state in _DEAD
        if not disk.state and disk.io_errors is None:
            continue
        failed = f"{rose} failed commands"
        bad = f"disk is {disk.state}" if is_dead else failed if rose > limits.max_io_errors else ""
        yield judged(
            "disks.errors",
            bad,
            subject=name,
            value=disk.state if is_dead else failed,
            limit=f"{limits.max_io_errors} in {limits.io_errors_window_s:g} s",
            source=f"{NVME if name.startswith('nvme') else BLOCK}/{name}",
            suggestion=Suggestion.REPLACE,
        )
    yield from _missing(view)
    yield from (_array(name, array) for name, array in view.facts.arrays.items())


def _errors(facts: DisksFacts, name: str, identity: str) -> int | None:
    """Return the disk's errors in ``facts``; None if another disk had the name then."""
    disk = facts.disks.get(name)
    return disk.io_errors if disk and disk.id == identity else None


def _missing(view: View[DisksFacts]) -> Iterator[Finding]:
    here = {disk.id or name for name, disk in view.facts.disks.items()}
    for name, disk in (view.baseline.disks if view.baseline else {}).items():
        if (disk.id or name) not in here:
            yield judged(
                "disks.errors",
                f"disk is gone, it was {name}",
                subject=disk.id or name,
                value="none",
                limit="there, as in the baseline",
                source=BLOCK,
            )


def _array(name: str, array: Array) -> Finding:
    lacks = array.active and array.working < array.disks
    value = f"{array.working} of {array.disks} disks"
    return judged(
        "disks.errors",
        f"{array.level} runs with {value}" if lacks else "",
        subject=name,
        value=value,
        limit="all disks",
        source=MDSTAT,
        # Levels that hold nothing twice.
        suggestion=Suggestion.REPLACE if array.level in ("raid0", "linear") else Suggestion.MONITOR,
    )


def judge_smart(view: View[DisksFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find drives that warn of themselves."""
    for name, disk in view.facts.disks.items():
        if disk.too_hot is not None:
            yield judged(
                "disks.smart",
                "drive is above its critical temperature" if disk.too_hot else "",
                subject=name,
                value="too hot" if disk.too_hot else "no warning",
                limit="no warning",
                source=f"{NVME}/{name}/hwmon*/temp1_alarm",
            )


SOURCE = Source(
    name="disks",
    facts=DisksFacts,
    gather=gather,
    timeout_s=10.0,
    history_s=HOUR_S,
    hang=Hang(outcome=Outcome.FAIL, text="a local disk does not answer", suggestion=Suggestion.MONITOR),
)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="disks.space",
        source=SOURCE,
        judge=judge_space,
        written_by=Writer.USER,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain="File systems must have storage.min_free_mb free for ordinary users. Where several paths "
        "with a limit are on one file system the highest limit counts. Full ones make jobs fail in odd "
        "ways. Look for what is large (`du -x`), mostly left by jobs, and remove it. While a job runs on the "
        "node, a lack is only reported; without one it counts when it stays.",
    ),
    Check(
        name="disks.inodes",
        source=SOURCE,
        judge=judge_inodes,
        written_by=Writer.USER,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain="The same file systems must be able to hold storage.min_free_inodes more files. A job "
        "that left millions of small ones uses up inodes long before space.",
    ),
    Check(
        name="disks.errors",
        source=SOURCE,
        judge=judge_errors,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        hangs=True,
        explain="A disk must take commands (state running or live) and may fail storage.max_io_errors of "
        "them within storage.io_errors_window_s; more are a case for the repair desk. A software RAID "
        "that runs with fewer disks, and a disk that the baseline has and that is gone, are reported. See "
        "dmesg and `smartctl -a`.",
    ),
    Check(
        name="disks.smart",
        source=SOURCE,
        judge=judge_smart,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain="An NVMe drive that says that it is above its critical temperature slows down and may "
        "switch off. Look at the fans and at what writes so much.",
    ),
)
