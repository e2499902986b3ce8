"""What a worker prepares so that a hang of it can be seen from outside.

Three things, none of which costs anything until it is used, and none of which needs the interpreter then: the
agent's children may trace this process; a signal has all threads' calls written to a file by a handler in C;
PyTorch's own server, threads in C++, serves the flight recorder's entries on a socket.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from functools import cache
from pathlib import Path

# Programs that use real-time signals begin at the lowest; this one is three below the highest.
DUMP_SIGNAL = signal.SIGRTMAX - 3
STACKS_SUFFIX = ".stacks"
RECORDER_SUFFIX = ".sock"

_PR_SET_PTRACER = 0x59616D61  # "Yama"
_SOCKET_PATH_BYTES = 107  # sun_path of unix(7), without its closing zero


def allow_tracing(agent: int) -> None:
    """Let process ``agent`` and its children trace this process and its forks if Yama forbids that.

    Yama lets only ancestors trace (``ptrace_scope`` 1), and py-spy is the agent's child. The permission
    outlives an exec, but a fork is without it.
    """

    def permit() -> None:
        # Without Yama there is nothing to permit.
        _libc().prctl(_PR_SET_PTRACER, ctypes.c_ulong(agent), 0, 0, 0)

    permit()
    os.register_at_fork(after_in_child=permit)


def prepare(record: str) -> None:
    """Have this process, whose step record is ``record``, show what it does; never raises.

    The files lie beside the record: the handler of :data:`DUMP_SIGNAL` writes to ``.stacks``, and the flight
    recorder answers on ``.sock``. The open file is also how the agent knows that the handler is there: the
    signal would kill a process without it.
    """
    try:
        file = Path(record).with_suffix(STACKS_SUFFIX)
        # Appending, so that the agent can empty it before it asks; forked children share it.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.register(DUMP_SIGNAL, file=descriptor, all_threads=True, chain=False)
        _serve_recorder(Path(record).with_suffix(RECORDER_SUFFIX))
    except Exception as error:  # noqa: BLE001 - training comes first
        print(f"slurm_robust: a hang of this rank will leave less evidence: {error}", file=sys.stderr)


@cache
def _libc() -> ctypes.CDLL:
    # Once, ahead of all forks: another thread may hold the loader's lock when one happens.
    return ctypes.CDLL(None)


def _serve_recorder(path: Path) -> None:
    if "torch" not in sys.modules or os.environ.get("WORLD_SIZE", "1") == "1":
        return
    if len(os.fsencode(path)) > _SOCKET_PATH_BYTES:
        return  # the agent finds no socket, hence no collectives
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError:
        return  # built without torch.distributed, or older than 2.4
    with _Silence():
        server = _WorkerServer(str(path))
    # Never freed: in a fork its destructor would wait for threads that only this process has.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))


class _Silence:
    """No stderr for C++ code that greets; only while this process has one thread."""

    def __enter__(self) -> None:
        self._kept = os.dup(2)
        null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(null, 2)
        os.close(null)

    def __exit__(self, *_: object) -> None:
        os.dup2(self._kept, 2)
        os.close(self._kept)
