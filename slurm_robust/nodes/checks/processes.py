"""Checks of the processes: stuck ones, dead ones, left over ones, and the load."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

from slurm_robust.config.node import NodeConfig
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.processes import KernelProcess, listed
from slurm_robust.model.findings import Finding, Party, Suggestion, Writer
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import EVERYWHERE, NOT_LIVE, AnyCheck, Check, Probe, Source, View, judged

SYSTEMD = "/etc/systemd/system"
SYSTEMD_RUNS = "/run/systemd/system"
"""There when systemd is the first process (sd_booted(3))."""

STUCK_S = 60.0
"""A process that waits uninterruptibly in two runs so far apart is stuck."""

_HISTORY_S = 600.0
_MAX_PROCESSES = 256
COMM = 15
"""How many bytes of a program's name the kernel keeps."""

# systemd's DynamicUser and nobody: no users.
_SYSTEM_UIDS = range(61184, 65536)


class ProcessFacts(Record):
    """The node's processes, without threads of the kernel."""

    count: int
    cpus: int
    load: tuple[float, float, float]
    """Averages over 1, 5 and 15 minutes."""

    waiting: dict[int, int] = {}
    """Start times (clock ticks since the boot) of processes in uninterruptible sleep, by pid."""

    waiting_names: tuple[str, ...] = ()
    """Examples of them."""

    unkillable: frozenset[int] = frozenset()
    """Processes among them that have been killed, or are no ordinary user's: a program waits in that state
    also when SIGKILL would end it (vfork).
    """

    zombies: int = 0
    zombie_parent: str = ""
    """The program that has most zombies."""

    users: dict[int, int] = {}
    """Processes of ordinary users by uid."""

    user_names: tuple[str, ...] = ()
    """Examples of them."""

    daemons: tuple[str, ...] = ()
    """Names of programs that system users run, cut as the kernel keeps them (:data:`COMM`)."""

    units: frozenset[str] = frozenset()
    """Services that systemd starts at boot."""


def gather(host: Host, config: NodeConfig) -> ProcessFacts:
    """Read /proc/*/stat only: reading the command line of a process can hang when the process does."""
    found = list(listed(host))
    zombies = [process for process in found if process.state == b"Z"]
    waiting = [process for process in found if process.state == b"D"]
    unkillable = [process for process in waiting if process.killed or not is_user(process.uid, config)]
    users = [process for process in found if is_user(process.uid, config) and process.state != b"Z"]
    if host.is_real:
        # A user may ask: neither who asked nor what that has started is left over.
        ours = {os.getpid(), os.getppid()}
        users = [process for process in users if not ours & {process.pid, process.parent}]
        users = of_others(users, os.geteuid(), config)
    fields = host.read("/proc/loadavg").split()
    return ProcessFacts(
        count=len(found),
        cpus=_cpus(host),
        load=(float(fields[0]), float(fields[1]), float(fields[2])),
        waiting={process.pid: process.start for process in (*unkillable, *waiting)[: 2 * _MAX_PROCESSES]},
        waiting_names=_names(unkillable or waiting),
        unkillable=frozenset(process.pid for process in unkillable[:_MAX_PROCESSES]),
        zombies=len(zombies),
        zombie_parent=_parent_of_most(zombies, found),
        users=dict(Counter(process.uid for process in users).most_common(_MAX_PROCESSES)),
        user_names=_names(users),
        daemons=_daemons(host, found, config),
        units=_units(host),
    )


def of_others(users: list[KernelProcess], asking: int, config: NodeConfig) -> list[KernelProcess]:
    """Return users' processes but those of the user who asks, who is at work here. Hooks ask as root."""
    return [process for process in users if process.uid != asking or not is_user(asking, config)]


def is_user(uid: int, config: NodeConfig) -> bool:
    """Return whether it is an ordinary user's."""
    return uid >= config.memory.min_user_uid and uid not in _SYSTEM_UIDS


def _names(processes: list[KernelProcess]) -> tuple[str, ...]:
    """Return the most frequent ones."""
    return tuple(name for name, _ in Counter(process.name for process in processes).most_common(3))


def _parent_of_most(zombies: list[KernelProcess], found: list[KernelProcess]) -> str:
    parents = Counter(process.parent for process in zombies).most_common(1)
    names = {process.pid: process.name for process in found}
    return names.get(parents[0][0], "") if parents else ""


def _daemons(host: Host, found: list[KernelProcess], config: NodeConfig) -> tuple[str, ...]:
    """Return the daemons' names. A user's program may have any name, so only root and system users count."""
    names: set[str] = set()
    for process in found:
        if process.name not in names and not is_user(process.uid, config):
            uid = host.real_uid(process.pid)
            if uid is not None and not is_user(uid, config):
                names.add(process.name)
    return tuple(sorted(names))


def _units(host: Host) -> frozenset[str]:
    """Return what is enabled, if systemd runs at all. Packages install more than a site uses."""
    if not host.path(SYSTEMD_RUNS).is_dir():
        return frozenset()
    wants = (name for name in host.names(SYSTEMD) if name.endswith(".wants"))
    units = (unit for folder in wants for unit in host.names(f"{SYSTEMD}/{folder}"))
    return frozenset(unit.removesuffix(".service") for unit in units if unit.endswith(".service"))


def _cpus(host: Host) -> int:
    """Return how many are online; 1 if that is not known."""
    ranges = [part.partition("-") for part in host.read_or("/sys/devices/system/cpu/online").split(",")]
    try:
        return sum(int(last or first) - int(first) + 1 for first, _, last in ranges)
    except ValueError:
        return 1


SOURCE = Source(name="processes", facts=ProcessFacts, gather=gather, history_s=_HISTORY_S)


def judge_d_state(view: View[ProcessFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find processes that were in uninterruptible sleep a while ago, too; the first run knows none.

    Only those that cannot be killed ask for a boot, and only if there is no job to blame.
    """
    then = [
        old.facts.waiting
        for old in view.before
        if old.boot_id == view.boot_id and STUCK_S <= view.at - old.at <= _HISTORY_S
    ]
    now = view.facts.waiting
    # From the newest run that is old enough: a process that waited then and waits now did not get on.
    stuck = [pid for pid, start in now.items() if then and then[-1].get(pid) == start]
    most = config.memory.max_d_state
    lasting = sum(pid in view.facts.unkillable for pid in stuck) > most
    names = ", ".join(view.facts.waiting_names)
    yield judged(
        "processes.d_state",
        f"{len(stuck)} processes stuck in I/O ({names})" if len(stuck) > most else "",
        value=f"{len(stuck)} stuck, {len(now)} waiting, {len(view.facts.unkillable)} cannot be killed",
        limit=f"at most {most} for {STUCK_S:.0f} s",
        source="/proc/*/stat",
        blame=Party.STORAGE,
        suggestion=Suggestion.REBOOT if view.job_gone and lasting else Suggestion.MONITOR,
    )


def judge_zombies(view: View[ProcessFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find ended processes whose parent does not collect them."""
    zombies, most = view.facts.zombies, config.memory.max_zombies
    parent = view.facts.zombie_parent
    advice = f", most of {parent}: restart it" if parent else ""
    yield judged(
        "processes.zombies",
        f"{zombies} zombies{advice}" if zombies > most else "",
        value=str(zombies),
        limit=f"at most {most}",
        source="/proc/*/stat",
    )


def judge_leftovers(view: View[ProcessFacts], config: NodeConfig) -> Iterator[Finding]:
    """Find processes of ordinary users if no job runs."""
    if not view.job_gone:
        return
    users = view.facts.users
    count = sum(users.values())
    uids = ", ".join(f"uid {uid}" for uid in sorted(users)[:4]) + (" ..." if len(users) > 4 else "")
    what = f"{count} process{'es' if count > 1 else ''} without a job"
    yield judged(
        "processes.leftovers",
        f"{what}: {', '.join(view.facts.user_names)} of {uids}" if users else "",
        value=str(count),
        limit="0 where no job runs",
        source="/proc/*/stat",
        blame=Party.JOB,
    )


def judge_load(view: View[ProcessFacts], config: NodeConfig) -> Iterator[Finding]:
    """Judge the load if no job runs. That of a job that ended decays within a minute or two."""
    if not view.job_gone:
        return
    facts = view.facts
    most = config.memory.max_load_per_cpu * facts.cpus
    bad = min(facts.load) > most
    yield judged(
        "processes.load",
        f"load {facts.load[2]:g} though no job runs: look at what waits" if bad else "",
        value=" ".join(f"{load:g}" for load in facts.load),
        limit=f"at most {most:g} over 1, 5 and 15 minutes",
        source="/proc/loadavg",
    )


CHECKS: tuple[AnyCheck, ...] = (
    Check(
        name="processes.d_state",
        source=SOURCE,
        judge=judge_d_state,
        written_by=Writer.USER,
        contexts=EVERYWHERE,
        probe=Probe.NODE,
        hangs=True,
        explain=(
            "Processes in uninterruptible sleep in two runs more than a minute apart: they wait for "
            "storage or a driver that does not answer. Look at mounts and the kernel log first. Where no job "
            "runs, and that many of them are root's or were killed and wait all the same, reboot."
        ),
    ),
    Check(
        name="processes.zombies",
        source=SOURCE,
        judge=judge_zombies,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "Processes that ended and whose parent does not collect them. Many use up the process table: "
            "restart the program that is named."
        ),
    ),
    Check(
        name="processes.leftovers",
        source=SOURCE,
        judge=judge_leftovers,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "Processes of ordinary users (memory.min_user_uid) where no job runs: a job left them, or "
            "a user logged in. They take CPU and memory from the next job. "
            "ProctrackType=proctrack/cgroup and pam_slurm_adopt prevent both."
        ),
    ),
    Check(
        name="processes.load",
        source=SOURCE,
        judge=judge_load,
        written_by=Writer.USER,
        contexts=NOT_LIVE,
        probe=Probe.NODE,
        explain=(
            "Load per CPU over 1, 5 and 15 minutes where no job runs (memory.max_load_per_cpu). High load "
            "without a busy CPU means processes that wait for storage."
        ),
    ),
)
