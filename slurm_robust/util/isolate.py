"""Calls that may hang for ever, each in a child process that is left behind when it does.

A system call on a dead mount or in a hung driver cannot be interrupted; not even SIGKILL ends a process that
is in one. So the child holds nothing of ours that another process waits for: no output, no descriptor, no
lock, no session, no working directory. It is killed, never waited for, and reaped later if it ever ends.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

MAX_BYTES = 2**20
"""Longest answer."""

AT_ONCE = 32
"""Most children that run at one time."""

SHARED = 1
"""Children with which calls begin that share them; more come when these take their time."""

_PATIENCE_S = 0.01
_ERROR_BYTES = 2000
_HEADER = 5  # one byte that tells what follows, and its length in four
_BEGIN, _SENT, _VALUE, _ERROR = b"b", b"t", b"v", b"e"
_TICKET = 2  # bytes: the number of a task
_TIME = 8  # bytes: nanoseconds
_ANSWERS_FD, _TICKETS_FD = 3, 4
_abandoned: set[int] = set()


class CallResult(NamedTuple):
    """What became of one call."""

    value: bytes | None
    """None if there is none; ``error`` says why."""
    error: str = ""
    hung: bool = False
    """The call did not end within its own time limit."""
    is_cut: bool = False
    """The time for all was over before, so that nothing is known of it."""
    died: bool = False
    """Its process ended before it answered, or could not be started."""
    sent: bytes = b""
    """What the call had said by :func:`send`."""
    took_s: float = 0.0
    """Wall-clock time, seconds."""


def call(
    tasks: Mapping[str, Callable[[], bytes]],
    timeout_s: Mapping[str, float],
    deadline_s: float,
    *,
    shared: bool = False,
) -> dict[str, CallResult]:
    """Run the tasks side by side; an answer for each, in their order, after ``deadline_s`` at the latest.

    ``timeout_s`` has each task's own limit in seconds from its start; ``deadline_s`` is for all together,
    from now. What raises, dies or answers too much has an error. Nothing is raised. ``shared`` is for tasks
    that leave their process as it was: a few children then do all of them, which saves most of the forks.
    """
    _reap()
    pool = _Pool(tasks, timeout_s, time.monotonic() + deadline_s, shared)
    try:
        pool.run()
    finally:
        # Reached with calls under way at the end of the time for all, or by a signal's exception.
        answers = pool.close()
    return {name: answers[name] for name in tasks}


def send(body: bytes, limit_s: float) -> None:
    """Tell the caller, in a task, what counts if no answer follows, and a new limit in seconds from now.

    For what a task learns only on its way. Not for tasks that are done directly.
    """
    _send(_SENT, int(limit_s * 1e9).to_bytes(_TIME, "little") + body)
    _limit(limit_s)


def directly(
    tasks: Mapping[str, Callable[[], bytes]],
    timeout_s: Mapping[str, float],
    deadline_s: float,
    *,
    shared: bool = False,
) -> dict[str, CallResult]:
    """Give the same answers without children and without limits, for tasks that bound their own time."""
    answers = {}
    for name, task in tasks.items():
        begun = time.monotonic()
        kind, body = _done(task)
        is_value = kind == _VALUE
        answers[name] = CallResult(
            value=body if is_value else None,
            error="" if is_value else body.decode(errors="replace"),
            took_s=time.monotonic() - begun,
        )
    return answers


class _Pool:
    """The children of one call. They draw tickets, so that no task is done twice."""

    def __init__(
        self,
        tasks: Mapping[str, Callable[[], bytes]],
        timeout_s: Mapping[str, float],
        end: float,
        shared: bool,
    ) -> None:
        self._tasks = [(name, task, timeout_s[name]) for name, task in tasks.items()]
        self._end = end
        self._shared = shared
        self._most = SHARED if shared else AT_ONCE
        self._waiting = set(tasks)
        self._running: dict[int, _Child] = {}
        self._answers: dict[str, CallResult] = {}
        self._poller = select.poll()
        self._tickets, theirs = os.pipe()
        os.write(theirs, b"".join(number.to_bytes(_TICKET, "little") for number in range(len(tasks))))
        os.close(theirs)

    def run(self) -> None:
        """Run the children until all have answered or the time is over."""
        while (self._waiting or self._running) and (now := time.monotonic()) < self._end:
            new = sum(child.is_new for child in self._running.values())
            while len(self._waiting) > new and len(self._running) < self._most:
                try:
                    self._start()
                except OSError as error:
                    if not self._running:
                        self._give_up(f"no process could be started: {error.strerror}")
                    break
                new += 1
            if self._running:
                self._listen(now)

    def close(self) -> dict[str, CallResult]:
        """Leave all children; the answers, also of what was not done."""
        for child in self._running.values():
            self._answers |= child.abandon()
        self._running.clear()
        os.close(self._tickets)
        late = CallResult(value=None, error="not begun within the time for all", is_cut=True)
        return {name: self._answers.get(name, late) for name, _, _ in self._tasks}

    def _start(self) -> None:
        child = _Child(self._tasks, self._tickets, self._end, shared=self._shared)
        self._running[child.fd] = child
        self._poller.register(child.fd, select.POLLIN)

    def _give_up(self, error: str) -> None:
        self._answers |= {name: CallResult(value=None, error=error, died=True) for name in self._waiting}
        self._waiting.clear()

    def _listen(self, now: float) -> None:
        """Wait for the next thing to happen, and take what has been answered by it."""
        first = min(child.end for child in self._running.values())
        if self._shared and self._waiting:
            first = min(first, now + _PATIENCE_S)
        ready = self._poller.poll(max(0.0, first - now) * 1000 + 1)
        for fd, _ in ready:
            child = self._running[fd]
            self._answers |= child.receive()
            self._waiting -= child.begun
        if not ready:
            self._most = min(AT_ONCE, self._most + 1)
        now = time.monotonic()
        for child in [*self._running.values()]:
            if not child.is_over and now < child.end:
                continue
            self._poller.unregister(child.fd)
            del self._running[child.fd]
            self._answers |= child.abandon()
            if child.is_over and not child.begun:
                # There are no tickets left. A child with one may still answer; else it died before a word.
                self._give_up("ended without an answer")


class _Child:
    """A process that does tasks."""

    def __init__(
        self,
        tasks: Sequence[tuple[str, Callable[[], bytes], float]],
        tickets: int,
        end: float,
        *,
        shared: bool,
    ) -> None:
        self._tasks = tasks
        self._last = end
        self._shared = shared
        self._data = b""
        self._name = ""
        self._since = 0.0
        self._is_cut = False
        self._sent = b""
        self.begun: set[str] = set()
        """What it has drawn so far."""
        self.end = end
        """When it must be given up."""
        self.is_over = False
        """Nothing more comes from it."""
        self.fd, theirs = os.pipe()
        """The descriptor that its answers come from."""
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _serve(tasks, tickets, theirs, shared=shared)
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(theirs)

    @property
    def is_new(self) -> bool:
        """Whether it has still to draw its first ticket."""
        return not self.begun and not self.is_over

    def receive(self) -> dict[str, CallResult]:
        """Read what is there; the answers that are whole now, or why there will be none."""
        chunk = os.read(self.fd, 2**16)
        if not chunk:
            self.is_over = True
            return self._answer(None, "ended without an answer", died=True)
        self._data += chunk
        found: dict[str, CallResult] = {}
        while len(self._data) >= _HEADER and not self.is_over:
            size = int.from_bytes(self._data[1:_HEADER], "little")
            if size > MAX_BYTES:
                self.is_over = True
                found |= self._answer(None, "answered too much")
            elif len(self._data) < _HEADER + size:
                break
            else:
                kind, body = self._data[:1], self._data[_HEADER : _HEADER + size]
                self._data = self._data[_HEADER + size :]
                found |= self._take(kind, body)
        return found

    def abandon(self) -> dict[str, CallResult]:
        """Give it up: its time is over, or it has done all."""
        error = "no answer within the time for all" if self._is_cut or not self._name else "no answer in time"
        found = self._answer(None, error, hung=not self._is_cut, is_cut=self._is_cut)
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self._kill()
        return found

    def _take(self, kind: bytes, body: bytes) -> dict[str, CallResult]:
        if kind == _BEGIN:
            self._name, _, limit_s = self._tasks[int.from_bytes(body[:_TICKET], "little")]
            self.begun.add(self._name)
            # The same clock in all processes; the word of it may have waited here.
            self._since = int.from_bytes(body[_TICKET:], "little") / 1e9
            self._ends_at(self._since + limit_s)
            return {}
        if kind == _SENT:
            self._sent = body[_TIME:]
            self._ends_at(time.monotonic() + int.from_bytes(body[:_TIME], "little") / 1e9)
            return {}
        value = body if kind == _VALUE else None
        found = self._answer(value, "" if kind == _VALUE else body.decode(errors="replace"))
        self.end = self._last
        self.is_over = not self._shared
        return found

    def _ends_at(self, end: float) -> None:
        self._is_cut = end > self._last
        self.end = min(self._last, end)

    def _answer(
        self,
        value: bytes | None,
        error: str,
        *,
        hung: bool = False,
        is_cut: bool = False,
        died: bool = False,
    ) -> dict[str, CallResult]:
        """Return the answer to the task under way; none if there is no such task."""
        if not self._name:
            return {}
        name, self._name = self._name, ""
        sent, self._sent = self._sent, b""
        took_s = time.monotonic() - self._since
        answer = CallResult(value, error, hung=hung, is_cut=is_cut, died=died, sent=sent, took_s=took_s)
        return {name: answer}

    def _kill(self) -> None:
        # The group, too, for what the call may have started. Before setsid() there is no such group, and
        # while the child is not reaped no other process has its number.
        for kill in (os.kill, os.killpg):
            try:
                kill(self._pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        _abandoned.add(self._pid)
        _reap()


def _reap() -> None:
    """Collect those that have ended by now; a caller that runs for days leaves no zombies."""
    for pid in list(_abandoned):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass  # The process that we are part of reaps all children, or ignores their ends.
        _abandoned.discard(pid)


def _serve(
    tasks: Sequence[tuple[str, Callable[[], bytes], float]], tickets: int, answers: int, *, shared: bool
) -> NoReturn:
    """Run the tasks of a child to its end."""
    try:
        _detach(tickets, answers)
        while ticket := os.read(_TICKETS_FD, _TICKET):
            if not shared:
                os.close(_TICKETS_FD)
            _, task, limit_s = tasks[int.from_bytes(ticket, "little")]
            _send(_BEGIN, ticket + time.monotonic_ns().to_bytes(_TIME, "little"))
            _limit(limit_s)
            _send(*_done(task))
            if not shared:
                break
    finally:
        os._exit(0)


def _limit(limit_s: float) -> None:
    """End this child also if the parent was killed and cannot."""
    signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)


def _done(task: Callable[[], bytes]) -> tuple[bytes, bytes]:
    try:
        body = task()
        if len(body) > MAX_BYTES:
            return _ERROR, f"an answer of {len(body)} bytes is too long".encode()
    except BaseException as error:  # noqa: BLE001 - whatever a check raises is an answer
        return _ERROR, _message(error).encode(errors="replace")[:_ERROR_BYTES]
    return _VALUE, body


def _send(kind: bytes, body: bytes) -> None:
    whole = memoryview(kind + len(body).to_bytes(4, "little") + body)
    while whole:
        whole = whole[os.write(_ANSWERS_FD, whole) :]


def _detach(tickets: int, answers: int) -> None:
    os.setsid()
    # Handlers of the parent are not for it.
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # First of all, and by a detour: if standard files are not open, the pipes may be in their places.
    above = max(_TICKETS_FD, tickets, answers) + 1
    for fd, place in ((tickets, _TICKETS_FD), (answers, _ANSWERS_FD)):
        os.dup2(fd, above + place, inheritable=False)
    for place in (_TICKETS_FD, _ANSWERS_FD):
        os.dup2(above + place, place, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _TICKETS_FD:
            _close(int(name))
    os.chdir("/")


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # The one that listed them.


def _message(error: BaseException) -> str:
    """Return the reason; of an error that no check raises on purpose, its kind too."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError | RuntimeError) and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")
