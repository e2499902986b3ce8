"""The state of a sandbox as a record, for ``srobust sandbox status``."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from slurm_robust.model.record import Record
from slurm_robust.sandbox import procs
from slurm_robust.sandbox.config import HEAD, SandboxConfig
from slurm_robust.sandbox.errors import SandboxError
from slurm_robust.sandbox.folder import StateFolder
from slurm_robust.sandbox.sandbox import Sandbox
from slurm_robust.sandbox.services import head_services, node_services

SINFO_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class NodeStatus:
    """One node: its machine, and its state in Slurm."""

    name: str
    address: str
    on: bool
    connected: bool
    state: str
    """sinfo's long form; empty for the head, ``unknown`` when slurmctld does not answer."""

    reason: str
    daemons: tuple[str, ...]


@dataclass(frozen=True)
class SandboxStatus:
    """All of one sandbox."""

    name: str
    folder: str
    nodes: tuple[NodeStatus, ...]

    @property
    def healthy(self) -> bool:
        """Every node on and plugged in, every daemon there, and no node down or drained."""
        return all(
            node.on
            and node.connected
            and bool(node.daemons)
            and not node.state.startswith(("unknown", "down", "drain"))
            for node in self.nodes
        )

    def document(self) -> dict[str, object]:
        """Return what ``--json`` prints."""
        return asdict(self) | {"healthy": self.healthy}


def read_status(sandbox: Sandbox) -> SandboxStatus:
    """Ask the switch, /proc and slurmctld (bounded by 15 s). Raises :class:`NotUp`."""
    machines = sandbox.control.nodes()
    # Its clients would wait 10 s for a slurmctld that is not there.
    slurm = _ask_slurm(sandbox) if sandbox.fault.daemon_pid(HEAD, "slurmctld") else {}
    nodes = []
    for name in sandbox.config.all_names:
        machine = machines.get(name)
        on = machine is not None and machine.on
        state, reason = ("", "") if name == HEAD else slurm.get(name, ("unknown", ""))
        nodes.append(
            NodeStatus(
                name=name,
                address=sandbox.config.address(name),
                on=on,
                connected=machine is not None and machine.connected,
                state=state,
                reason=reason,
                daemons=_daemons(sandbox, name) if on else (),
            )
        )
    return SandboxStatus(sandbox.name, str(sandbox.folder.path), tuple(nodes))


class SandboxLine(Record):
    """A sandbox of this machine."""

    name: str
    nodes: int
    """0 if it does not run."""
    folder: str

    @property
    def text(self) -> str:
        """As ``srobust sandbox list`` prints it."""
        if not self.nodes:
            return f"{self.name}  not running (remove it: srobust sandbox down --name {self.name})"
        return f"{self.name}  {self.nodes} nodes  {self.folder}"


def sandbox_line(name: str) -> SandboxLine:
    """Return what ``srobust sandbox list`` says of a sandbox."""
    folder = StateFolder(name)
    try:
        config = SandboxConfig.from_json(folder.config.read_text())
    except (OSError, ValueError):
        config = None  # An `up` that died before it wrote it.
    if config is None or not procs.sandbox_processes(folder.path):
        return SandboxLine(name=name, nodes=0, folder=str(folder.path))
    return SandboxLine(name=name, nodes=config.nodes, folder=str(folder.path))


def _ask_slurm(sandbox: Sandbox) -> dict[str, tuple[str, str]]:
    try:
        done = sandbox.exec(
            ["sinfo", "--noheader", "--Node", "--format=%N|%T|%E"], user="root", timeout_s=SINFO_TIMEOUT_S
        )
    except SandboxError:
        return {}  # slurmctld is down, which the list of daemons shows.
    found = {}
    for line in done.stdout.splitlines():
        name, state, reason = line.split("|", 2)
        found[name] = (state, "" if reason == "none" else reason)
    return found


def _daemons(sandbox: Sandbox, node: str) -> tuple[str, ...]:
    known = head_services() if node == HEAD else node_services(node)
    running = {procs.daemon_name(child) for child in procs.children(sandbox.node_pid(node)) if child.is_live}
    return tuple(name for name in known if name in running)
