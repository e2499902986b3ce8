"""PID 1 of one node: takes it from a bare fork to a machine with its own network, files and daemons.

It lives in its own pid, mount, net, uts and ipc namespaces, starts daemons on order and reaps what dies. It
ends only by SIGKILL from outside (a power cut), which takes everything on the node with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
from typing import NoReturn, TextIO

from slurm_robust.sandbox import cgroups, linux
from slurm_robust.sandbox.config import HEAD, SandboxConfig
from slurm_robust.sandbox.services import service
from slurm_robust.util.wakeup import WakeUp

IP_TIMEOUT_S = 10.0

# What PID 1 or Python ignores would stay ignored in daemons, and in every job that they start.
_DEFAULT_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGCHLD,
)


def run_node(
    config: SandboxConfig, node: str, mounts: tuple[linux.MountSpec, ...], orders: socket.socket
) -> NoReturn:
    """Become the node. Called in the child of a fork; never returns.

    Protocol on ``orders``, one JSON object a line: the node sends ``{"ready": ...}`` when its network
    namespace exists, the switch answers with any line once the cable is plugged, the node sends
    ``{"ready": ...}`` again when it has booted. From then on each order ``{"start": DAEMON, "args": [...]}``
    is answered with ``{"pid": N}`` or ``{"error": TEXT}``.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    linux.set_comm(f"node:{node}")
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC)
    lines = orders.makefile("rw")
    _say(lines, {"ready": "namespaces"})
    if not lines.readline():
        os._exit(1)
    socket.sethostname(node)
    _network(config, node)
    _files(config, mounts)
    _say(lines, {"ready": "booted"})
    _serve(node, orders)


def _say(lines: TextIO, message: dict[str, object]) -> None:
    lines.write(json.dumps(message) + "\n")
    lines.flush()


def _network(config: SandboxConfig, node: str) -> None:
    commands = [
        "link set lo up",
        f"addr add {config.address(node)}/16 dev eth0",
        "link set eth0 up",
    ]
    if node != HEAD:
        # Programs find their own address by routing to a public one; nothing answers there.
        commands.append(f"route add default via {config.address(HEAD)}")
    subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands) + "\n", text=True, check=True, timeout=IP_TIMEOUT_S
    )


def _files(config: SandboxConfig, mounts: tuple[linux.MountSpec, ...]) -> None:
    linux.mount("proc", "/proc", "proc")
    linux.apply_mounts(mounts)
    # A sysfs made in this network namespace shows this node's links. slurmd asks for something mounted on
    # /sys/fs/cgroup and no more, as long as processes are tracked without cgroups.
    linux.mount("sysfs", "/sys", "sysfs")
    linux.mount("cgroup", cgroups.MOUNT, "tmpfs", options="mode=755")
    if config.cgroups:
        cgroups.enter()
    os.makedirs("/run/mysqld", exist_ok=True)
    os.makedirs("/run/lock", mode=0o1777, exist_ok=True)
    os.chdir("/")


def _serve(node: str, orders: socket.socket) -> NoReturn:
    wakeup = WakeUp()
    wakeup.on_signals()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    buffer = b""
    while True:
        for _ in linux.reaped():
            pass
        readable, _, _ = select.select([orders.fileno(), wakeup.fileno()], [], [])
        if wakeup.fileno() in readable:
            wakeup.clear()
        if orders.fileno() in readable:
            received = orders.recv(65536)
            if not received:
                os._exit(0)  # The sandbox's PID 1 has gone; the kernel is about to end this one too.
            buffer += received
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                orders.sendall(json.dumps(_obey(node, json.loads(line))).encode() + b"\n")


def _obey(node: str, order: dict[str, object]) -> dict[str, object]:
    args = order.get("args")
    argv = tuple(str(arg) for arg in args) if isinstance(args, list) else ()
    try:
        return {"pid": _start(node, str(order["start"]), argv)}
    except (OSError, ValueError) as error:
        return {"error": str(error)}


def _start(node: str, name: str, args: tuple[str, ...]) -> int:
    """Spawn a daemon without a ``Popen`` object, whose reaping would race with PID 1's own."""
    daemon = service(node, name, args)
    output = os.open(daemon.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.posix_spawnp(
            daemon.argv[0],
            daemon.argv,
            daemon.env,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_DUP2, output, 1),
                (os.POSIX_SPAWN_DUP2, output, 2),
            ],
            setsid=True,
            setsigdef=_DEFAULT_SIGNALS,
        )
    finally:
        os.close(output)
        os.close(null)
