"""The machine's processes: those of a sandbox, those of a rank, and waiting for them.

Reading (``read_process``, ``members``) is apart from choosing (``find_rank``), which is pure.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

INIT_MODULE = "slurm_robust.sandbox.init"
_LISTEN = "0A"
_DEAD = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


@dataclass(frozen=True)
class SandboxProcess:
    """One process. Its and its parent's pid count in this machine's PID namespace."""

    pid: int
    parent: int
    comm: str
    is_live: bool = True
    """Neither a zombie nor dead."""
    has_terminal: bool = False
    nspids: tuple[int, ...] = ()
    cmdline: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)


def read_process(pid: int) -> SandboxProcess | None:
    """Return the process, or None if it is gone (a zombie has no command line and environment)."""
    try:
        found = psutil.Process(pid).as_dict(["ppid", "name", "status", "cmdline", "environ"])
        nspids, has_terminal = _nspids(pid), _has_terminal(pid)
    except (psutil.NoSuchProcess, OSError):
        return None
    return SandboxProcess(
        pid=pid,
        parent=found["ppid"],
        comm=found["name"],
        is_live=found["status"] not in _DEAD,
        has_terminal=has_terminal,
        nspids=nspids,
        cmdline=tuple(found["cmdline"] or ()),
        environ=found["environ"] or {},
    )


def _nspids(pid: int) -> tuple[int, ...]:
    """Return the process's pid in each nested PID namespace, this machine's first. Raises ``OSError``."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("NSpid:"):
            return tuple(map(int, line.split()[1:]))
    return (pid,)


def _has_terminal(pid: int) -> bool:
    """Return whether a terminal controls the process, of whatever devpts. Raises ``OSError``."""
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return fields[4] != "0"


def pid_namespace(pid: int) -> int | None:
    """Return the inode of the process's PID namespace (also of a zombie); None when it is gone."""
    try:
        return int(re.sub(r"\D", "", os.readlink(f"/proc/{pid}/ns/pid")))
    except (OSError, ValueError):
        return None


def members(init_pid: int) -> tuple[int, ...]:
    """Return all processes in the PID namespace whose PID 1 is ``init_pid``, that included; none deeper."""
    namespace = pid_namespace(init_pid)
    if namespace is None:
        return ()
    return tuple(pid for pid in psutil.pids() if pid_namespace(pid) == namespace)


def find_child(parent: int, fits: Callable[[SandboxProcess], bool]) -> SandboxProcess | None:
    """Return the first live child of ``parent`` that fits; None when there is none."""
    return next((child for child in children(parent) if child.is_live and fits(child)), None)


def children(parent: int) -> tuple[SandboxProcess, ...]:
    """Return all children, zombies too."""
    # psutil would read all processes of the machine. The kernel lists the children of each thread apart.
    pids: list[str] = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            pids += listed.read_text().split()
        except OSError:
            continue  # The thread has ended.
    return tuple(process for pid in pids if (process := read_process(int(pid))) is not None)


def daemon_name(process: SandboxProcess) -> str:
    """Return what a daemon is called: slurmctld-wlm is slurmctld.

    From 23.11 on, a reconfigured one has the name of its file, which is that one in Debian's packages.
    """
    return process.comm.partition("-")[0]


def daemon(node_init: int, name: str) -> int | None:
    """Return the live child called ``name`` of a node's PID 1; None when there is none."""
    found = find_child(node_init, lambda process: daemon_name(process) == name)
    return found.pid if found else None


def sandbox_processes(state: Path) -> tuple[int, ...]:
    """Return live processes that run the init of the sandbox in ``state``: PID 1, nodes, half-started ones.

    Looked up by the command line, so that it also finds those of an ``up`` that was killed half way.
    """
    return tuple(pid for pid in psutil.pids() if runs_init(pid, state))


def runs_init(pid: int, state: Path) -> bool:
    """Return whether the process is alive and runs the init of the sandbox in ``state``, under our own root.

    In another root of the machine (a chroot, a container) the same path is another sandbox's.
    """
    try:
        command = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return command[-3:] == ["-m", INIT_MODULE, str(state)] and not _has_another_root(pid)


def _has_another_root(pid: int) -> bool:
    try:
        return not os.path.samestat(os.stat(f"/proc/{pid}/root"), os.stat("/"))
    except PermissionError:
        return False  # Only root sees it; others end nothing.
    except OSError:
        return True  # It is gone.


def sandbox_init(state: Path) -> int | None:
    """Return the machine's pid of the sandbox's PID 1: the one of its processes that is no nested node."""
    candidates = []
    for process in filter(None, map(read_process, sandbox_processes(state))):
        if len(process.nspids) > 1 and process.nspids[-1] == 1:
            candidates.append(process)
    return min(candidates, key=lambda process: len(process.nspids)).pid if candidates else None


def is_gone(pid: int) -> bool:
    """Return whether nothing of the process is left but, at most, a zombie that its parent has not reaped."""
    process = read_process(pid)
    return process is None or not process.is_live


def is_ending(pid: int) -> bool:
    """Return whether the process has given back all that it had, and waits for others to be reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return False
    state, memory = fields[0], fields[20]
    return state not in ("Z", "X") and memory == "0"


def wait_until(condition: Callable[[], bool], timeout_s: float, poll_s: float = 0.02) -> bool:
    """Return whether the condition came true in time; it is asked at least once."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(poll_s)
    return True


def wait_gone(pids: Iterable[int], timeout_s: float) -> tuple[int, ...]:
    """Wait until all are gone; returns those that still are there at the end."""
    left = tuple(pids)

    def all_gone() -> bool:
        nonlocal left
        left = tuple(pid for pid in left if not is_gone(pid))
        return not left

    wait_until(all_gone, timeout_s, poll_s=0.01)
    return left


def listens(pid: int, port: int) -> bool:
    """Return whether anything listens on the TCP port in the network namespace of ``pid``."""
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                return True
    return False


def find_rank(processes: Iterable[SandboxProcess], job_id: int, rank: int) -> SandboxProcess | None:
    """Return the worker of one rank: the process that carries its mark and whose parent does not.

    The mark is ``RANK`` in the environment, or the name ``srobust-rank<R>`` that forked workers give
    themselves, together with ``SLURM_JOB_ID``. Helpers that a worker forks carry the same mark.
    """
    marked = {
        process.pid: process
        for process in processes
        if process.environ.get("SLURM_JOB_ID") == str(job_id)
        and process.is_live
        and (process.comm == f"srobust-rank{rank}"[:15] or process.environ.get("RANK") == str(rank))
    }
    # A forked worker of another rank may have inherited a wrong RANK: its own name is the better witness.
    named = {pid: p for pid, p in marked.items() if not _names_other_rank(p, rank)}
    roots = [process for process in named.values() if process.parent not in named]
    return min(roots, key=lambda process: process.pid) if roots else None


def ranks_of(processes: Iterable[SandboxProcess], job_id: int) -> tuple[int, ...]:
    """Return all ranks of the job that have a process, for the message when one is not found."""
    found = set()
    for process in processes:
        if process.environ.get("SLURM_JOB_ID") != str(job_id):
            continue
        named = re.fullmatch(r"srobust-rank(\d+)", process.comm)
        text = named.group(1) if named else process.environ.get("RANK", "")
        if text.isdigit():
            found.add(int(text))
    return tuple(sorted(found))


def open_shells(processes: Iterable[SandboxProcess]) -> frozenset[int]:
    """Return what people have open in terminals: no process of a job, but also what they descend from.

    A tmux server has no terminal, its windows have.
    """
    known = {process.pid: process for process in processes if "SLURM_JOB_ID" not in process.environ}
    found: set[int] = set()
    for process in known.values():
        above: SandboxProcess | None = process if process.has_terminal else None
        while above is not None and above.pid not in found:
            found.add(above.pid)
            above = known.get(above.parent)
    return frozenset(found)


def _names_other_rank(process: SandboxProcess, rank: int) -> bool:
    named = re.fullmatch(r"srobust-rank(\d+)", process.comm)
    return bool(named) and process.comm != f"srobust-rank{rank}"[:15]
