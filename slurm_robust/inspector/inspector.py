"""The agent's side of the inspector: starts it, starts it again when it ends, and reads its observations."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import partial

import msgspec

from slurm_robust.inspector.observation import Observation, decode
from slurm_robust.model.job import InspectionSpec
from slurm_robust.util.process import signal_group
from slurm_robust.util.threads import Executor

_ENDED = "inspection: it ended and is started again; see the agent's output"
_PACKET_BYTES = 256 * 1024
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 300.0
# After this long the next failure counts as a first one.
_LONG_S = 60.0
_END_S = 0.5
# All probes silent for this many of their longest intervals: the process is stopped, or hangs in the kernel.
_SILENT_INTERVALS = 5


class Inspector:
    """Starts the process and reads its observations. No call blocks. Times are monotonic seconds."""

    def __init__(self, spec: InspectionSpec, arguments: Sequence[str] = ()) -> None:
        self._spec = spec
        self._longest_s = max(spec.kernel_s, spec.gpu_s, spec.network_s, spec.node_s)
        self._arguments = arguments
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        # Starting a program waits for the storage that it is on.
        self._starter: Executor[subprocess.Popen[bytes]] = Executor("start")
        self._start_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._began = self._heard = 0.0
        self._ending: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        """Process id of the inspector, 0 while there is none."""
        return self._process.pid if self._process else 0

    def fileno(self) -> int:
        """Return descriptor that is readable when :meth:`read` has something; -1 while there is none."""
        return self._channel.fileno() if self._channel else -1

    def read(self, now: float) -> list[Observation]:
        """Return observations since the last call; the end of the process is one. Starts it when due."""
        self._ending = [process for process in self._ending if process.poll() is None]
        self._take_started()
        if self._channel is None:
            if now >= self._start_at:
                self._start(now)
            return []
        found: list[Observation] = []
        while self._channel is not None:
            try:
                packet = self._channel.recv(_PACKET_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packet = b""
            found.append(_understood(packet) if packet else self._bury(now))
        if found:
            self._heard = now
        elif self._process is not None and now - self._heard > _SILENT_INTERVALS * self._longest_s:
            found.append(self._bury(now))
        return found

    def close(self) -> None:
        """End it, and with it its children."""
        self._take_started()
        if self._channel is not None:
            self._bury(0.0)
        self._starter.close()  # what it has started meanwhile dies with it
        for process in self._ending:
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                pass  # it hangs in the kernel, and holds nothing of ours

    def _take_started(self) -> None:
        for process in self._starter.results():
            self._process = process

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PACKET_BYTES)
        args = ["--channel", str(theirs.fileno()), "--parent", str(os.getpid())]
        args += ["--spec", msgspec.json.encode(self._spec).decode(), *self._arguments]
        self._starter.submit(partial(_spawn, args, theirs))
        ours.setblocking(False)
        self._channel, self._began, self._heard = ours, now, now

    def _bury(self, now: float) -> Observation:
        assert self._channel is not None
        self._channel.close()
        self._channel = None
        if self._process is not None:  # else it could not be started
            # All of it: a child that was stopped before it could ask for that does not die with its parent.
            signal_group(self._process.pid, signal.SIGKILL)
            self._ending.append(self._process)
            self._process = None
        if now - self._began > _LONG_S:
            self._pause_s = _FIRST_PAUSE_S
        self._start_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return Observation(notes=(_ENDED,))


def _spawn(args: Sequence[str], channel: socket.socket) -> subprocess.Popen[bytes]:
    with channel:
        return subprocess.Popen(
            [sys.executable, "-m", "slurm_robust.inspector", *args],
            stdin=subprocess.DEVNULL,
            pass_fds=[channel.fileno()],
            # A signal to the agent's group is no order to it.
            start_new_session=True,
        )


def _understood(packet: bytes) -> Observation:
    try:
        return decode(packet)
    except msgspec.DecodeError as error:
        return Observation(notes=(f"inspection: the inspector sent an unreadable packet: {error}",))
