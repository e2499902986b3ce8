"""What starts workers: one Protocol, and the real thing, a zygote process behind a socket."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import Protocol, TypeAlias

from slurm_robust.model.record import Record
from slurm_robust.util import proc
from slurm_robust.worker import spawning
from slurm_robust.worker.spawning import FromZygote, Prepare, Spawn, Sweep, ToZygote


class Gone(Record):
    """The launcher itself has ended, and with it every worker it had. It may be started again."""

    reason: str


LauncherMessage: TypeAlias = FromZygote | Gone


class Launcher(Protocol):
    """Starts workers and reports at once how they end. No call blocks.

    After :meth:`start` comes Ready or Fatal. After :meth:`spawn` comes Spawned or SpawnFailed for each
    worker, and after Spawned, once, Exited. A worker leads a process group whose id is its pid; that
    id stays reserved until :meth:`sweep`. When the launcher ends by itself, Gone is the last message.
    """

    def start(self) -> None:
        """Start, or start again after Gone. Raises ``OSError``."""

    def fileno(self) -> int:
        """Descriptor that is readable when :meth:`read` has something; -1 while there is none."""

    def read(self) -> list[LauncherMessage]:
        """All messages that came, oldest first."""

    def spawn(self, order: Spawn, listener: socket.socket | None = None) -> None:
        """Start workers; only after Ready. ``listener`` becomes rank 0's, a duplicate of it."""

    def sweep(self) -> None:
        """Kill what ended workers left in their groups and release their ids."""

    def terminate(self, pid: int) -> None:
        """TERM to the worker's group; KILL at once when the worker is stopped and could not react."""

    def kill(self, pid: int) -> None:
        """KILL to the worker's group."""

    def inject(self, pid: int, number: int) -> None:
        """Send signal ``number`` to the worker alone."""

    def close(self) -> None:
        """End the launcher and kill whatever still lives of its workers."""


class ZygoteLauncher:
    """The :class:`Launcher` that forks workers from a process of its own.

    A process of its own because the agent has threads (ZeroMQ's), and a fork of a process with
    threads is not fit for anything but an exec.
    """

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the zygote, 0 while there is none."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the process; Ready comes when its imports are done."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, spawning.MAX_PACKET_BYTES)
        with theirs:
            self._process = self._run(theirs.fileno())
        ours.setblocking(False)
        self._channel = ours
        self._send(self._prepare)

    def _run(self, channel: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "slurm_robust.worker.zygote"),
                *("--channel", str(channel), "--began", str(time.monotonic())),
            ],
            stdin=subprocess.DEVNULL,
            pass_fds=[channel],
            # Out of the agent's group: a signal that Slurm or a terminal sends to that group
            # must reach the workers through the agent's decision only.
            start_new_session=True,
        )

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._channel.fileno() if self._channel else -1

    def read(self) -> list[LauncherMessage]:
        """Messages of the zygote, and Gone when the socket has ended."""
        found: list[LauncherMessage] = []
        while self._channel is not None:
            try:
                packet = self._channel.recv(spawning.MAX_PACKET_BYTES)
            except BlockingIOError:
                break
            except ConnectionResetError:
                packet = b""
            found.append(spawning.decode_from_zygote(packet) if packet else self._bury())
        return found

    def spawn(self, order: Spawn, listener: socket.socket | None = None) -> None:
        """Have the zygote fork."""
        self._send(order, listener)

    def sweep(self) -> None:
        """Have the zygote sweep."""
        self._send(Sweep())

    def terminate(self, pid: int) -> None:
        """TERM, or KILL for a stopped worker."""
        # Only KILL ends a stopped process; TERM would wait for a CONT until the grace is over.
        _signal_group(pid, signal.SIGKILL if _is_stopped(pid) else signal.SIGTERM)

    def kill(self, pid: int) -> None:
        """KILL to the group."""
        _signal_group(pid, signal.SIGKILL)

    def inject(self, pid: int, number: int) -> None:
        """A signal to the worker alone."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended meanwhile, and that is on its way to us

    def close(self) -> None:
        """End the zygote; it kills its workers. Takes at most about 2 s."""
        if self._channel is not None:
            self._channel.close()  # the zygote kills its workers when it sees this
            self._channel = None
        if self._process is not None:
            _await_end(self._process, 2.0)
            self._process = None

    def _send(self, message: ToZygote, listener: socket.socket | None = None) -> None:
        if self._channel is None:
            return  # Gone was reported; what needs doing is decided again after the next start
        try:
            passed = [] if listener is None else [listener.fileno()]
            socket.send_fds(self._channel, [spawning.encode(message)], passed)
        except (BrokenPipeError, ConnectionResetError):
            pass  # read() will find the end of the channel
        except BlockingIOError:
            # It has not read for a long time: stopped, or hung in an import. End it, so that it is
            # started again.
            assert self._process is not None
            self._process.kill()

    def _bury(self) -> Gone:
        assert self._process is not None
        assert self._channel is not None
        self._channel.close()
        self._channel = None
        code = _await_end(self._process, 1.0)  # it closed its end, so it is about to be over
        self._process = None
        if code is None:
            return Gone(reason="the zygote hangs in the kernel")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Gone(reason=f"the zygote ended by {how}; see the agent's output")


def _await_end(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    """The exit code; killed after ``patience_s`` seconds, None if even that does not end it.

    Its workers die with it in any case, by the kernel's doing.
    """
    for _ in range(2):
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()  # still importing, or stopped
    return None


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # nothing left, or only programs of another user, which Slurm ends with the step


def _is_stopped(pid: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.state in proc.STOPPED
