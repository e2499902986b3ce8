"""Calls that may hang for ever, each in a child process that is left behind when it does.

A system call on a dead mount or in a hung driver cannot be interrupted; not even SIGKILL ends a process that
is in one. So the child holds nothing of ours that anybody waits for: no output, no descriptor, no lock, no
session, no working directory. It is killed, never waited for, and reaped later if it ever ends.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from slurm_robust.model.record import Record

MOST_BYTES = 2**20
"""Longest answer."""

AT_ONCE = 32
"""Most children that run at one time."""

_ERROR_BYTES = 2000
_HEADER = 5  # one byte that tells an answer from an error, and the length in four
_VALUE, _ERROR = b"v", b"e"
_PIPE_FD = 3
_abandoned: set[int] = set()


class Answer(Record):
    """What became of one call: ``value``, or None and the reason in ``error``.

    ``hung``: it did not end within its own time limit. ``is_cut``: the time for all was over before, so that
    nothing is known of it. ``took_s`` is wall-clock time, seconds.
    """

    value: bytes | None
    error: str = ""
    hung: bool = False
    is_cut: bool = False
    took_s: float = 0.0


def call(
    tasks: Mapping[str, Callable[[], bytes]], timeout_s: Mapping[str, float], deadline_s: float
) -> dict[str, Answer]:
    """Run the tasks side by side; an answer for each, in their order, after ``deadline_s`` at the latest.

    ``timeout_s`` has each task's own limit in seconds from its start; ``deadline_s`` is for all together,
    from now. What raises, dies or answers too much has an error. Nothing is raised.
    """
    _reap()
    end = time.monotonic() + deadline_s
    waiting = list(tasks)[::-1]
    running: dict[int, _Child] = {}
    answers: dict[str, Answer] = {}
    poller = select.poll()
    try:
        while (waiting or running) and (now := time.monotonic()) < end:
            while waiting and len(running) < AT_ONCE:
                name = waiting.pop()
                try:
                    child = _Child(name, tasks[name], timeout_s[name], end - now)
                except OSError as error:
                    answers[name] = Answer(value=None, error=f"no process could be started: {error.strerror}")
                    continue
                running[child.fd] = child
                poller.register(child.fd, select.POLLIN)
            answers |= _listen(running, poller)
    finally:
        # Reached with calls under way at the end of the time for all, or by a signal's exception.
        answers |= {child.name: child.abandon() for child in running.values()}
    late = Answer(value=None, error="not begun within the time for all", is_cut=True)
    return {name: answers.get(name, late) for name in tasks}


def _listen(running: dict[int, _Child], poller: select.poll) -> dict[str, Answer]:
    """Wait for the next thing to happen; the answers of those who are done by it."""
    if not running:
        return {}
    first = min(child.end for child in running.values())
    ready = poller.poll(max(0.0, first - time.monotonic()) * 1000 + 1)
    done: dict[str, Answer] = {}
    for fd, _ in ready:
        if answer := running[fd].receive():
            done[running[fd].name] = answer
    now = time.monotonic()
    for child in [*running.values()]:
        if child.name in done or now >= child.end:
            poller.unregister(child.fd)
            del running[child.fd]
            done.setdefault(child.name, child.abandon())
    return done


class _Child:
    """One call under way. ``fd`` is where its answer comes from."""

    def __init__(self, name: str, task: Callable[[], bytes], own_s: float, left_s: float) -> None:
        self.name = name
        self._is_cut = own_s > left_s
        self._data = b""
        self._begun = time.monotonic()
        self.end = self._begun + min(own_s, left_s)
        self.fd, theirs = os.pipe()
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _serve(task, theirs, min(own_s, left_s))
        except OSError:
            os.close(self.fd)
            raise
        finally:
            os.close(theirs)

    def receive(self) -> Answer | None:
        """Read what is there; the answer once it is whole, or the child has gone without one."""
        chunk = os.read(self.fd, 2**16)
        if not chunk:
            return self._answer(None, "ended without an answer")
        self._data += chunk
        if len(self._data) < _HEADER:
            return None
        size = int.from_bytes(self._data[1:_HEADER], "little")
        if size > MOST_BYTES:
            return self._answer(None, "answered too much")
        if len(self._data) < _HEADER + size:
            return None
        body = self._data[_HEADER : _HEADER + size]
        if self._data[:1] == _VALUE:
            return self._answer(body)
        return self._answer(None, body.decode(errors="replace"))

    def abandon(self) -> Answer:
        """Give it up, since its time is over."""
        self.leave()
        took_s = time.monotonic() - self._begun
        if self._is_cut:
            return Answer(value=None, error="no answer within the time for all", is_cut=True, took_s=took_s)
        return Answer(value=None, error="no answer in time", hung=True, took_s=took_s)

    def leave(self) -> None:
        """Kill it and let go of it. May be called again."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        # The group as well, for what the call may have started. Before setsid() there is no such group, and
        # while the child is not reaped nobody else can have its number.
        for kill in (os.kill, os.killpg):
            try:
                kill(self._pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        _abandoned.add(self._pid)
        _reap()

    def _answer(self, value: bytes | None, error: str = "") -> Answer:
        return Answer(value=value, error=error, took_s=time.monotonic() - self._begun)


def _reap() -> None:
    """Collect those that have ended by now; who calls this module for days leaves no zombies."""
    for pid in list(_abandoned):
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        except ChildProcessError:
            pass  # The process that we are part of reaps all children, or ignores their ends.
        _abandoned.discard(pid)


def _serve(task: Callable[[], bytes], fd: int, limit_s: float) -> NoReturn:
    """The child's life."""
    try:
        _detach(fd, limit_s)
        try:
            kind, body = _VALUE, task()
            if len(body) > MOST_BYTES:
                kind, body = _ERROR, f"an answer of {len(body)} bytes is too long".encode()
        except BaseException as error:  # noqa: BLE001 - whatever a check raises is an answer
            kind, body = _ERROR, _in_words(error).encode(errors="replace")[:_ERROR_BYTES]
        whole = memoryview(kind + len(body).to_bytes(4, "little") + body)
        while whole:
            whole = whole[os.write(_PIPE_FD, whole) :]
    finally:
        os._exit(0)


def _detach(fd: int, limit_s: float) -> None:
    os.setsid()
    # Ends the child also where the parent was killed and cannot; handlers of the parent are not for it.
    for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.setitimer(signal.ITIMER_REAL, limit_s + 1.0)
    # First of all: without open standard files both ends of the pipe may be among those.
    if fd != _PIPE_FD:
        os.dup2(fd, _PIPE_FD, inheritable=False)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > _PIPE_FD:
            _close(int(name))
    os.chdir("/")


def _close(fd: int) -> None:
    try:
        os.close(fd)
    except OSError:
        pass  # The one that listed them.


def _in_words(error: BaseException) -> str:
    """Errors that a check raises on purpose are reasons already; of any other the kind is told too."""
    text = " ".join(str(error).split())
    if isinstance(error, OSError | RuntimeError) and text:
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")
