"""Faults to inject into a sandbox, one method each. Bounded in time; each is written to faults.jsonl."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath

from slurm_robust.sandbox import procs
from slurm_robust.sandbox.config import HEAD
from slurm_robust.sandbox.errors import BootFailed, FaultRefused, NotThere, SandboxError
from slurm_robust.sandbox.etcfiles import SLURMCTLD_PORT, SLURMD_PORT
from slurm_robust.sandbox.procs import wait_until
from slurm_robust.sandbox.view import SandboxView
from slurm_robust.util.text import as_json

DAEMON_S = 20.0
STOP_S = 10.0
FILL_NAME = ".srobust-fill"
FILLABLE = ("/tmp", "/dev/shm")
_BLOCK = 1 << 20


@dataclass(frozen=True)
class PlantedFault:
    """What was done."""

    t: float
    """``time.time()`` just before the act."""

    fault: str
    target: str

    def to_json(self) -> str:
        """Return the line in faults.jsonl."""
        return as_json(asdict(self), indent=None)


class Faults:
    """Breaks a sandbox on purpose, and mends it.

    Every method returns the :class:`PlantedFault` that it recorded, and raises :class:`FaultRefused` without
    doing anything if node, job, rank or path is not there.
    """

    def __init__(self, view: SandboxView) -> None:
        self._view = view

    # -- ranks -------------------------------------------------------------------------------------

    def kill_rank(self, job_id: int, rank: int) -> PlantedFault:
        """Send SIGKILL to the worker of one rank."""
        return self._signal_rank("kill-rank", job_id, rank, signal.SIGKILL)

    def stop_rank(self, job_id: int, rank: int) -> PlantedFault:
        """Send SIGSTOP to the worker of one rank: it hangs, with its connections open."""
        return self._signal_rank("stop-rank", job_id, rank, signal.SIGSTOP)

    def continue_rank(self, job_id: int, rank: int) -> PlantedFault:
        """Send SIGCONT to the worker of one rank: undoes :meth:`stop_rank`."""
        return self._signal_rank("continue-rank", job_id, rank, signal.SIGCONT)

    def rank_pid(self, job_id: int, rank: int) -> int:
        """Return the machine's pid of a rank's worker. Raises :class:`FaultRefused`."""
        nodes = [name for name, state in self._view.control.nodes().items() if state.on]
        found = (procs.read_process(pid) for node in nodes for pid in self._view.host_pids(node))
        processes = [process for process in found if process is not None]
        worker = procs.find_rank(processes, job_id, rank)
        if worker is None:
            known = procs.ranks_of(processes, job_id)
            seen = f"ranks seen: {', '.join(map(str, known))}" if known else "no rank of it was seen"
            raise NotThere(
                f"no process of rank {rank} of job {job_id} on any node; {seen}",
                fix=f"srobust sandbox exec -- srobust status {job_id} shows which ranks run",
            )
        return worker.pid

    # -- nodes -------------------------------------------------------------------------------------

    def power_cut(self, node: str) -> PlantedFault:
        """Cut the power: the node is dead, no process ends in order, no packet leaves. Undo: :meth:`boot`."""
        self._need_node(node, on=True)
        fault = self._record("power-cut", node)
        self._view.control.power_cut(node)
        return fault

    def boot(self, node: str) -> PlantedFault:
        """Power a dead node on; returns when its slurmd listens. Raises :class:`BootFailed`."""
        self._need_node(node, on=False)
        # Slurm compares whole seconds, and does not see a boot within the second of the node's last
        # answer. No real machine is that fast.
        time.sleep(1.0 - time.time() % 1.0)
        fault = self._record("boot", node)
        self._view.control.boot(node)
        # -b: /proc/uptime is the machine's, so Slurm would not see that this node has rebooted.
        self._start_slurmd(node, "-b")
        return fault

    def cut_network(self, node: str) -> PlantedFault:
        """Unplug the node's cable; its processes go on. Undo: :meth:`heal_network`."""
        self._need_node(node, on=True)
        fault = self._record("cut-network", node)
        self._view.control.set_link(node, connected=False)
        return fault

    def heal_network(self, node: str) -> PlantedFault:
        """Plug the node's cable in again."""
        self._need_node(node, on=True)
        fault = self._record("heal-network", node)
        self._view.control.set_link(node, connected=True)
        return fault

    # -- daemons -----------------------------------------------------------------------------------

    def kill_slurmd(self, node: str) -> PlantedFault:
        """Send SIGKILL to the node's slurmd; jobs and their steps go on. Undo: :meth:`start_slurmd`."""
        self._need_node(node, on=True)
        pid = self._daemon(node, "slurmd")
        fault = self._record("kill-slurmd", node)
        os.kill(pid, signal.SIGKILL)
        return fault

    def start_slurmd(self, node: str) -> PlantedFault:
        """Start a slurmd that was killed; returns when it listens. Raises :class:`BootFailed`."""
        self._need_node(node, on=True)
        self._need_absent(node, "slurmd")
        fault = self._record("start-slurmd", node)
        self._start_slurmd(node)
        return fault

    def kill_slurmctld(self) -> PlantedFault:
        """Send SIGKILL to slurmctld. Undo: :meth:`start_slurmctld`."""
        pid = self._daemon(HEAD, "slurmctld")
        fault = self._record("kill-slurmctld", HEAD)
        self._view.folder.forgotten.touch()
        os.kill(pid, signal.SIGKILL)
        procs.wait_gone([pid], STOP_S)
        return fault

    def start_slurmctld(self) -> PlantedFault:
        """Start slurmctld after :meth:`kill_slurmctld`; returns when it listens."""
        self._need_absent(HEAD, "slurmctld")
        fault = self._record("start-slurmctld", HEAD)
        self._start_slurmctld()
        return fault

    def restart_slurmctld(self) -> PlantedFault:
        """Stop slurmctld in order (by force after 10 s) and start it again; returns when it listens."""
        pid = self._daemon(HEAD, "slurmctld")
        fault = self._record("restart-slurmctld", HEAD)
        os.kill(pid, signal.SIGTERM)
        if procs.wait_gone([pid], STOP_S):
            os.kill(pid, signal.SIGKILL)
            procs.wait_gone([pid], STOP_S)
        self._start_slurmctld()
        return fault

    # -- disks -------------------------------------------------------------------------------------

    def fill_disk(self, node: str, path: str = "/tmp", mb: int | None = None) -> PlantedFault:
        """Fill the node's own /tmp or /dev/shm: ``mb`` MiB, or all that is left. Undo: :meth:`free_disk`."""
        self._need_node(node, on=True)
        if path.rstrip("/") not in FILLABLE:
            raise FaultRefused(f"{path} is not a node's own disk", fix=f"name one of {', '.join(FILLABLE)}")
        file = f"/proc/{self._view.node_pid(node)}/root{PurePosixPath(path)}/{FILL_NAME}"
        # Every user may write there: never follow a link that was left under this name.
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise FaultRefused(
                f"cannot write {path}/{FILL_NAME} on {node}: {error.strerror}",
                fix=f"srobust sandbox fault free-disk {node} removes it",
            ) from error
        fault = self._record("fill-disk", f"{node}:{path}")
        try:
            _fill(descriptor, mb)
        finally:
            os.close(descriptor)
        return fault

    def free_disk(self, node: str) -> PlantedFault:
        """Remove what :meth:`fill_disk` wrote on the node; fine when there is nothing."""
        self._need_node(node, on=True)
        fault = self._record("free-disk", node)
        for path in FILLABLE:
            try:
                os.unlink(f"/proc/{self._view.node_pid(node)}/root{path}/{FILL_NAME}")
            except FileNotFoundError:
                pass  # The folder was not filled.
        return fault

    # -- inner -------------------------------------------------------------------------------------

    def _record(self, name: str, target: str) -> PlantedFault:
        fault = PlantedFault(time.time(), name, target)
        with self._view.folder.faults.open("a") as file:
            file.write(fault.to_json() + "\n")
        return fault

    def _need_node(self, node: str, *, on: bool) -> None:
        names = self._view.config.node_names
        if node not in names:
            hint = " (the head is not a compute node)" if node == HEAD else ""
            raise NotThere(f"no compute node {node!r}{hint}", fix=f"name one of {', '.join(names)}")
        state = self._view.control.nodes().get(node)
        is_on = state is not None and state.on
        if is_on != on:
            raise FaultRefused(
                f"{node} is {'on already' if is_on else 'off; boot it first'}",
                fix=f"srobust sandbox fault {'power-cut' if is_on else 'boot'} {node}",
            )

    def _signal_rank(self, name: str, job_id: int, rank: int, number: signal.Signals) -> PlantedFault:
        pid = self.rank_pid(job_id, rank)
        fault = self._record(name, f"job {job_id} rank {rank}")
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            raise FaultRefused(
                f"rank {rank} of job {job_id} ended by itself just now",
                fix=f"srobust sandbox exec -- srobust status {job_id} shows whether it has another",
            ) from None
        return fault

    def daemon_pid(self, node: str, name: str) -> int | None:
        """Return the machine's pid of a node's daemon, None when it does not run."""
        return procs.daemon(self._view.node_pid(node), name)

    def _daemon(self, node: str, name: str) -> int:
        pid = self.daemon_pid(node, name)
        if pid is None:
            raise FaultRefused(f"no {name} runs on {node}", fix="srobust sandbox heal starts what is missing")
        return pid

    def _need_absent(self, node: str, name: str) -> None:
        if self.daemon_pid(node, name) is not None:
            raise FaultRefused(f"{name} runs on {node} already", fix=f"kill it first: kill-{name}")

    def _start_slurmd(self, node: str, *args: str) -> None:
        self._start(node, "slurmd", SLURMD_PORT, f"slurmd-{node}", *args)

    def _start_slurmctld(self) -> None:
        # Since 25.11 slurmctld ends when it finds its cluster's name but not this file, which it writes
        # some minutes after its first start. Without the name it keeps jobs and nodes anyway.
        state = self._view.folder.path / "state"
        if self._view.config.accounting and not (state / "assoc_usage").exists():
            (state / "clustername").unlink(missing_ok=True)
        self._start(HEAD, "slurmctld", SLURMCTLD_PORT, "slurmctld")

    def _start(self, node: str, daemon: str, port: int, log: str, *args: str) -> None:
        pid = self._view.node_pid(node)
        try:
            self._view.control.start(node, daemon, *args)
        except SandboxError as error:
            raise BootFailed(f"{daemon} of {node} does not start: {error}") from error
        if not wait_until(lambda: procs.listens(pid, port), DAEMON_S):
            raise BootFailed(
                f"{daemon} of {node} is not ready after {DAEMON_S:g} s:\n{self._view.log_tail(log)}"
            )


def _fill(descriptor: int, mb: int | None) -> None:
    """Write zeros until ``mb`` MiB are written or the disk is full."""
    block = bytes(_BLOCK)
    written = 0
    while mb is None or written < mb:
        try:
            count = os.write(descriptor, block)
        except OSError:
            return  # Full, which is what was asked for.
        if count < _BLOCK:
            return
        written += 1
