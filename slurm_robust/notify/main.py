"""``srobust notify``: what was told of a job, and a test message through every channel."""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.config.job import JobConfig
from slurm_robust.config.notify import ChannelConfig, NotifyConfig
from slurm_robust.config.plan import load_plan
from slurm_robust.home import page
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.job import JobDirectory
from slurm_robust.model.notice import ChannelState, Notice, NoticeKind, Severity
from slurm_robust.model.record import Record
from slurm_robust.notify.channels import attempt, make_channel
from slurm_robust.notify.message import Message, Subject, compose
from slurm_robust.notify.state import load
from slurm_robust.terminal.console import ScreenTable, show
from slurm_robust.trainings.find import find
from slurm_robust.util.text import count, date_and_time, one_line

FAILED = 1
"""The exit code of a test in which a channel failed."""

TEST = "test"
"""The kind of a message that tests a channel: no notice of a job has it."""

_AT_ONCE = 16


class NoChannel(SrobustError):
    """There is no one to tell."""

    exit_code = ExitCode.CONFIG
    see = page("watching.md#notifications")
    fix = f"give channels in the section notify of the job's configuration, see {see}"


class Tested(Record):
    """What became of a test message."""

    channel: str
    way: str
    """``command``, ``webhook`` or ``mail``."""
    ok: bool
    took_s: float
    error: str = ""
    fix: str = ""


class TestReport(Record):
    """All channels of a configuration."""

    job: str
    """"" without a job."""
    channels: tuple[Tested, ...]


class ChannelRow(Record):
    """How far one channel is."""

    channel: str
    way: str
    kinds: tuple[str, ...]
    min_severity: str
    sent_last_hour: int
    waiting: int
    left_out: int
    trouble: str
    """Why the last try failed."""
    given_up_until: float | None
    """In seconds since 1970."""


class Overview(Record):
    """All channels of a job."""

    job: str
    channels: tuple[ChannelRow, ...]


def way_of(channel: ChannelConfig) -> str:
    """Return how a channel tells people."""
    return "command" if channel.command else "mail" if channel.mail else "webhook"


def of_job(name: str, job_dir: str | None) -> tuple[JobDirectory, JobConfig, str]:
    """Return a job's folder, the configuration that it runs with, and the folder it was submitted from.

    Raises ``NoSuchJob``, ``PreflightError``.
    """
    directory = find(name, job_dir)
    plan = load_plan(directory)
    return directory, plan.config, plan.cwd


def run_test(config: NotifyConfig, cwd: str, job: str, environ: Mapping[str, str], *, json: bool) -> int:
    """Send a test message through every channel and print what became of it; 0 or :data:`FAILED`."""
    _need_channels(config)
    message = sample(job)

    def send(channel: ChannelConfig) -> Tested:
        begun = time.monotonic()
        failure = attempt(make_channel(channel, cwd, environ), message, channel.timeout_s)
        return Tested(
            channel=channel.name,
            way=way_of(channel),
            ok=failure is None,
            took_s=round(time.monotonic() - begun, 3),
            error="" if failure is None else failure.text,
            fix="" if failure is None else failure.fix,
        )

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        report = TestReport(job=job, channels=tuple(pool.map(send, config.channels)))
    show(report, render_test, json=json)
    return 0 if all(tested.ok for tested in report.channels) else FAILED


def sample(job: str) -> Message:
    """Return what a test sends, which cannot be taken for an incident."""
    by = f"{_user()} on {socket.gethostname()}"
    notice = Notice(
        key="test",
        t=time.time(),
        kind=NoticeKind.INCIDENT,
        severity=Severity.INFO,
        text=one_line(f"test message, sent by {by}: this channel works; nothing has happened"),
        command=f"srobust status {job}" if job else "",
    )
    message = compose(Subject(job=job), [notice])
    return replace(message, facts={**message.facts, "KIND": TEST, "KINDS": TEST})


def overview(name: str, job_dir: str | None, *, json: bool) -> int:
    """Print how far the channels of a job are. Raises ``NoSuchJob``, ``PreflightError``."""
    directory, config, _ = of_job(name, job_dir)
    _need_channels(config.notify)
    now = time.time()
    run_id = load_plan(directory).run_id
    notified = load(directory, run_id)
    states = notified.channels if notified is not None else {}
    rows = tuple(
        _row(config.notify, channel, states.get(channel.name, ChannelState()), now)
        for channel in config.notify.channels
    )
    show(Overview(job=directory.path.name, channels=rows), render, json=json)
    return 0


def render_test(report: TestReport) -> RenderableType:
    """Render for a person."""
    table = ScreenTable()
    for name in ("channel", "by", "result"):
        table.add_column(name, overflow="fold")
    table.add_column("s", justify="right")
    for tested in report.channels:
        result = Text("sent", style="green") if tested.ok else Text("failed: ", style="bold red")
        if not tested.ok:
            result.append(one_line(tested.error), style="default")
            result.append(f"\nfix: {one_line(tested.fix)}" if tested.fix else "", style="default")
        table.add_row(Text(tested.channel), tested.way, result, f"{tested.took_s:.2f}")
    failed = sum(not tested.ok for tested in report.channels)
    return Group(table, Text(f"{count(len(report.channels), 'channel')}, {failed} failed"))


def render(report: Overview) -> RenderableType:
    """Render for a person."""
    table = ScreenTable()
    for name in ("channel", "by", "is told", "from"):
        table.add_column(name, overflow="fold")
    for name in ("sent in\nlast hour", "waiting"):
        table.add_column(name, justify="right")
    table.add_column("trouble", overflow="fold")
    for row in report.channels:
        trouble = one_line(row.trouble)
        if row.given_up_until is not None:
            trouble = f"given up until {date_and_time(row.given_up_until)}: {trouble}"
        table.add_row(
            Text(row.channel),
            row.way,
            ", ".join(row.kinds),
            row.min_severity,
            str(row.sent_last_hour),
            str(row.waiting),
            Text(trouble or "-"),
        )
    return table


def _row(config: NotifyConfig, channel: ChannelConfig, state: ChannelState, now: float) -> ChannelRow:
    kinds = config.on if channel.on is None else channel.on
    is_given_up = state.given_up_until is not None and state.given_up_until > now
    return ChannelRow(
        channel=channel.name,
        way=way_of(channel),
        kinds=tuple(kind.value for kind in kinds),
        min_severity=(channel.min_severity or config.min_severity).value,
        sent_last_hour=sum(t > now - 3600 for t in state.sent),
        waiting=len(state.waiting),
        left_out=state.left_out,
        trouble=state.trouble,
        given_up_until=state.given_up_until if is_given_up else None,
    )


def _need_channels(config: NotifyConfig) -> None:
    if not config.channels:
        raise NoChannel("no channel is configured: no message is sent")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
