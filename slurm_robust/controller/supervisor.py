"""The process that the batch script becomes: it keeps a controller running and passes signals on.

It holds no state of the job. A controller that was killed, or that failed with an internal error, is started
again and continues from the journal; training does not notice. If a controller of another host has taken
over, the supervisor starts none and waits for the end of the job.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from slurm_robust.controller.notifier import Notifier
from slurm_robust.engine.effects import HANDED_OVER
from slurm_robust.engine.over import code_of, end_of
from slurm_robust.model.errors import ExitCode, PreflightError
from slurm_robust.model.exits import signal_name
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.journal import JournalDamaged, fold, read
from slurm_robust.model.state import JobState
from slurm_robust.policy.leaving import Orders
from slurm_robust.util import proc
from slurm_robust.util.output import say
from slurm_robust.util.process import adopt_orphans, raise_file_limit
from slurm_robust.util.threads import BackgroundCall
from slurm_robust.util.wakeup import WakeUp
from slurm_robust.wire.epochs import newest_epoch
from slurm_robust.wire.keys import KeysError

T = TypeVar("T")


AT_ONCE = signal.SIGQUIT
"""By it the supervisor tells a controller that a second order to end has come. Slurm signals all processes of
a batch script, so of SIGTERM a controller cannot know who sent it, nor how often it was meant.
"""


class Signals:
    """Those of Slurm, of the owner and of the supervisor, from ``with`` on. Main thread only.

    The supervisor blocks them in a controller that begins, so that none ends it before they are watched.
    """

    WATCHED = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, AT_ONCE)

    def __enter__(self) -> Signals:
        self._wakeup = WakeUp()
        self._old_fd = self._wakeup.on_signals()
        self._old = {number: signal.signal(number, lambda *_: None) for number in self.WATCHED}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, self.WATCHED)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._old_fd)
        for number, handler in self._old.items():
            signal.signal(number, handler)
        self._wakeup.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal came."""
        return self._wakeup.fileno()

    def taken(self) -> list[int]:
        """Return the numbers of the signals that came since the last call; :data:`AT_ONCE` after the orders.

        The kernel delivers blocked signals in the order of their numbers.
        """
        found = (number for number in self._wakeup.clear() if number in self.WATCHED)
        return sorted(found, key=lambda number: number == AT_ONCE)


MAX_ENDS = 6
"""Fewer ends within the window are bad luck; this many are a defect that another start does not mend."""

WINDOW_S = 600.0

PAUSES_S = (1.0, 2.0, 5.0, 15.0, 60.0)
"""Seconds between two controllers, the longer the more of them ended early, one after the other."""

LIVED_S = 60.0
"""A controller that ran for this long did not end early."""

STORAGE_S = 1800.0
"""How long to wait for storage without agents: nothing trains then, and no room is made on storage any
more.
"""

FOLLOW_S = 600.0
"""A journal that has not grown for this long has no controller any more, wherever that was."""

FOLLOW_EVERY_S = 1.0

STORAGE_ANSWERS_S = 5.0
"""Signals must not wait longer for storage that hangs."""

END_S = 10.0
"""A controller that has reported the end has ended after this time, or hangs in the kernel (a dead mount)."""

_OTHERS = (signal.SIGUSR2, signal.SIGHUP)  # would end us, and mean nothing to a controller
_ENDING = (signal.SIGTERM, signal.SIGINT)
_GIVEN = (signal.SIGUSR1, *_ENDING)  # to each controller
_KILLED = range(-signal.NSIG, 0)


def storage_error(error: BaseException) -> OSError | None:
    """Return the refusal of the job's folder that ``error`` is or comes from; None for any other error."""
    refused = error.__cause__ if isinstance(error, KeysError | PreflightError) else error
    lacking = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # of this process or host
    return refused if isinstance(refused, OSError) and refused.errno not in lacking else None


def report_end(descriptor: int | None, code: int) -> None:
    """Report to the supervisor that the job is over, with its exit code, or that the next one goes on.

    The exit code of this process says nothing: an interpreter that cannot read its own modules ends with 1.
    """
    if descriptor is not None:
        os.write(descriptor, b"%d" % code)


def supervise(
    directory: Path,
    run_id: str = "",
    *options: str,
    after: int | None = None,
    notify: bool = False,
    start: str = "",
) -> int:
    """Run controllers on the ``directory`` of ``run_id`` until one reports the end; the job's exit code.

    ``options``: more options for each controller; ``after``: the epoch of the controller that is replaced, by
    default the newest there is, and none is replaced; ``notify``: whether to notify people; ``start``: the
    start of ``srobust run`` that they serve. Raises ``OSError``.
    """
    raise_file_limit()
    command = (sys.executable, "-m", "slurm_robust.controller", "--job-dir", str(directory))
    job = JobDirectory(directory)
    # Agents that another host has started are no children of ours, and Slurm ends us with the job.
    has_agents = None if after is None else lambda: True
    if after is None:
        newest = newest_epoch(job.epochs)
        after = newest.epoch if newest is not None else 0
    others = Others(job, after, start)
    return Supervisor(
        (*command, "--run-id", run_id, *options),
        others=others,
        has_agents=has_agents,
        notifier=Notifier(job, run_id, after) if notify else None,
    ).run()


class Others:
    """Controllers of other hosts, and the end of the run, as the job directory shows them."""

    def __init__(self, job: JobDirectory, after: int, start: str = "") -> None:
        """``after``: only controllers with a higher epoch than this; ``start``: of ``srobust run``, "" for
        any.
        """
        self._job = job
        self._start = start
        self._asked: BackgroundCall[Any] | None = None
        self._size = -1
        self._host = socket.gethostname()
        self._before = after

    def has_job(self, ours: Collection[int]) -> str:
        """Return the host of the controller that has taken the job since, "" if none has.

        ``ours``: process ids of controllers that were started here.
        """
        newest = self._ask(lambda: newest_epoch(self._job.epochs))
        if newest is None or newest.epoch <= self._before:
            return ""
        return "" if newest.host == self._host and newest.pid in ours else newest.host

    def has_grown(self) -> bool:
        """Return whether the journal has since this was last asked, or storage does not say."""
        size = self._ask(lambda: self._job.journal.stat().st_size)
        if size is None:
            return True
        before, self._size = self._size, size
        return size != before

    def end(self) -> int | None:
        """Return the exit code of a run that has ended, and does not go on by another controller."""
        state = self.state()
        ended = end_of(state, self._start) if state is not None else None
        return ended.code if ended is not None else None

    def code(self) -> int | None:
        """Return the same as soon as it is decided, while what belongs to the end is still being done."""
        state = self.state()
        return code_of(state, self._start) if state is not None else None

    def state(self) -> JobState | None:
        """Read the journal; None if storage does not answer, or refuses."""
        return self._ask(lambda: fold(read(self._job.journal)))

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Return what storage answers within :data:`STORAGE_ANSWERS_S`; None if it does not, or refuses."""
        if self._asked is not None and not self._asked.done:
            return None  # it hangs
        asked = BackgroundCall("others", question)
        self._asked = asked
        try:
            return asked.result(STORAGE_ANSWERS_S)
        except (OSError, JournalDamaged):
            return None


class Supervisor:
    """Runs ``command``, to which it adds ``--supervisor FD``, again and again. Main thread only."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        pauses_s: Sequence[float] = PAUSES_S,
        others: Others | None = None,
        has_agents: Callable[[], bool] | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        """``pauses_s``: after the first controller that ended early, the second, ...; the last ever after.

        ``has_agents``: whether any may live; by default, whether a child does besides ``notifier``'s process.
        """
        self._command = tuple(command)
        self._others = others
        self._controllers: set[int] = set()
        self._pauses_s = tuple(pauses_s)
        self._notifier = notifier
        self._has_agents = has_agents or (lambda: _have_children(notifier.pid if notifier else 0))
        self._child: subprocess.Popen[bytes] | None = None
        self._given: list[int] = []  # signals that the present controller was given
        self._pending: list[int] = []  # signals for the next controller
        self._came = False  # any of them while there was no controller
        self._orders = Orders()
        self._ends: deque[float] = deque()  # of controllers, within the window, that not storage ended
        self._early = 0  # controllers in a row that ended early
        self._no_agents_since: float | None = None

    def run(self) -> int:
        """Run until the job is over, or another start is of no use; the exit code."""
        adopt_orphans()  # the sruns of a controller that dies; each lives as long as its step's agents
        self._wakeup = WakeUp()  # by signals for a controller, and by ends of children
        woken_before = self._wakeup.on_signals()
        numbers = (*_GIVEN, *_OTHERS, signal.SIGCHLD)
        before = {number: signal.signal(number, self._pass_on) for number in numbers}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))  # our parent may have blocked it
        try:
            end = self._run_to_the_end()
            if self._notifier is not None:
                self._notifier.finish(end)
            return end
        finally:
            signal.set_wakeup_fd(woken_before)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._wakeup.close()

    def _run_to_the_end(self) -> int:
        overtaken = False
        while True:
            if (followed := self._follow_another(overtaken)) is not None:
                return followed
            started_at, end_signal = time.monotonic(), self._end_signal()
            code, reported = self._run_once()
            overtaken = reported == ExitCode.OTHER_CONTROLLER and self._others is not None
            if overtaken:
                self._pending += [number for number in self._given if number in _ENDING]
                continue
            if reported == HANDED_OVER:
                continue
            if reported is not None:
                return reported
            if end_signal is not None:
                return self._code(128 + end_signal)  # another controller could do no more about it
            end = self._judge(code, time.monotonic() - started_at)
            if end is not None:
                return end

    def _follow_another(self, overtaken: bool) -> int | None:
        """Wait for the end of a job that another host's controller has; None if it is ours to run one.

        An end of this process would end the job: Slurm takes it for the job's own. ``overtaken``: our own
        controller has said so.
        """
        others = self._others
        host = others.has_job(self._controllers) if others is not None else ""
        if others is None or not (overtaken or host):
            return None
        host = host or "another host"
        say(f"a controller on {host} has the job; this supervisor waits for the end of the job")
        _end_sruns()
        grown = time.monotonic()
        while (number := self._end_signal()) is None:
            if others.has_grown():
                grown = time.monotonic()
                if (code := others.end()) is not None:
                    say(f"the job is over, exit code {code}, says the controller on {host}")
                    return code
            if time.monotonic() - grown > FOLLOW_S:
                say(f"the journal has not grown for {FOLLOW_S:.0f} s, so another controller is started here")
                return None
            self._rest(FOLLOW_EVERY_S)
            self._came, self._pending = False, [n for n in self._pending if n in _ENDING]
        return 128 + number

    def _run_once(self) -> tuple[int, int | None]:
        """Run one controller to its end: its exit code, and that of the job if it reported one."""
        ours, theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # It unblocks them when it watches them. Signals that come to us in the meantime wait, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, Signals.WATCHED)
        try:
            # A session of its own: Ctrl-C and Slurm's signals come once, through us.
            self._came = False  # a controller that cannot be started must not be tried without a pause
            command = (*self._command, "--supervisor", str(theirs))
            self._child = subprocess.Popen(command, start_new_session=True, pass_fds=(theirs,))
            self._controllers.add(self._child.pid)
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
        code, reported = self._wait(self._child, ours)
        os.close(ours)
        told = int(reported) if reported else None
        # A controller that died, or was about to end, has not handled the signals that it was given.
        self._pending[:0] = list(dict.fromkeys(self._given)) if told in (None, HANDED_OVER) else []
        return code, told

    def _wait(self, child: subprocess.Popen[bytes], report: int) -> tuple[int, bytes]:
        """Return the exit code of ``child``, and what it wrote to ``report``; orphans that ended are reaped.

        A child that has reported the end is killed if it lives for more than :data:`END_S`.
        """
        reported, until, watched = b"", math.inf, [self._wakeup.fileno(), report]
        while (code := self._ended(child)) is None and (left := until - time.monotonic()) > 0:
            left = min(left, self._notifier.keep() if self._notifier is not None else math.inf)
            ready, _, _ = select.select(watched, [], [], left if left < math.inf else None)
            self._wakeup.clear()
            if report in ready:
                watched.remove(report)
                reported = _read(report)
                until = time.monotonic() + END_S if reported else math.inf
        if code is None:
            say(f"the job is over, but its controller still runs after {END_S:.0f} s: it is killed")
            code = -signal.SIGKILL
            os.kill(child.pid, signal.SIGKILL)
        self._child, child.returncode = None, code
        return code, reported or _read(report)

    def _ended(self, child: subprocess.Popen[bytes]) -> int | None:
        """Return the exit code of ``child``, None while it lives."""
        while (found := os.waitpid(-1, os.WNOHANG))[0] not in (0, child.pid):
            pass
        return os.waitstatus_to_exitcode(found[1]) if found[0] else None

    def _judge(self, code: int, lived_s: float) -> int | None:
        """Pause as long as it takes; return the exit code if another controller is of no use."""
        now = time.monotonic()
        if lived_s >= LIVED_S:
            self._early, self._no_agents_since = 0, None
        else:
            self._early += 1
        if code not in (ExitCode.INTERNAL, *_KILLED) or code == -signal.SIGBUS:
            return self._wait_for_storage(now)
        how = f"was killed by {signal_name(-code)}" if code < 0 else "failed with an internal error"
        self._ends.append(now)
        while self._ends[0] < now - WINDOW_S:
            self._ends.popleft()
        if len(self._ends) >= MAX_ENDS:
            say(f"the controller {how}, {len(self._ends)} times within {WINDOW_S:.0f} s; giving up")
            return self._code(int(ExitCode.INTERNAL))
        pause_s = self._pause()
        soon = f" in {pause_s:.0f} s" if pause_s >= 1 else ""
        is_over = self._others is not None and self._others.code() is not None
        meanwhile = "the run has ended: the next one only ends the agents" if is_over else "training goes on"
        say(f"the controller {how}; starting the next one{soon} ({meanwhile})")
        self._rest(pause_s)
        return None

    def _code(self, otherwise: int) -> int:
        """Return the journal's exit code, which binds us too, if no controller could report one."""
        found = self._others.code() if self._others is not None else None
        return otherwise if found is None else found

    def _wait_for_storage(self, now: float) -> int | None:
        """Wait for storage as long as agents live: training may go on."""
        if self._has_agents():
            self._no_agents_since = None
        elif self._no_agents_since is None:
            self._no_agents_since = now
        if self._no_agents_since is not None and now - self._no_agents_since > STORAGE_S:
            say(f"no agent is left, and for {STORAGE_S:.0f} s storage let no controller begin; giving up")
            return self._code(int(ExitCode.JOB_DIR))
        pause_s = self._pause()
        say(f"the next controller is started in {pause_s:.0f} s, if storage lets it (training goes on)")
        self._rest(pause_s)
        return None

    def _pause(self) -> float:
        return self._pauses_s[min(self._early, len(self._pauses_s)) - 1] if self._early else 0.0

    def _rest(self, seconds: float) -> None:
        """Wait; a signal that no controller has had, or that orders us to end, ends the wait."""
        until = time.monotonic() + seconds
        self._wakeup.clear()
        while not self._came and self._end_signal() is None and (left := until - time.monotonic()) > 0:
            select.select([self._wakeup], [], [], left)
            self._wakeup.clear()

    def _end_signal(self) -> int | None:
        """Return the signal that orders us to end, which the next controller is given."""
        return next((number for number in self._pending if number in _ENDING), None)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number not in _GIVEN:
            return
        self._give(number)
        if number in _ENDING and self._orders.take(number, time.monotonic()):
            self._give(AT_ONCE)

    def _give(self, number: int) -> None:
        # One that comes between two controllers is kept for the next.
        if self._child is None:
            self._pending.append(number)
            self._came = True
        else:
            self._given.append(number)
            try:
                os.kill(self._child.pid, number)  # not Popen's, which may reap it
            except ProcessLookupError:
                pass  # reaped just now: the next one is given what this one was


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except BlockingIOError:
        return b""


def _end_sruns() -> None:
    """Kill the sruns of a job that another host has, as if this host had gone.

    An srun that lives on takes the ends of its agents for its own affair, and ends the step of that number,
    which may be one of the job's next run by then. SIGKILL, since on another signal it would do so
    immediately. So would its child, the shepherd, at the end of its parent, and goes first.
    """
    for process in reversed(proc.descendants(proc.process_table(), os.getpid())):
        if process.name == "srun":
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)


def _have_children(besides: int) -> bool:
    """Return whether any child lives but the process ``besides``; reap the children that ended."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            break
    parent = os.getpid()
    return any(p.parent == parent and p.pid != besides for p in proc.process_table().values())
