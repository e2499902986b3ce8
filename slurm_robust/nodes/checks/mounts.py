"""Mounts: that they are there, that they answer, and that they can be written.

A file system whose server is gone keeps every process that touches it in the kernel for ever. So each one is
asked in a process of its own, which is left behind if it does not come back.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from slurm_robust.config.node import MAX_ANSWER_S, NodeConfig, StorageLimits
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.mountinfo import (
    NEVER_WRITABLE,
    Declared,
    Mounted,
    automatic,
    declared,
    matches,
    mounted,
    without_end,
)
from slurm_robust.model.findings import Finding, Outcome, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, AnyCheck, Check, Hang, Probe, Source, View, judged
from slurm_robust.util.isolate import CallResult, call

MOUNTINFO, FSTAB = "/proc/self/mountinfo", "/etc/fstab"

# A file system that refuses has answered, and one that was unmounted meanwhile needs not.
_ANSWERS = (errno.EACCES, errno.EPERM, errno.ENOENT)


class Mount(Record, omit_defaults=True):
    """One mount."""

    kind: str
    readonly: bool = False
    network: bool = False
    automatic: bool = False
    """The automounter mounts it when it is used."""

    hung: bool = False
    error: str = ""
    """Why it did not answer."""

    unknown: str = ""
    """Why it could not be asked."""

    took_s: float = 0.0
    """Seconds until the answer."""


class MountsFacts(Record):
    """Mounts of network file systems and disks, by path."""

    mounts: dict[str, Mount] = {}
    declared: dict[str, Declared] = {}
    """What ``/etc/fstab`` declares."""


def gather(host: Host, config: NodeConfig) -> MountsFacts:
    """Read the tables, and ask every network file system. Raises ``OSError`` without a table of mounts."""
    limits = config.storage
    entries = mounted(host)
    wanted = {path: line for path, line in declared(host).items() if not matches(path, limits.ignore_mounts)}
    named = _named(limits)
    by_path = {
        entry.path: entry
        for entry in entries
        if not matches(entry.path, limits.ignore_mounts)
        and _is_looked_at(entry, entry.path in wanted or entry.path in named)
    }
    tasks = {path: _asking(host, path) for path, entry in by_path.items() if entry.is_network}
    answers = call(tasks, dict.fromkeys(tasks, limits.answer_s), 2 * limits.answer_s)
    on_use = automatic(entries)
    mounts = {path: _mount(entry, answers.get(path), path in on_use) for path, entry in by_path.items()}
    links = _resolved(host, {*wanted, *named} - mounts.keys(), limits)
    # The kernel's table knows no links: the target of one is mounted anyway.
    mounts |= {path: mounts[target] for path, target in links.items() if target in mounts}
    return MountsFacts(mounts=mounts, declared=wanted)


def _named(limits: StorageLimits) -> tuple[str, ...]:
    return tuple(without_end(path) for path in limits.mounts)


def _is_looked_at(entry: Mounted, is_wanted: bool) -> bool:
    """Return whether to look at the mount. A user's own FUSE mount must not count as the node's fault."""
    return is_wanted or entry.is_on_disk or (entry.is_network and entry.owner == 0)


def _asking(host: Host, path: str) -> Callable[[], bytes]:
    where = host.path(path)

    def ask() -> bytes:
        try:
            os.stat(where)
            os.statvfs(where)
        except OSError as error:
            return str(error.errno).encode()
        return b"0"

    return ask


def _mount(entry: Mounted, answer: CallResult | None, is_automatic: bool) -> Mount:
    code = int(answer.value or 0) if answer else 0
    return Mount(
        kind=entry.kind,
        readonly=entry.readonly,
        network=entry.is_network,
        automatic=is_automatic,
        hung=bool(answer and answer.hung),
        error=os.strerror(code) if code and code not in _ANSWERS else "",
        unknown=answer.error if answer and answer.value is None and not answer.hung else "",
        took_s=round(answer.took_s, 3) if answer else 0.0,
    )


def _resolved(host: Host, paths: set[str], limits: StorageLimits) -> dict[str, str]:
    """Return the targets of those that are not in the table. Even reading links may hang."""

    def resolving(path: str) -> Callable[[], bytes]:
        return lambda: os.path.realpath(host.path(path)).encode()

    tasks = {path: resolving(path) for path in sorted(paths)}
    root = str(host.root).rstrip("/")
    answers = call(tasks, dict.fromkeys(tasks, limits.answer_s), limits.answer_s)
    found = {path: answer.value.decode() for path, answer in answers.items() if answer.value}
    return {path: target.removeprefix(root) or "/" for path, target in found.items()}


def judge_present(view: View[MountsFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find mounts that must be there and are not."""
    for path, (why, is_optional) in _expected(view, config.storage).items():
        mount = view.facts.mounts.get(path)
        yield judged(
            "mounts.present",
            "" if mount else "is not mounted",
            subject=path,
            value=mount.kind if mount else "not mounted",
            limit=f"mounted, {why}",
            source=MOUNTINFO,
            blame=Party.SITE,
            suggestion=Suggestion.MONITOR if is_optional else Suggestion.RESET,
        )


def _expected(view: View[MountsFacts], limits: StorageLimits) -> dict[str, tuple[str, bool]]:
    """Return paths with the reason why something should be mounted there, and whether that is optional."""
    if limits.mounts:
        return dict.fromkeys(_named(limits), ("configured", False))
    recorded = view.baseline.mounts if view.baseline else {}
    of_baseline = {
        path: ("as in the baseline", False)
        for path, mount in recorded.items()
        if mount.network and not mount.automatic and not matches(path, limits.ignore_mounts)
    }
    return of_baseline | {
        path: (f"as in {FSTAB}", line.optional) for path, line in view.facts.declared.items()
    }


def judge_answer(view: View[MountsFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find network file systems that do not answer."""
    limit = f"{config.storage.answer_s:g} s"
    for path, mount in view.facts.mounts.items():
        if not mount.network:
            continue
        about, suggestion = "", Suggestion.NONE
        outcome = Outcome.UNKNOWN if mount.unknown else Outcome.PASS
        if mount.hung or mount.error:
            outcome, suggestion = Outcome.FAIL, Suggestion.RESET
            about = f"{mount.kind} does not answer" if mount.hung else f"{mount.kind}: {mount.error}"
        yield Finding(
            check="mounts.answer",
            subject=path,
            outcome=outcome,
            text=about or mount.unknown,
            value=f"no answer in {limit}" if mount.hung else mount.error or f"{mount.took_s:g} s",
            limit=limit,
            source="stat and statvfs",
            blame=Party.STORAGE,
            suggestion=suggestion,
        )


def judge_readonly(view: View[MountsFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find file systems that could be written and cannot be now."""
    recorded = view.baseline.mounts if view.baseline else {}
    for path, mount in view.facts.mounts.items():
        old, line = recorded.get(path), view.facts.declared.get(path)
        kinds = {mount.kind, line.kind if line else ""}
        if (line is None and old is None) or kinds & NEVER_WRITABLE:
            continue
        was_readonly = line.readonly if line else bool(old and old.readonly)
        is_wrong = mount.readonly and not was_readonly
        yield judged(
            "mounts.readonly",
            f"{mount.kind} has become read-only" if is_wrong else "",
            subject=path,
            value="ro" if mount.readonly else "rw",
            limit=f"{'ro' if was_readonly else 'rw'}, as in {FSTAB if line else 'the baseline'}",
            source=MOUNTINFO,
            blame=Party.STORAGE if mount.network else Party.NODE,
            suggestion=Suggestion.RESET if mount.network else Suggestion.REBOOT,
        )


SOURCE = Source(
    name="mounts",
    facts=MountsFacts,
    gather=gather,
    timeout_s=3 * MAX_ANSWER_S + 1,
    hang=Hang(text="the table of mounts cannot be read"),
)

CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="mounts.present",
        source=SOURCE,
        judge=judge_present,
        written_by=Writer.ROOT,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        hangs=True,
        explain="Everything must be mounted that storage.mounts names, else all of /etc/fstab (but noauto "
        "and x-systemd.automount) and the network file systems of the baseline (but those of the "
        "automounter). A job that finds an empty folder instead writes into the root file system or fails "
        "immediately. Mount it (`mount -a`), and look at the journal for why it was not.",
    ),
    Check(
        name="mounts.answer",
        source=SOURCE,
        judge=judge_answer,
        written_by=Writer.PEER,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain="Each network file system (NFS, Lustre, GPFS, BeeGFS, Ceph, WEKA, FUSE ...) must answer "
        "stat and statvfs within storage.answer_s. It is asked in a process of its own, so that a dead "
        "one holds up neither this check nor the hook. Mounts that ordinary users made by FUSE are not "
        "asked. A server that is gone concerns many nodes: the caps on drains hold then, and the "
        "node returns by itself when the file system answers again. Where only this node is concerned "
        "unmount it (`umount -f -l`) and mount it anew, or reboot: give this check the suggestion reboot "
        "if that is your rule.",
    ),
    Check(
        name="mounts.readonly",
        source=SOURCE,
        judge=judge_readonly,
        written_by=Writer.KERNEL,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        explain="A file system that /etc/fstab or the baseline has as writable must not be read-only. "
        "Kernels remount a file system so when it is damaged or its disk fails. Look at dmesg, check the "
        "disk and the file system (fsck), and reboot.",
    ),
)
