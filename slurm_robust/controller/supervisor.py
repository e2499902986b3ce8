"""The process that the batch script becomes: it keeps a controller alive and passes signals on.

It holds no state, so there is nothing in it that could go wrong with the job. A controller that was
killed, or that met an error of its own, is started again and continues from the journal; training
does not notice.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from slurm_robust.controller.output import say
from slurm_robust.controller.preflight import PreflightError
from slurm_robust.controller.signals import Signals
from slurm_robust.model.exitcodes import ExitCode
from slurm_robust.util import openfiles
from slurm_robust.wire.keys import KeysError

# So many ends within the window are bad luck; more are a defect that another start does not mend.
MOST_ENDS = 6
WINDOW_S = 600.0
# Between two controllers, the longer the more of them ended early, one after the other.
PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
# Who lived for so long did not end early.
LIVED_S = 60.0
# Without agents nothing trains, and nobody makes room on storage any more.
STORAGE_S = 1800.0
# A controller that has said the end has ended within this time, or hangs in the kernel, as on a dead mount.
END_S = 10.0
_OTHERS = (signal.SIGUSR2, signal.SIGHUP)  # would end us, and mean nothing to a controller
_ENDING = (signal.SIGTERM, signal.SIGINT)
_KILLED = range(-signal.NSIG, 0)
_PR_SET_CHILD_SUBREAPER = 36


def storage_error(error: BaseException) -> OSError | None:
    """The refusal of the job's folder that ``error`` is or comes from; None for any other error."""
    refused = error.__cause__ if isinstance(error, KeysError | PreflightError) else error
    lacking = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this process or host
    return refused if isinstance(refused, OSError) and refused.errno not in lacking else None


def tell_end(descriptor: int | None, code: int) -> None:
    """Tell the supervisor that all is over, and the exit code of the job.

    The exit code of this process says nothing: an interpreter that cannot read its own modules ends with 1.
    """
    if descriptor is not None:
        os.write(descriptor, b"%d" % code)


def keep(directory: Path, run_id: str = "") -> int:
    """Run controllers on ``directory``, that of ``run_id``, until one says that all is over; its code."""
    openfiles.raise_limit()
    command = (sys.executable, "-m", "slurm_robust.controller", "--job-dir", str(directory))
    return Supervisor((*command, "--run-id", run_id)).run()


class Supervisor:
    """Runs ``command``, to which it adds ``--supervisor FD``, again and again. Main thread only."""

    def __init__(self, command: Sequence[str], *, pauses_s: Sequence[float] = PAUSES_S) -> None:
        """``pauses_s``: after the first controller that ended early, the second, ...; the last ever after."""
        self._command = tuple(command)
        self._pauses_s = tuple(pauses_s)
        self._child: subprocess.Popen[bytes] | None = None
        self._given: list[int] = []  # signals that the present controller was given
        self._pending: list[int] = []  # those that the next one is to be given
        self._came = False  # any of them while there was no controller
        self._ends: deque[float] = deque()  # of controllers, within the window, that not storage ended
        self._early = 0  # controllers in a row that ended early
        self._no_agents_since: float | None = None

    def run(self) -> int:
        """Until it is over, or there is no use in another start."""
        _adopt_orphans()
        # Wakes whatever waits here: signals for a controller, and ends of children.
        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        woken_before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        numbers = (*Signals.WATCHED, *_OTHERS, signal.SIGCHLD)
        before = {number: signal.signal(number, self._pass_on) for number in numbers}
        signal.pthread_sigmask(
            signal.SIG_UNBLOCK, (signal.SIGCHLD,)
        )  # as whoever started us may have left it
        try:
            while True:
                begun, told_to_end = time.monotonic(), self._told_to_end()
                code, told = self._one()
                if told is not None:
                    return told
                if told_to_end is not None:
                    return 128 + told_to_end  # there is nobody who could do more about it
                end = self._judge(code, time.monotonic() - begun)
                if end is not None:
                    return end
        finally:
            signal.set_wakeup_fd(woken_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(waker)

    def _one(self) -> tuple[int, int | None]:
        """One controller to its end: its exit code, and that of the job if it told one."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # It unblocks them when it watches them. Those that come to us in the meantime wait, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, Signals.WATCHED)
        try:
            # A session of its own: Ctrl-C and Slurm's signals come once, through us.
            self._came = False  # a controller that cannot be started must not be tried without a pause
            command = (*self._command, "--supervisor", str(theirs))
            self._child = subprocess.Popen(command, start_new_session=True, pass_fds=(theirs,))
            self._given, self._pending = self._pending, []
            for number in self._given:
                os.kill(self._child.pid, number)
        except OSError as error:
            say(f"no controller can be started: {error}")
            os.close(ours)
            return int(ExitCode.JOB_DIR), None
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, Signals.WATCHED)
            os.close(theirs)
        code, told = self._wait(self._child, ours)
        os.close(ours)
        # Who died has not done what it was told.
        self._pending[:0] = [] if told else list(dict.fromkeys(self._given))
        return code, int(told) if told else None

    def _wait(self, child: subprocess.Popen[bytes], words: int) -> tuple[int, bytes]:
        """The exit code of ``child``, and what it said on ``words``; the dead of the orphans are buried.

        A child that has said the end is waited for no longer than :data:`END_S`, and killed.
        """
        told, until, watched = b"", math.inf, [self._wake, words]
        while (code := self._ended(child)) is None and (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select(watched, [], [], left if told else None)
            _read(self._wake)
            if words in ready:
                watched.remove(words)
                told = _read(words)
                until = time.monotonic() + END_S if told else math.inf
        if code is None:
            say(f"the controller has told the end and is still there after {END_S:.0f} s: it is left behind")
            code = -signal.SIGKILL
            os.kill(child.pid, signal.SIGKILL)
        self._child, child.returncode = None, code
        return code, told or _read(words)

    def _ended(self, child: subprocess.Popen[bytes]) -> int | None:
        """The exit code of ``child``, None while it lives."""
        while (found := os.waitpid(-1, os.WNOHANG))[0] not in (0, child.pid):
            pass
        return os.waitstatus_to_exitcode(found[1]) if found[0] else None

    def _judge(self, code: int, lived_s: float) -> int | None:
        """Pause as long as it takes; the exit code where another controller is of no use."""
        now = time.monotonic()
        if lived_s >= LIVED_S:
            self._early, self._no_agents_since = 0, None
        else:
            self._early += 1
        if code not in (ExitCode.INTERNAL, *_KILLED) or code == -signal.SIGBUS:
            return self._wait_for_storage(now)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else "met an error of its own"
        self._ends.append(now)
        while self._ends[0] < now - WINDOW_S:
            self._ends.popleft()
        if len(self._ends) >= MOST_ENDS:
            say(f"the controller {how}, {len(self._ends)} times within {WINDOW_S:.0f} s; giving up")
            return int(ExitCode.INTERNAL)
        pause_s = self._pause()
        soon = f" in {pause_s:.0f} s" if pause_s >= 1 else ""
        say(f"the controller {how}; starting the next one{soon} (training goes on)")
        self._rest(pause_s)
        return None

    def _wait_for_storage(self, now: float) -> int | None:
        """As long as agents live, training may go on; for them storage is waited for."""
        if _have_children():
            self._no_agents_since = None
        elif self._no_agents_since is None:
            self._no_agents_since = now
        if self._no_agents_since is not None and now - self._no_agents_since > STORAGE_S:
            say(f"no agent is left, and for {STORAGE_S:.0f} s storage let no controller begin; giving up")
            return int(ExitCode.JOB_DIR)
        pause_s = self._pause()
        say(f"the next controller is started in {pause_s:.0f} s, if storage lets it (training goes on)")
        self._rest(pause_s)
        return None

    def _pause(self) -> float:
        return self._pauses_s[min(self._early, len(self._pauses_s)) - 1] if self._early else 0.0

    def _rest(self, seconds: float) -> None:
        """Until then, or until a signal that no controller has had or that tells us to end."""
        until = time.monotonic() + seconds
        _read(self._wake)
        while not self._came and self._told_to_end() is None and (left := until - time.monotonic()) > 0:
            select.select([self._wake], [], [], left)
            _read(self._wake)

    def _told_to_end(self) -> int | None:
        """The signal that tells us to end, which the next controller is given."""
        return next((number for number in self._pending if number in _ENDING), None)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number in (*_OTHERS, signal.SIGCHLD):
            return
        # One that comes between two controllers is kept for the next.
        if self._child is None:
            self._pending.append(number)
            self._came = True
        else:
            self._given.append(number)
            try:
                os.kill(self._child.pid, number)  # not Popen's, which may bury it
            except ProcessLookupError:
                pass  # buried just now: the next one is given what this one was


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _adopt_orphans() -> None:
    """Become the parent of the sruns of a controller that dies; each lives as long as its step's agents."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _have_children() -> bool:
    """Whether any child lives; the dead ones are buried."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
