"""PID 1 of a sandbox: its switch and its power rack.

``python -m slurm_robust.sandbox.init STATE_FOLDER`` makes the outer namespaces, forks PID 1 into them and
ends. PID 1 owns the bridge, forks the nodes, and takes orders on a unix socket in the state folder. All
nodes are nested in its PID namespace: when it dies, by whatever signal, the kernel kills every process of
the sandbox, and with the last one go the namespaces, links and mounts.
"""

from __future__ import annotations

import ipaddress
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from pathlib import Path

from slurm_robust.sandbox import linux
from slurm_robust.sandbox.config import SandboxConfig
from slurm_robust.sandbox.control import SOCKET
from slurm_robust.sandbox.folder import StateFolder
from slurm_robust.sandbox.mounts import ReachablePath, closed_to_others, plan_mounts, python_paths
from slurm_robust.sandbox.node import run_node
from slurm_robust.util.wakeup import WakeUp

BRIDGE = "switch"
IP_TIMEOUT_S = 10.0
NODE_BOOT_S = 15.0
KILL_S = 5.0
CHROOT = "A chroot needs one: outside of it, 'mount --bind DIR DIR' before 'chroot DIR'"
"""What to do where the mounts of a sandbox cannot be kept apart from the machine's."""


class _InitNode:
    """A node that is on, or was."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self.pid = pid
        self.link = link
        self.connected = True

    def call(self, order: dict[str, object], timeout_s: float) -> dict[str, object]:
        """Send one order and return the answer. Raises ``OSError``, ``TimeoutError`` too."""
        self.link.settimeout(timeout_s)
        self.link.sendall(json.dumps(order).encode() + b"\n")
        return self.receive(timeout_s)

    def receive(self, timeout_s: float) -> dict[str, object]:
        """Return the next line from the node. Raises ``OSError`` when it does not come."""
        self.link.settimeout(timeout_s)
        buffer = b""
        while not buffer.endswith(b"\n"):
            received = self.link.recv(65536)
            if not received:
                raise ConnectionError("the node died; see log/init.log in the state folder")
            buffer += received
        answer = json.loads(buffer)
        assert isinstance(answer, dict)
        return answer


class Rack:
    """Boots nodes, cuts their power, plugs and unplugs their cables."""

    def __init__(self, config: SandboxConfig, state: Path) -> None:
        self._config = config
        self._nodes: dict[str, _InitNode] = {}
        wanted = [ReachablePath(path) for path in python_paths()]
        wanted += [ReachablePath(path, read_only=False) for path in config.binds]
        if config.gpus_per_node:
            wanted.append(ReachablePath(str(StateFolder(state.name, state.parent).libraries)))
        # Planned before anything is mounted: it depends on the modes of the machine's own folders.
        self._mounts = {
            name: plan_mounts(config, state=str(state), node=name, wanted=wanted, closed=closed_to_others)
            for name in config.all_names
        }

    def boot(self, name: str) -> int:
        """Power a node on. Raises ``ValueError`` for a node that does not exist or is on already."""
        if name not in self._mounts:
            raise ValueError(f"no node {name!r}; there are: {', '.join(self._config.all_names)}")
        known = self._nodes.get(name)
        if known and known.pid:
            raise ValueError(f"{name} is on already; cut its power first")
        ours, theirs = socket.socketpair()
        pid = linux.fork_into_pid_namespace()
        if pid == 0:
            ours.close()
            self._become(name, theirs)
        theirs.close()
        node = _InitNode(pid, ours)
        self._nodes[name] = node
        try:
            node.receive(NODE_BOOT_S)
            # The same hardware address after each boot, as a real machine's card has: the other nodes keep
            # it in their ARP tables for a while and would not reach the rebooted node.
            card = ":".join(
                f"{byte:02x}" for byte in (2, 0, *ipaddress.IPv4Address(self._config.address(name)).packed)
            )
            _ip(f"link add v-{name} type veth peer name eth0 address {card} netns {pid}")
            _ip(f"link set v-{name} master {BRIDGE} up")
            node.call({"plugged": True}, NODE_BOOT_S)
        except (OSError, subprocess.SubprocessError):
            self.power_cut(name)
            raise
        return pid

    def _become(self, name: str, orders: socket.socket) -> None:
        """Become the node, in the fork, or die with the reason in init.log."""
        try:
            run_node(self._config, name, self._mounts[name], orders)
        except BaseException:  # noqa: BLE001  # the fork must never return into the switch's own loop
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def power_cut(self, name: str) -> None:
        """Cut the cable first, so that no FIN leaves; then send SIGKILL to the node's PID 1."""
        node = self._on(name)
        subprocess.run(["ip", "link", "set", f"v-{name}", "nomaster"], check=False, timeout=IP_TIMEOUT_S)
        pid, node.pid, node.connected = node.pid, 0, False
        os.kill(pid, signal.SIGKILL)
        node.link.close()
        deadline = time.monotonic() + KILL_S
        while time.monotonic() < deadline and not os.waitpid(pid, os.WNOHANG)[0]:
            time.sleep(0.005)
        # The kernel removes the pair some time after the namespace; a boot must not meet the old one.
        subprocess.run(
            ["ip", "link", "del", f"v-{name}"], check=False, stderr=subprocess.DEVNULL, timeout=IP_TIMEOUT_S
        )

    def set_link(self, name: str, connected: bool) -> None:
        """Plug or unplug the cable of a node that is on."""
        node = self._on(name)
        _ip(f"link set v-{name} {f'master {BRIDGE}' if connected else 'nomaster'}")
        node.connected = connected

    def start(self, name: str, daemon: str, args: list[str]) -> dict[str, object]:
        """Have the node start a daemon."""
        return self._on(name).call({"start": daemon, "args": args}, NODE_BOOT_S)

    def state(self) -> dict[str, object]:
        """Return the state as :meth:`Control.nodes` reads it."""
        return {n: {"pid": node.pid, "connected": node.connected} for n, node in self._nodes.items()}

    def lost(self, pid: int) -> None:
        """Note that a child was reaped: if it was a node's PID 1, the node is off now."""
        for node in self._nodes.values():
            if node.pid == pid:
                node.pid, node.connected = 0, False
                node.link.close()

    def _on(self, name: str) -> _InitNode:
        if name not in self._mounts:
            raise ValueError(f"no node {name!r}; there are: {', '.join(self._config.all_names)}")
        node = self._nodes.get(name)
        if node is None or not node.pid:
            raise ValueError(f"{name} is off; boot it first")
        return node


def _ip(command: str) -> None:
    subprocess.run(["ip", *command.split()], check=True, timeout=IP_TIMEOUT_S)


def obey(rack: Rack, order: dict[str, object]) -> dict[str, object]:
    """Carry out one order of :class:`Control`; what goes wrong is answered as ``error``."""
    kind, node = str(order.get("order")), str(order.get("node"))
    args = order.get("args")
    try:
        if kind == "boot":
            return {"pid": rack.boot(node)}
        if kind == "start":
            argv = [str(arg) for arg in args] if isinstance(args, list) else []
            return rack.start(node, str(order["daemon"]), argv)
        if kind == "power-cut":
            rack.power_cut(node)
        elif kind == "link":
            rack.set_link(node, bool(order["connected"]))
        elif kind == "state":
            return {"nodes": rack.state()}
        else:
            return {"error": f"unknown order {kind!r}"}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"error": f"{kind} {node}: {error}"}
    return {"ok": True}


def serve(rack: Rack, state: Path) -> None:
    """Take orders, one connection after the other, and reap. Returns never."""
    os.chdir(state)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Relative, then renamed: a socket that can be seen is one that is listened to.
    listener.bind(SOCKET + ".new")
    os.chmod(SOCKET + ".new", 0o600)
    listener.listen(16)
    os.rename(SOCKET + ".new", SOCKET)
    wakeup = WakeUp()
    wakeup.on_signals()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([listener.fileno(), wakeup.fileno()], [], [])
        if wakeup.fileno() in readable:
            wakeup.clear()
            for pid in linux.reaped():
                rack.lost(pid)
        if listener.fileno() in readable:
            connection, _ = listener.accept()
            with connection:
                _answer(rack, connection)


def _answer(rack: Rack, connection: socket.socket) -> None:
    connection.settimeout(5.0)
    try:
        with connection.makefile("rw") as lines:
            text = lines.readline()
            if text:
                lines.write(json.dumps(obey(rack, json.loads(text))) + "\n")
                lines.flush()
    except (OSError, json.JSONDecodeError) as error:
        print(f"a client went away: {error}", file=sys.stderr, flush=True)


def main(argv: list[str]) -> int:
    """Make the namespaces, fork PID 1 into them, and end once it exists."""
    state = Path(argv[1])
    config = SandboxConfig.from_json((state / "config.json").read_text())
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
    linux.unshare(flags)
    if linux.fork_into_pid_namespace() != 0:
        return 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    linux.set_comm(f"sandbox:{state.name}")
    try:
        linux.mount("none", "/", None, linux.MS_REC | linux.MS_PRIVATE)
    except OSError as error:
        print(f"{error}: the root is no mount point. {CHROOT}", file=sys.stderr, flush=True)
        return 1
    linux.mount("proc", "/proc", "proc")
    _ip(f"link add {BRIDGE} type bridge")
    _ip(f"link set {BRIDGE} up")
    serve(Rack(config, state), state)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
