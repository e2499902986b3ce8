"""Meets rank 0 as soon as it listens, where torch would look again only after up to a second.

After a restart all ranks reach ``init_process_group`` within milliseconds of each other, so some come
before rank 0 listens. torch then retries after 0.3 to 0.7 s, which is longer than the rest of the restart.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from typing import Any

# After this it is no longer a matter of milliseconds, and torch's own patience goes on.
_LIMIT_S = 30.0
_LONGEST_PAUSE_S = 0.25
# Connections a second that rank 0's node gets from all waiting ranks together.
_PROBES_PER_S = 20_000


def await_rank_zero() -> None:
    """Have ``init_process_group`` in this process wait for rank 0 in small steps.

    Only where torch is loaded, and only for the store that torch's own rendezvous makes.
    """
    module: Any = sys.modules.get("torch.distributed.rendezvous")
    original = getattr(module, "TCPStore", None)
    if original is None or os.environ.get("RANK") == "0":
        return

    def patient_store(*args: Any, **kwargs: Any) -> Any:
        try:
            if not kwargs["is_master"]:
                world = int(kwargs.get("world_size") or 1)
                wait_until_listening(kwargs["host_name"], kwargs["port"], world)
        except (KeyError, TypeError, ValueError):
            pass  # another torch calls it otherwise: then it waits in its own way
        return original(*args, **kwargs)

    module.TCPStore = patient_store


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
