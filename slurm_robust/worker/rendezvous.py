"""The meeting of ranks: rank 0 uses a socket that listens already, the others come as soon as it does.

The port is held for rank 0 before it starts (:mod:`slurm_robust.wire.network`), so that no other process of
the node can take it.

After a restart all ranks reach ``init_process_group`` within milliseconds of each other, so some come before
rank 0 listens if it binds the port by itself. torch then retries after 0.3 to 0.7 s, which is longer than the
rest of the restart. Only a connection shows whether rank 0 listens, and one that is closed immediately stands
in the queue until rank 0 has taken it out; so ranks try only if the queue has room for all of them.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

from slurm_robust.util.text import version_numbers

BACKLOG = 4096
"""Connections that the kernel keeps for rank 0's store; at most net.core.somaxconn."""

# The first release whose store of libuv, its usual one since 2.4, can be given a socket.
_LIBUV_LISTENS = (2, 8)
# After this it is no longer a matter of milliseconds, and torch's own patience goes on.
_LIMIT_S = 30.0
_LONGEST_PAUSE_S = 0.25
# Arguments of torch's TCPStore between is_master and master_listen_fd.
_BEFORE_LISTENER = 3
# Events of Python's audit hooks: this process starts another one.
_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.system", "os.fork", "os.forkpty"})
# Connections a second that rank 0's node gets from all waiting ranks together.
_PROBES_PER_S = 20_000


def listen_on(listener: int) -> None:
    """Have torch's store in this process, rank 0's, use the listening socket, which has ``MASTER_PORT``.

    If torch cannot take it, or the script starts processes of its own, one of which may want the port, it is
    closed and the port is free.
    """
    held = [listener]
    module: Any = sys.modules.get("torch.distributed")
    store = getattr(module, "TCPStore", None)
    if store is None or "master_listen_fd" not in (store.__init__.__doc__ or ""):
        os.close(held.pop())
        return
    libuv_listens = version_numbers(sys.modules["torch"].__version__) >= _LIBUV_LISTENS
    original, ours = store.__init__, os.environ.get("MASTER_PORT", "")

    def init(
        self: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        *rest: Any,
        **named: Any,
    ) -> None:
        is_ours = is_master and str(port) == ours
        if held and is_ours and len(rest) <= _BEFORE_LISTENER and "master_listen_fd" not in named:
            named["master_listen_fd"] = held.pop()  # the store closes it
            if not libuv_listens:
                named["use_libuv"] = False
        original(self, host_name, port, world_size, is_master, *rest, **named)

    def let_go() -> None:
        while held:
            os.close(held.pop())

    def on_event(event: str, _: object) -> None:
        if held and event in _STARTS:
            let_go()

    process_starts: Any = util
    start = process_starts.spawnv_passfds

    def start_afresh(*args: Any) -> Any:
        let_go()
        return start(*args)

    store.__init__ = init
    process_starts.spawnv_passfds = start_afresh  # for which Python has no hook
    sys.addaudithook(on_event)


def await_rank_zero() -> None:
    """Have ``init_process_group`` in this process wait for rank 0 in small steps.

    Only if torch is loaded, and only for the store that torch's own rendezvous makes.
    """
    module: Any = sys.modules.get("torch.distributed.rendezvous")
    original = getattr(module, "TCPStore", None)
    if original is None or os.environ.get("RANK") == "0":
        return

    module.TCPStore = patient(original)


def patient(store: Callable[..., Any]) -> Callable[..., Any]:
    """Make ``store`` when rank 0 listens, or immediately if the ranks are too many to try."""

    def made(*args: Any, **kwargs: Any) -> Any:
        try:
            world = int(kwargs.get("world_size") or 1)
            if not kwargs["is_master"] and 2 * world <= _room():
                wait_until_listening(kwargs["host_name"], kwargs["port"], world)
        except (KeyError, TypeError, ValueError):
            pass  # another torch calls it otherwise: then it waits in its own way
        return store(*args, **kwargs)

    return made


def _room() -> int:
    """Return how many connections rank 0's queue takes if its node has the limit of this one."""
    try:
        return min(BACKLOG, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    except (OSError, ValueError):
        return BACKLOG


def wait_until_listening(host: str, port: int, world_size: int, limit_s: float = _LIMIT_S) -> bool:
    """Return True as soon as ``host:port`` accepts connections, False after ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    pause = max(0.005, world_size / _PROBES_PER_S)
    while True:
        try:
            socket.create_connection((host, port), timeout=1.0).close()
            return True
        except OSError:
            if time.monotonic() + pause > deadline:
                return False
        time.sleep(pause)
        pause = max(pause, min(_LONGEST_PAUSE_S, 1.3 * pause))
