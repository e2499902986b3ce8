"""The process that tells people: ``python -m slurm_robust.notify --job-dir DIR``, started by the supervisor.

It follows the journal, which it never writes. It ends when its standard input does, on which the supervisor
says the exit code of the run: then it tells what is left to tell, within a bound.
"""

from __future__ import annotations

import argparse
import os
import select
import shlex
import signal
import socket
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from slurm_robust.config.plan import RunPlan, load_plan
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.notice import Notified
from slurm_robust.notify.channels import attempt, make_channel, missing
from slurm_robust.notify.courier import Courier, Delivery, Route, SendFailure
from slurm_robust.notify.follow import JournalFollower
from slurm_robust.notify.message import Subject
from slurm_robust.notify.narrate import Narrator, supervisor_ended
from slurm_robust.notify.state import load, save
from slurm_robust.util.output import say, settle
from slurm_robust.util.process import set_name
from slurm_robust.util.text import count
from slurm_robust.util.threads import Executor
from slurm_robust.wire.epochs import newest_epoch

POLL_S = 0.5
LAST_S = 15.0
"""Seconds for the last messages of a run."""

REQUEUE_S = 5.0
"""The same if the job is requeued, which Slurm does not begin before; the next run tells what is left."""

UNWRITTEN_S = 10.0
"""After this time without storage, messages go out though no later process will know that they did."""

OUTPUT_S = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def main(argv: list[str] | None = None) -> int:
    """Tell people of one run, to its end."""
    parser = argparse.ArgumentParser(prog="slurm_robust.notify", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--job-dir", type=Path, required=True)
    parser.add_argument("--run-id", default="", help="the run that is in the job directory")
    parser.add_argument("--since", type=int, default=0, help="bytes of the journal that tell nothing new")
    parser.add_argument("--after", type=int, default=0, help="the newest epoch when the supervisor began")
    text = "seconds for the last messages of a run"
    parser.add_argument("--last-s", type=float, default=LAST_S, help=text)
    given = parser.parse_args(argv)
    # Slurm signals all processes of a job that ends. Handlers, since programs would inherit what is ignored.
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)
    set_name("srobust-notify")
    directory = JobDirectory(given.job_dir)
    try:
        teller = Teller(directory, load_plan(directory, given.run_id), given.since, given.after, given.last_s)
        teller.run(sys.stdin.fileno())
        code = 0
    except SrobustError as error:
        say(f"notifications: no message is sent: {error.in_full()}")
        code = int(error.exit_code)
    except OSError as error:
        say(f"notifications: storage refuses: {error}")
        code = int(ExitCode.JOB_DIR)
    except Exception:  # noqa: BLE001  # the supervisor starts another one
        # Frames and types, without the texts of errors, which may hold anything.
        where = "".join(traceback.format_tb(sys.exc_info()[2]))
        say(f"notifications: an error of their own, {(sys.exc_info()[0] or Exception).__name__}\n{where}")
        code = int(ExitCode.INTERNAL)
    settle(OUTPUT_S)
    return code


class Teller:
    """Follows the journal of a run and tells people. Ends by itself only if another host has the job."""

    def __init__(self, directory: JobDirectory, plan: RunPlan, since: int, after: int, last_s: float) -> None:
        """Take ``since``, ``after`` and ``last_s`` as the options have them. Raises ``OSError``."""
        now = time.time()
        self._directory = directory
        self._plan = plan
        self._after = after
        self._last_s = last_s
        self._host = socket.gethostname()
        before = load(directory, plan.run_id)
        self._old = before.offset if before is not None else since
        self._offset = self._old
        name = name_of(directory, plan)
        self._subject = subject_of(plan, name)
        self._courier = Courier(
            self._subject,
            routes_of(plan),
            per_hour=plan.config.notify.per_hour,
            batch_s=plan.config.notify.batch_s,
            before=before or Notified(run_id=plan.run_id, offset=since),
            now=now,
        )
        self._channels = {
            config.name: (make_channel(config, plan.cwd, os.environ), config.timeout_s)
            for config in plan.config.notify.channels
        }
        # A channel that hangs delays no other.
        self._sending: Executor[tuple[str, SendFailure | None]] = Executor("notify", grows=True)
        self._narrator = Narrator(name)
        self._follower = JournalFollower(directory)
        self._written: Notified | None = before
        self._unwritten_since: float | None = None
        self._is_away = False  # another host has the job
        self._until: float | None = None  # of the last call, monotonic

    def run(self, supervisor: int) -> None:
        """Work until the descriptor ``supervisor`` is closed at its other end, and a bounded time longer."""
        for config in self._plan.config.notify.channels:
            if trouble := missing(config, self._plan.cwd, os.environ):
                say(f"notifications: warning: channel {config.name} will not work: {trouble}")
        said = b""
        watched = [supervisor, self._sending.fileno()]
        while not self._is_over():
            ready, _, _ = select.select(watched, [], [], self._pause_s())
            for channel, failure in self._sending.results():
                if failure is None:
                    self._courier.sent(channel, time.time())
                else:
                    self._courier.failed(channel, failure, time.time())
            self._look()
            if supervisor in ready:
                part = os.read(supervisor, 64)
                said += part
                if not part:
                    watched.remove(supervisor)
                    self._last_call(said)
            if self._is_away or self._has_work():
                if not self._is_ours():
                    self._is_away = True
                elif self._is_away:
                    return  # the next process knows what the other host has told
                else:
                    self._dispatch()
            for line in self._courier.lines():
                say(line)
        for name, number in () if self._is_away else self._courier.untold().items():
            say(f"notifications: {count(number, 'notice')} could not be told by {name}")

    def _look(self) -> None:
        for followed in self._follower.read():
            if followed.before is not None:
                self._narrator.restate(followed.before)
            notices = self._narrator.tell(followed.event)
            self._courier.take(notices, time.time(), old=followed.offset <= self._old)
            self._offset = max(self._offset, followed.offset)

    def _last_call(self, said: bytes) -> None:
        code = int(said) if said.isdigit() else None
        last_s = min(REQUEUE_S, self._last_s) if code == ExitCode.REQUEUED else self._last_s
        self._until = time.monotonic() + last_s
        if code not in (None, int(ExitCode.REQUEUED)) and not self._narrator.has_ended:
            run, name = max(0, self._plan.restart_count), self._subject.name
            self._courier.take([supervisor_ended(name, run, code or 0, time.time())], time.time())
        self._courier.last_call(time.time())

    def _is_over(self) -> bool:
        if self._until is None:
            return False
        return self._is_away or self._courier.is_done or time.monotonic() >= self._until

    def _pause_s(self) -> float:
        at = self._courier.next_at(time.time())
        return POLL_S if at is None else min(POLL_S, max(0.05, at - time.time()))

    def _is_ours(self) -> bool:
        """Return whether the controller of this host has the job; if that cannot be read, nothing is sent."""
        newest = newest_epoch(self._directory.epochs)
        return newest is None or newest.epoch <= self._after or newest.host == self._host

    def _has_work(self) -> bool:
        """Return whether there is anything to write down or to send."""
        at = self._courier.next_at(time.time())
        return (at is not None and at <= time.time()) or self._is_changed(self._courier.record(self._offset))

    def _is_changed(self, record: Notified) -> bool:
        # Not for a later offset alone, which steps of the training move on: what has a key is known anyway.
        return self._written is None or record.channels != self._written.channels

    def _send(self, order: Delivery) -> tuple[str, SendFailure | None]:
        channel, timeout_s = self._channels[order.channel]
        return order.channel, attempt(channel, order.message, timeout_s)

    def _dispatch(self) -> None:
        orders = self._courier.due(time.time()) if self._save() else []
        if orders:
            self._save()
        for order in orders:
            self._sending.submit(partial(self._send, order))

    def _save(self) -> bool:
        """Write down what has changed; whether messages may go out."""
        record = self._courier.record(self._offset)
        if not self._is_changed(record):
            return True
        try:
            save(self._directory, record)
        except OSError:
            since = self._unwritten_since = self._unwritten_since or time.monotonic()
            return time.monotonic() - since >= UNWRITTEN_S or self._until is not None
        self._written, self._unwritten_since = record, None
        return True


def routes_of(plan: RunPlan) -> tuple[Route, ...]:
    """Return what each configured channel is told."""
    notify = plan.config.notify
    return tuple(
        Route(
            name=channel.name,
            kinds=frozenset(notify.on if channel.on is None else channel.on),
            min_severity=channel.min_severity or notify.min_severity,
            timeout_s=channel.timeout_s,
        )
        for channel in notify.channels
    )


def name_of(directory: JobDirectory, plan: RunPlan) -> str:
    """Return the job as commands of ours take it: by its id only if it is in the usual place."""
    usual = directory.path.name == str(plan.job_id) and plan.config.job_dir is None
    return str(plan.job_id) if usual else shlex.quote(str(directory.path))


def subject_of(plan: RunPlan, name: str) -> Subject:
    """Return the job as messages name it."""
    return Subject(
        job=plan.array_task or str(plan.job_id),
        command=shlex.join(plan.command),
        cluster=plan.cluster,
        observes=plan.config.mode == "observe",
        name=name,
    )


if __name__ == "__main__":
    sys.exit(main())
