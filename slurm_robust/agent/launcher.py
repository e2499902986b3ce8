"""What starts workers: one Protocol, and the real thing, a zygote process behind a socket."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from slurm_robust.model.job import CommandKind
from slurm_robust.model.record import Record
from slurm_robust.util import proc
from slurm_robust.util.process import signal_group
from slurm_robust.util.text import one_line
from slurm_robust.worker import spawning
from slurm_robust.worker.spawning import (
    Exited,
    Fatal,
    FromZygote,
    Prepare,
    RankProgram,
    Ready,
    Serve,
    Spawn,
    SpawnFailed,
    Sweep,
    ToZygote,
)


class Gone(Record):
    """The launcher itself has ended, and with it every worker it had. It may be started again."""

    reason: str


class TryOver(Record):
    """Order ``number`` to try a release is over."""

    number: int
    ok: bool
    text: str = ""  # why it failed, or what could not be tried
    traceback: str = ""


class LoadOver(Record):
    """Order ``number`` to load modules is over; ``notes`` say what could not be done."""

    number: int
    notes: tuple[str, ...] = ()


_MAX_CHARS = 300

LauncherMessage: TypeAlias = FromZygote | Gone | LoadOver | TryOver

LOAD_S = 300.0
"""A zygote that has not imported everything by then is given up: storage is slow, or an import hangs."""

MAX_UNFIT = 5
"""So many modules are left out, each after a try; if more fail, no zygote replaces the present one."""


class Launcher(Protocol):
    """Starts workers and reports immediately how they end. No call blocks.

    After :meth:`start` comes Ready or Fatal. After :meth:`spawn` comes Spawned or SpawnFailed for each
    worker, and after Spawned, once, Exited. A worker leads a process group whose id is its pid; that
    id stays reserved until :meth:`sweep`. When the launcher ends by itself, Gone is the last message.
    """

    def start(self, program: RankProgram | None = None) -> None:
        """Start, or start again after Gone. Raises ``OSError``.

        ``program``: what workers will run, as far as that is known; any other can be spawned as well.
        """

    def fileno(self) -> int:
        """Return the descriptor that is readable when :meth:`read` has something; -1 before the start."""

    def read(self) -> list[LauncherMessage]:
        """Return all messages that came, oldest first."""

    def spawn(self, order: Spawn, listener: socket.socket | None = None) -> None:
        """Start workers; only after Ready. ``listener`` becomes rank 0's, a duplicate of it."""

    def load(self, number: int, modules: tuple[str, ...]) -> None:
        """Have later workers begin with the ``modules`` that a fork can have imported; then LoadOver comes.

        ``number``: above that of the last order, which may get no answer then. Workers that live are not
        touched, and whatever goes wrong, new ones can be started as before. Only after Ready.

        Raises ``OSError``.
        """

    def attempt(self, number: int, program: RankProgram, needed: tuple[str, ...], limit_s: float) -> None:
        """Find out whether the modules that ``program`` needs can be imported here; then TryOver comes.

        If so, workers of ``program`` begin with them, as far as a fork can have them. Workers that live are
        not touched, and whatever goes wrong, new ones can be started as before. Only after Ready.

        Raises ``OSError``.
        """

    def fork_writer(self) -> socket.socket | None:
        """Return a channel to a new storage writer; None while nothing can fork one. In any thread."""

    def sweep(self) -> None:
        """Kill what ended workers left in their groups and release their ids."""

    def terminate(self, pid: int) -> None:
        """Send TERM to the worker's group; KILL if the worker is stopped and could not react."""

    def kill(self, pid: int) -> None:
        """Send KILL to the worker's group."""

    def inject(self, pid: int, number: int) -> None:
        """Send signal ``number`` to the worker alone."""

    def close(self) -> None:
        """End the launcher and kill whatever still lives of its workers."""


class _Zygote:
    """One process, and our end of the channel to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket, prepare: Prepare) -> None:
        self.process = process
        self.channel = channel
        self.prepare = prepare
        self.ready: Ready | None = None

    def has(self, program: RankProgram, needed: tuple[str, ...]) -> bool:
        """Return whether it has imported all that ``program`` needs, as an interpreter of that would."""
        ready = self.ready
        if ready is None or ready.is_bound or program.env != self.prepare.env:
            return False
        return set(needed) <= set(ready.modules)

    def recv(self) -> bytes | None:
        """Return a packet; b"" at the end of the channel, None while there is nothing."""
        try:
            return self.channel.recv(spawning.MAX_PACKET_BYTES)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            return b""

    def send(self, message: ToZygote, listener: socket.socket | None = None) -> None:
        """Send, unless it has ended, which :meth:`recv` finds."""
        try:
            passed = [] if listener is None else [listener.fileno()]
            socket.send_fds(self.channel, [spawning.encode(message)], passed)
        except (BrokenPipeError, ConnectionResetError):
            pass
        except BlockingIOError:
            # It has not read for a long time: stopped, or hung in an import. End it, so that it is
            # started again.
            self.process.kill()

    def close(self) -> None:
        """Have it end, and its workers with it, by the end of the channel."""
        self.channel.close()


@dataclass
class _Successor:
    """A zygote that will replace the present one; times are monotonic seconds."""

    number: int
    wish: Prepare  # with all modules
    zygote: _Zygote
    limit_s: float
    until: float
    is_trial: bool  # of a release
    left_out: dict[str, str] = field(default_factory=dict)  # modules, with the reason
    is_up: bool = False
    is_bound: bool = False  # good for its own release only


class ZygoteLauncher:
    """The :class:`Launcher` that forks workers from a process of its own.

    A process of its own because the agent has threads (ZeroMQ's), and a fork of a process with
    threads is not fit for anything but an exec.

    A zygote in which an import has failed cannot be trusted any more. So modules are loaded by a second one,
    which replaces the first when it is up and no worker of the first is left.
    """

    def __init__(self, prepare: Prepare) -> None:
        self._prepare = prepare
        self._learned: tuple[str, ...] = ()
        self._deferred: tuple[int, tuple[str, ...]] | None = None  # an order to load that came during a trial
        self._ended_orders: list[LauncherMessage] = []
        self._zygote: _Zygote | None = None
        self._successor: _Successor | None = None
        self._ending: list[tuple[subprocess.Popen[bytes], float]] = []  # replaced, with when to kill each
        self._news = select.epoll()
        self._living = 0  # workers that were ordered and are not known to have ended
        self._unswept = 0

    @property
    def pid(self) -> int:
        """Process id of the zygote, 0 while there is none."""
        return self._zygote.process.pid if self._zygote else 0

    def start(self, program: RankProgram | None = None) -> None:
        """Start the process; Ready comes when its imports are done."""
        self._living = self._unswept = 0
        if program is not None:
            self._prepare = _prepare_for(self._prepare, program)
        self._zygote = self._begin(self._prepare)

    def _begin(self, prepare: Prepare) -> _Zygote:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, spawning.MAX_PACKET_BYTES)
        with theirs:
            process = self._run(theirs.fileno())
        ours.setblocking(False)
        self._news.register(ours, select.EPOLLIN)  # until it is closed
        zygote = _Zygote(process, ours, prepare)
        zygote.send(prepare)
        return zygote

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
        """Return one for the sockets of both zygotes."""
        return self._news.fileno() if self._zygote else -1

    def read(self) -> list[LauncherMessage]:
        """Return the messages of the zygote, with Gone when its socket has ended, LoadOver and TryOver."""
        found, self._ended_orders = self._ended_orders, []
        while self._zygote is not None and (packet := self._zygote.recv()) is not None:
            message = spawning.decode_from_zygote(packet) if packet else self._bury()
            found += self._ended_orders
            self._ended_orders = []
            if isinstance(message, Ready):
                self._zygote.ready = message
            if isinstance(message, Exited | SpawnFailed):
                self._living -= 1
                self._unswept += isinstance(message, Exited)
            found.append(message)
        left = [(process, until) for process, until in self._ending if process.poll() is None]
        for process, until in left:
            if time.monotonic() > until:
                process.kill()
        self._ending = left
        found += self._follow_successor()
        return found

    def spawn(self, order: Spawn, listener: socket.socket | None = None) -> None:
        """Have the zygote fork."""
        if not self._living:
            self._unswept = 0  # whatever they left ends with the zygote that is replaced
            self._replace(order)
        self._prepare = _prepare_for(
            self._prepare,
            RankProgram(
                command_kind=order.command_kind, command=order.command, code=order.code, env=order.env
            ),
        )
        if self._zygote is not None:  # else Gone was reported; all is decided again after the next start
            self._living += len(order.workers)
            self._zygote.send(order, listener)

    def load(self, number: int, modules: tuple[str, ...]) -> None:
        """Start a zygote that imports them, too."""
        self._learned = modules
        if self._successor is not None and self._successor.is_trial and not self._successor.is_up:
            self._deferred = number, modules
            return
        self._drop_successor()
        if self._zygote is not None and modules:
            wish = msgspec.structs.replace(self._prepare, learned=modules)
            self._try(number, wish, LOAD_S, is_trial=False)

    def attempt(self, number: int, program: RankProgram, needed: tuple[str, ...], limit_s: float) -> None:
        """Start a zygote that imports them, too, if need be; it is kept for the launch of ``program``."""
        before = self._successor
        if before is None or before.is_up or not before.is_trial:
            known = (self._zygote, before.zygote if before is not None else None)
            if any(zygote is not None and zygote.has(program, needed) for zygote in known):
                self._ended_orders.append(TryOver(number=number, ok=True))
                return
        if before is not None and not before.is_up:
            # It is given up; the controller need not wait for it.
            over = LoadOver(number=before.number)
            self._ended_orders += [] if before.is_trial else [over]
        self._drop_successor()
        if self._zygote is None:
            text = "its imports were not tried on this node: there is no zygote"
            self._ended_orders.append(TryOver(number=number, ok=True, text=text))
        else:
            wish = _prepare_for(self._prepare, program)
            wish = msgspec.structs.replace(wish, learned=self._learned, needed=needed)
            self._try(number, wish, limit_s, is_trial=True)

    def _try(
        self,
        number: int,
        wish: Prepare,
        limit_s: float,
        *,
        is_trial: bool,
        until: float | None = None,
        left_out: dict[str, str] | None = None,
    ) -> None:
        """Raises ``OSError``."""
        left_out = left_out or {}

        def wanted(modules: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(name for name in modules if not _is_below(name, left_out))

        prepare = msgspec.structs.replace(wish, learned=wanted(wish.learned), needed=wanted(wish.needed))
        zygote = self._begin(prepare)
        until = until or time.monotonic() + limit_s
        self._successor = _Successor(number, wish, zygote, limit_s, until, is_trial, left_out)

    def _follow_successor(self) -> list[LauncherMessage]:
        """See how far it is, and let it replace the zygote."""
        successor = self._successor
        if successor is None or self._zygote is None:
            return []
        packet = successor.zygote.recv()
        if packet is None:
            if successor.is_up or time.monotonic() < successor.until:
                return []
            late = f"took more than {successor.limit_s:.0f} s"
            if successor.is_trial:
                return self._refuse(successor, f"its imports {late} on this node")
            return self._keep(f"their imports {late}")
        if not packet:
            return self._keep("a zygote that imported them ended")
        match spawning.decode_from_zygote(packet):
            case Ready(is_bound=is_bound) as ready:
                successor.is_up, successor.is_bound, successor.zygote.ready = True, is_bound, ready
                if not self._living and not self._unswept and not is_bound:
                    self._replace()
                if successor.is_trial:
                    return [TryOver(number=successor.number, ok=True), *self._load_deferred()]
                left_out = (
                    f"'{name}', which the job imports, is not imported before the next start: {why}"
                    for name, why in successor.left_out.items()
                )
                return [LoadOver(number=successor.number, notes=tuple(left_out))]
            case Fatal(module=module, reason=reason, traceback=trace) if trace and successor.is_trial:
                text = f"module {module} cannot be imported on this node: {reason}" if module else reason
                return self._refuse(successor, text, trace)
            case Fatal(module=module, reason=reason):
                return self._leave_out(successor, module, reason) if module else self._keep(reason)
        return []

    def _leave_out(self, successor: _Successor, module: str, reason: str) -> list[LauncherMessage]:
        """Try without a module."""
        left_out = {**successor.left_out, module: reason}
        if len(left_out) > MAX_UNFIT:
            return self._keep("; ".join(f"{name}: {why}" for name, why in left_out.items()))
        self._drop_successor()
        try:
            self._try(
                successor.number,
                successor.wish,
                successor.limit_s,
                is_trial=successor.is_trial,
                until=successor.until,
                left_out=left_out,
            )
        except OSError as error:
            return self._kept(successor, str(error))
        return []

    def _keep(self, why: str) -> list[LauncherMessage]:
        """Let the present zygote stay."""
        successor = self._successor
        assert successor is not None
        self._drop_successor()
        return self._kept(successor, why)

    def _kept(self, successor: _Successor, why: str) -> list[LauncherMessage]:
        if not successor.is_trial:
            return [_not_loaded(successor.number, why)]
        text = one_line(f"its imports could not be tried on this node: {why}", _MAX_CHARS)
        return [TryOver(number=successor.number, ok=True, text=text), *self._load_deferred()]

    def _refuse(self, successor: _Successor, text: str, trace: str = "") -> list[LauncherMessage]:
        """Say that the release does not work here."""
        self._drop_successor()
        over = TryOver(number=successor.number, ok=False, text=one_line(text, _MAX_CHARS), traceback=trace)
        return [over, *self._load_deferred()]

    def _load_deferred(self) -> list[LauncherMessage]:
        """Do what had to wait for the end of a trial, unless its zygote is there for the next launch."""
        deferred, self._deferred = self._deferred, None
        if deferred is None:
            return []
        if self._successor is not None:
            return [LoadOver(number=deferred[0])]
        try:
            self.load(*deferred)
        except OSError as error:
            return [_not_loaded(deferred[0], str(error))]
        return []

    def _replace(self, order: Spawn | None = None) -> None:
        """Let the successor take over, if it is up and good for ``order``. No worker lives."""
        successor = self._successor
        if successor is None or not successor.is_up or self._zygote is None:
            return
        if successor.is_bound and (order is None or order.code != successor.zygote.prepare.code):
            return
        old, self._zygote, self._successor = self._zygote, successor.zygote, None
        self._end(old)

    def _drop_successor(self) -> None:
        if self._successor is not None:
            if not self._successor.is_up:
                self._successor.zygote.process.kill()  # it may hang in an import
            self._end(self._successor.zygote)
            self._successor = None

    def _end(self, zygote: _Zygote) -> None:
        """Close it without waiting for its end."""
        zygote.close()
        self._ending.append((zygote.process, time.monotonic() + _END_S))

    def fork_writer(self) -> socket.socket | None:
        """Have the zygote fork one, which has torch without an import."""
        zygote = self._zygote
        if zygote is None or zygote.prepare.command_kind is CommandKind.EXEC:
            return None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            try:
                zygote.send(Serve(), theirs)
            except OSError:  # it is closed just now
                ours.close()
                return None
        return ours

    def sweep(self) -> None:
        """Have the zygote sweep."""
        self._unswept = 0
        if self._zygote is not None:
            self._zygote.send(Sweep())

    def terminate(self, pid: int) -> None:
        """Send TERM, or KILL to a stopped worker."""
        # Only KILL ends a stopped process; TERM would wait for a CONT until the grace is over.
        signal_group(pid, signal.SIGKILL if _is_stopped(pid) else signal.SIGTERM)

    def kill(self, pid: int) -> None:
        """Send KILL to the group."""
        signal_group(pid, signal.SIGKILL)

    def inject(self, pid: int, number: int) -> None:
        """Send a signal to the worker alone."""
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended meanwhile, and that is on its way to us

    def close(self) -> None:
        """End the zygote; it kills its workers. Takes at most about 2 s."""
        self._drop_successor()
        if self._zygote is not None:
            self._zygote.close()  # the zygote kills its workers when it sees this
            _await_end(self._zygote.process, _END_S)
            self._zygote = None
        for process, _ in self._ending:
            process.kill()
            _await_end(process, _END_S)
        self._news.close()

    def _bury(self) -> Gone:
        assert self._zygote is not None
        zygote, self._zygote = self._zygote, None
        zygote.close()
        # What was loaded may be why it ended: it is begun anew as it was at first.
        successor = self._successor
        if successor is not None and successor.is_trial and not successor.is_up:
            text = "its imports were not tried on this node: the zygote ended meanwhile"
            self._ended_orders = [TryOver(number=successor.number, ok=True, text=text)]
        self._drop_successor()
        code = _await_end(zygote.process, 1.0)  # it closed its end, so it is about to be over
        if code is None:
            return Gone(reason="the zygote hangs in the kernel")
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Gone(reason=f"the zygote ended by {how}; see the agent's output")


_END_S = 2.0


def _is_below(name: str, modules: Iterable[str]) -> bool:
    """Return whether ``name`` is one of ``modules``, or in one that is a package."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def _prepare_for(prepare: Prepare, program: RankProgram) -> Prepare:
    return msgspec.structs.replace(
        prepare,
        command_kind=program.command_kind,
        command=program.command,
        code=program.code,
        env=program.env,
    )


def _not_loaded(number: int, why: str) -> LoadOver:
    note = f"modules that the job imports are not imported before the next start: {why}"
    return LoadOver(number=number, notes=(one_line(note, _MAX_CHARS),))


def _await_end(process: subprocess.Popen[bytes], patience_s: float) -> int | None:
    """Return the exit code; kill after ``patience_s`` seconds, None if even that does not end it.

    Its workers die with it in any case, by the kernel's doing.
    """
    for _ in range(2):
        try:
            return process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()  # still importing, or stopped
    return None


def _is_stopped(pid: int) -> bool:
    process = proc.read_process(pid)
    return process is not None and process.state in proc.STOPPED
