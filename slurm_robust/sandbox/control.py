"""Orders to a sandbox's PID 1: one JSON object a line over a unix socket in the state folder."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from slurm_robust.sandbox.errors import NotUp, SandboxError

SOCKET = "control.sock"
ORDER_TIMEOUT_S = 20.0


class Control:
    """Client of the sandbox's PID 1. Each call is one connection, bounded in time.

    Every method raises :class:`NotUp` if no process listens and :class:`SandboxError` when the order
    is refused or not answered in time.
    """

    def __init__(self, state: Path, name: str) -> None:
        self._state = state
        self._name = name

    def boot(self, node: str) -> int:
        """Power the node on, without a daemon. Returns its PID 1 as the sandbox's PID namespace counts."""
        return int(str(self._order(order="boot", node=node)["pid"]))

    def start(self, node: str, daemon: str, *args: str) -> None:
        """Start a daemon on a node that is on; ``args`` are further arguments for it."""
        self._order(order="start", node=node, daemon=daemon, args=list(args))

    def power_cut(self, node: str) -> None:
        """Pull the cable, then kill everything on the node: nothing leaves it any more."""
        self._order(order="power-cut", node=node)

    def set_link(self, node: str, *, connected: bool) -> None:
        """Plug or unplug the node's cable at the switch; the node itself goes on."""
        self._order(order="link", node=node, connected=connected)

    def nodes(self) -> dict[str, _RackNode]:
        """Return power and network of every node that was ever booted."""
        raw = self._order(order="state")["nodes"]
        assert isinstance(raw, dict)
        return {name: _RackNode(**fields) for name, fields in raw.items()}

    def _order(self, **order: object) -> dict[str, object]:
        try:
            folder = os.open(self._state, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise self._not_up() from None
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(ORDER_TIMEOUT_S)
                # By descriptor: the folder's own path may exceed the 107 characters of a socket's.
                link.connect(f"/proc/self/fd/{folder}/{SOCKET}")
                link.sendall(json.dumps(order).encode() + b"\n")
                with link.makefile("r") as lines:
                    text = lines.readline()
        except (FileNotFoundError, ConnectionRefusedError):
            raise self._not_up() from None
        except TimeoutError:
            raise SandboxError(
                f"the sandbox {self._name!r} did not answer {order['order']} within {ORDER_TIMEOUT_S:g} s",
                fix=f"end it with: srobust sandbox down --name {self._name}",
            ) from None
        finally:
            os.close(folder)
        if not text:
            raise self._not_up()
        answer = json.loads(text)
        assert isinstance(answer, dict)
        if "error" in answer:
            raise SandboxError(str(answer["error"]), fix=f"see srobust sandbox logs init --name {self._name}")
        return answer

    def _not_up(self) -> NotUp:
        return NotUp(
            f"no sandbox {self._name!r} is up", fix=f"start it with: srobust sandbox up --name {self._name}"
        )


class _RackNode:
    """What the power rack and the switch know of a node. ``pid`` counts in the sandbox's PID namespace."""

    def __init__(self, *, pid: int, connected: bool) -> None:
        self.pid = pid
        self.connected = connected

    @property
    def on(self) -> bool:
        """Whether the node has power."""
        return self.pid > 0
