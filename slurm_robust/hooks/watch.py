"""The periodic check as a resident program: what is cheap to see is seen within seconds.

A HealthCheckProgram or a timer has one interval for everything. Here the checks of the kernel's log run when
the kernel writes into it, those of GPUs and networks by intervals of their own, and all of them at longer
ones. Each round is a run in a child, like a hook, so that nothing can hang the watch.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_robust.config.node import Watch
from slurm_robust.hooks import stages
from slurm_robust.hooks.child import begin, configuration_of_watch
from slurm_robust.hooks.hook import Hook, run
from slurm_robust.kernel.host import Host
from slurm_robust.kernel.kmsg import KernelLog
from slurm_robust.model.record import Record
from slurm_robust.nodes.check import AnyCheck, Probe
from slurm_robust.nodes.registry import CHECKS
from slurm_robust.util.isolate import CallResult, call
from slurm_robust.util.wakeup import WakeUp

try:
    import pynvml  # noqa: F401 - here, or each child would import it
except ImportError:
    pass

SETTLE_S = 0.2
"""What belongs together comes within a moment."""

GAP_S = 0.75
"""Between two rounds while the kernel does not stop logging; a fault in its log must be seen within 1 s."""

_WARNING = 4
"""The level of syslog from which on (downwards) a message may be a fault."""


class Round(Record):
    """Checks that run together."""

    name: str
    only: tuple[str, ...]
    """Their names; none: all checks."""

    every_s: float
    """Seconds from one round to the next."""


def rounds(config: Watch, checks: Sequence[AnyCheck]) -> tuple[Round, ...]:
    """Return the rounds. All checks come first, so that they spare the others when both are due."""
    every_s = {Probe.KERNEL: config.all_s, Probe.GPU: config.gpu_s, Probe.NETWORK: config.network_s}
    groups = {probe: tuple(check.name for check in checks if check.probe is probe) for probe in every_s}
    return (
        Round(name="all", only=(), every_s=config.all_s),
        *(
            Round(name=probe.value, only=only, every_s=every_s[probe])
            for probe, only in groups.items()
            if only
        ),
    )


def share_of(failing: str, one: Round) -> str:
    """Return the failures (a line ``check subject`` for each) that a round sees."""
    return "\n".join(line for line in failing.splitlines() if line.partition(" ")[0] in one.only)


class Schedule:
    """Which round is due. Times are of one monotonic clock, seconds."""

    def __init__(self, rounds_: tuple[Round, ...], now: float) -> None:
        self._rounds = rounds_
        self._checked = now - GAP_S
        # Everything first: it is what the others are compared with.
        self._due = {one.name: now + one.every_s * bool(one.only) for one in rounds_}

    def logged(self, now: float) -> None:
        """Note that the kernel has logged. If it does not stop logging, it is not checked all the time."""
        if Probe.KERNEL in self._due:
            self._due[Probe.KERNEL] = min(self._due[Probe.KERNEL], max(now + SETTLE_S, self._checked + GAP_S))

    def next(self, now: float) -> tuple[Round | None, float]:
        """Return the round that is due, and seconds until one is."""
        first = min(self._rounds, key=lambda one: self._due[one.name])
        return (first if self._due[first.name] <= now else None), max(0.0, self._due[first.name] - now)

    def done(self, one: Round, now: float) -> None:
        """Note that ``one`` has run and ended at ``now``."""
        if one.name == "kernel":
            self._checked = now
        for seen in (one,) if one.only else self._rounds:
            self._due[seen.name] = now + seen.every_s


def watch(
    file: str, environ: Mapping[str, str], report_failure: Callable[[CallResult, Mapping[str, str]], object]
) -> int:
    """Watch until SIGTERM; the exit code. ``file``: the configuration, "" for the usual one.

    ``report_failure`` is called for a round whose child hangs or fails.
    """
    config = configuration_of_watch(file)

    def run_round(one: Round, known: str) -> str | None:
        def task() -> bytes:
            config, limit_s = begin(stages.WATCH, file, environ, time.monotonic())
            before = known if one.only else None
            ended = run(Hook.PERIODIC, config, environ, limit_s, only=one.only, known=before)
            return ended.failing.encode()

        answer = call({stages.WATCH: task}, {stages.WATCH: stages.START_S}, stages.NO_LIMIT_S)[stages.WATCH]
        if answer.value is None:
            report_failure(answer, environ)
            return None
        return answer.value.decode(errors="replace")

    with _alone(Path(config.paths.runtime)) as alone:
        if not alone:
            print("srobust-node: another watch runs on this node", flush=True)
            return 1
        return _Watch(rounds(config.watch, CHECKS), run_round).run()


class _Watch:
    """``run_round`` gets what the last run of the same checks found wrong, and returns what is wrong now.

    None when that is not known.
    """

    def __init__(self, rounds_: tuple[Round, ...], run_round: Callable[[Round, str], str | None]) -> None:
        self._rounds = rounds_
        self._run_round = run_round
        self._wrong: dict[str, str] = {}

    def run(self) -> int:
        ended = _EndSignals()
        poller = select.poll()
        poller.register(ended.fileno(), select.POLLIN)
        log = _kernel_log()
        if log is not None:
            poller.register(log.fileno(), select.POLLIN)
        schedule = Schedule(self._rounds, time.monotonic())
        while True:
            due, wait_s = schedule.next(time.monotonic())
            ready = {fd for fd, _ in poller.poll(wait_s * 1000)}
            if ended.fileno() in ready:
                return 0
            if log is not None and log.fileno() in ready and _has_warned(log):
                schedule.logged(time.monotonic())
            if due is not None:
                self._round(due)
                schedule.done(due, time.monotonic())

    def _round(self, one: Round) -> None:
        wrong = self._run_round(one, self._wrong.get(one.name, ""))
        if wrong is None:
            return
        self._wrong[one.name] = wrong
        if not one.only:  # what it has reported is known to all
            self._wrong |= {other.name: share_of(wrong, other) for other in self._rounds if other.only}


class _EndSignals:
    """SIGTERM and SIGINT as something to poll for, so that none is missed between two rounds."""

    def __init__(self) -> None:
        self._wakeup = WakeUp()
        self._wakeup.on_signals()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._wakeup.fileno()


def _kernel_log() -> KernelLog | None:
    """Return the log from now on; None if it cannot be read, so that only intervals are left."""
    try:
        log = KernelLog(Host())
        log.read()
    except OSError:
        return None
    return log


def _has_warned(log: KernelLog) -> bool:
    try:
        return any(record.level <= _WARNING for record in log.read())
    except OSError:
        return True


@contextmanager
def _alone(runtime: Path) -> Iterator[bool]:
    """Hold the lock of the node's watch; False if another one has it."""
    file = -1
    try:
        runtime.mkdir(mode=0o755, parents=True, exist_ok=True)
        file = os.open(runtime / "watch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        alone = True
    except BlockingIOError:
        alone = False
    except OSError:
        alone = True  # a node whose /run cannot be written is watched anyway
    try:
        yield alone
    finally:
        if file >= 0:
            os.close(file)
