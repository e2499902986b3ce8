"""``srobust nodes``: what happened to each node, from slurmdbd and our event logs, and which are lemons."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Group, RenderableType

from slurm_robust.admin.drain_reasons import Meaning, evidence, read
from slurm_robust.analysis.lemons import Failure, Score, Work, pinned, score
from slurm_robust.config.node import DrainReason
from slurm_robust.config.nodefile import FILE, load
from slurm_robust.fleet.opening import open_index
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import ControllerUnreachable, SlurmTimeout
from slurm_robust.slurm.records import AccountingRow, NodeEvent
from slurm_robust.terminal.console import Bar, show, told_table
from slurm_robust.util.text import count, date_and_time, one_line

DAY_S = 86400.0
SLURMDBD_S = 300.0
"""How long slurmdbd may take for a month of a large site."""

PINNED_S = 300.0
"""A job that dies so close to one of its nodes died of it (SlurmdTimeout is 300 s by default)."""

TOGETHER_S = 120.0
TOGETHER = 4
"""This many nodes of which Slurm says the same within :data:`TOGETHER_S` share a switch, a prolog or
slurmctld, and none of them is to blame.
"""

MANY_HOURS = 10.0
"""Hours of work from which on a table shows no part of one."""

OUTAGE_S = 120.0
"""A node that Slurm loses again within this time of having it back has not come back from its outage."""

_JOINED_S = 2.0
_NODE_DIED = frozenset({"NODE_FAIL", "BOOT_FAIL"})
# Our own events that say something about a node; the rest is about runs of hooks.
_EVENTS = {
    "drained": "drained by srobust",
    "reason_updated": "another fault",
    "undrained": "returned by srobust",
    "not_drained": "not drained",
    "would_drain": "would be drained",
    "would_undrain": "would be returned",
    "acquitted": "suspected by a job, tested and good",
    "fault_gone": "a fault that had not yet led to a drain is gone",
    "returned_by_others": "returned by another user",
    "quarantine_kept": "tested in quarantine and kept",
    "quarantine_returned": "tested in quarantine and returned",
}


class LogUnreadable(SrobustError):
    """An event log, one that was named or this node's, cannot be read."""

    exit_code = ExitCode.NO_INPUT

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: {error.strerror}")
        self.fix = "name the event logs of nodes (paths.log in their configuration) with --log"
        if isinstance(error, PermissionError):
            self.fix = "only root may read the event log unless the site opens it: run this as root"


class HistoryEntry(Record):
    """One thing that happened to a node. Times are seconds since 1970."""

    node: str
    at: float
    what: str
    text: str = ""
    until: float | None = None
    """When it was over, if it lasted."""


class History(Record):
    """All that was gathered."""

    events: tuple[NodeEvent, ...]
    runs: tuple[AccountingRow, ...]
    logged: tuple[dict[str, Any], ...]
    """Our own events as they are in the logs, with a node and a time."""

    until: float
    blamed: tuple[tuple[str, int, float], ...] = ()
    """Node, uid and time of what jobs blamed, by the fleet index; each user once for each node."""


def gather(slurm: SlurmClient, logs: Iterable[Path], days: float, now: float) -> History:
    """Ask slurmdbd and read the logs. Raises SlurmCommandError types and :class:`LogUnreadable`."""
    within_s = days * DAY_S
    return History(
        events=joined(slurm.node_events(within_s)),
        runs=slurm.runs(within_s),
        logged=tuple(event for log in logs for event in read_log(log) if event["at"] >= now - within_s),
        until=now,
    )


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return a log's events about nodes, without lines that cannot be read (torn by a crash).

    Raises :class:`LogUnreadable`.
    """
    try:
        with path.open("rb") as lines:
            return [event for line in lines if (event := _parsed(line))]
    except OSError as error:
        raise LogUnreadable(path, error) from error


def own_log(path: Path) -> list[Path]:
    """Return this node's event log, if there is one that this user may read; says so if it is closed.

    Raises :class:`LogUnreadable` if it cannot be read for another reason.
    """
    try:
        os.close(os.open(path, os.O_RDONLY))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except PermissionError:
        print(f"{path} is closed to you: only what slurmdbd knows is shown", file=sys.stderr)
        return []
    except OSError as error:
        raise LogUnreadable(path, error) from error
    return [path]


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        event = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    known = isinstance(event, dict) and event.get("event") in _EVENTS
    timed = known and isinstance(event.get("at"), int | float) and isinstance(event.get("node"), str)
    return event if timed else None


# -- pure -------------------------------------------------------------------------------------------------


def joined(events: Iterable[NodeEvent]) -> tuple[NodeEvent, ...]:
    """Return the events in order; those that Slurm cut in two (at every change of the state) are joined."""
    found: list[NodeEvent] = []
    last: dict[str, int] = {}
    for event in sorted(events, key=lambda e: (e.start_time or 0.0, e.end_time or float("inf"))):
        before = found[last[event.node]] if event.node in last else None
        if (
            before is not None
            and before.reason == event.reason
            and before.end_time is not None
            and (event.start_time or 0.0) - before.end_time <= _JOINED_S
        ):
            found[last[event.node]] = msgspec.structs.replace(before, end_time=event.end_time)
        else:
            last[event.node] = len(found)
            found.append(event)
    return tuple(found)


def fault_kind(event: NodeEvent, site: Sequence[DrainReason] = ()) -> str:
    """Return what the event says against the node; empty if a person took it out without a fault."""
    part = evidence(event.reason, site)
    return part.says if part else ""


def failures_of(history: History, site: Sequence[DrainReason] = ()) -> list[Failure]:
    """Return all that counts against nodes. What jobs suspected of a node counts once per user.

    ``site``: what the site says of reasons.
    """
    found: list[Failure] = []
    of_slurm: list[Failure] = []
    outages: dict[str, float] = {}
    for event in history.events:
        part = evidence(event.reason, site)
        if part is None or event.start_time is None:
            continue
        failure = Failure(t=event.start_time, nodes=(event.node,), kind=part.says, in_job=False)
        if part.means is not Meaning.SLURM:
            found.append(failure)
            continue
        # A node that stops responding, and is seen to have rebooted before it is back, has failed once.
        if event.start_time > outages.get(event.node, -math.inf) + OUTAGE_S:
            of_slurm.append(failure)
        until = event.start_time if event.end_time is None else event.end_time
        outages[event.node] = max(until, outages.get(event.node, -math.inf))
    shared = set(_together(of_slurm))
    found += of_slurm
    found += [
        Failure(t=row.end_time, nodes=row.nodes, kind="job lost a node")
        for row in history.runs
        if row.state in _NODE_DIED and row.end_time is not None and row.nodes
    ]
    # The record of a suspect is a file of the job's user, who may write as many as there are jobs.
    said: dict[tuple[str, str], float] = {}
    for told in history.logged:
        if told["event"] == "acquitted":
            said.setdefault((told["node"], str(told.get("uid"))), told["at"])
    found += [
        Failure(t=at, nodes=(node,), kind="suspected by a job", in_job=False)
        for (node, _), at in said.items()
    ]
    found += [
        Failure(t=at, nodes=(node,), kind="blamed by a job", in_job=False, is_hearsay=True)
        for node, uid, at in history.blamed
        if (node, str(uid)) not in said
    ]
    # What is shared explains the jobs that died of it, too.
    return [failure for failure in pinned(found, PINNED_S) if failure not in shared]


def _together(failures: Iterable[Failure]) -> list[Failure]:
    """Return those that :data:`TOGETHER` nodes have at about the same time."""
    found: list[Failure] = []
    kinds: defaultdict[str, list[Failure]] = defaultdict(list)
    for failure in sorted(failures, key=lambda f: f.t):
        kinds[failure.kind].append(failure)
    for alike in kinds.values():
        begin = told = 0
        near: Counter[tuple[str, ...]] = Counter()
        for end, failure in enumerate(alike, 1):
            near[failure.nodes] += 1
            while failure.t - alike[begin].t > TOGETHER_S:
                near[alike[begin].nodes] -= 1
                begin += 1
            if len(+near) >= TOGETHER:
                found += alike[max(begin, told) : end]
                told = end
    return found


def work_of(history: History) -> list[Work]:
    """Return when which nodes ran jobs."""
    return [
        Work(nodes=row.nodes, start=row.start_time, end=row.end_time or history.until)
        for row in history.runs
        if row.nodes and row.start_time is not None
    ]


def timeline(history: History, site: Sequence[DrainReason] = ()) -> dict[str, list[HistoryEntry]]:
    """Return what happened per node, oldest first. ``site``: what the site says of reasons."""
    entries = [
        HistoryEntry(
            node=event.node,
            at=event.start_time or 0.0,
            until=event.end_time,
            what=_what(event, site),
            text=event.reason,
        )
        for event in history.events
    ]
    entries += [
        HistoryEntry(node=event["node"], at=event["at"], what=_EVENTS[event["event"]], text=_text(event))
        for event in history.logged
    ]
    found: dict[str, list[HistoryEntry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.at):
        found.setdefault(entry.node, []).append(entry)
    return dict(sorted(found.items()))


def _what(event: NodeEvent, site: Sequence[DrainReason]) -> str:
    known = (part.says for part in read(event.reason, site) if part.means is not Meaning.PERSON)
    return fault_kind(event, site) or next(known, f"{event.state} by {event.user or 'an unknown user'}")


def _text(event: dict[str, Any]) -> str:
    texts = (event.get(name) for name in ("reason", "suspected", "why"))
    return "; ".join(text for text in texts if isinstance(text, str) and text)


# -- the command ------------------------------------------------------------------------------------------


def main(
    nodes: Sequence[str],
    *,
    lemons: bool,
    days: float,
    json: bool,
    config_file: Path | None,
    logs: Sequence[Path] = (),
    url: str = "",
    slurm: SlurmClient | None = None,
) -> int:
    """Print the history or the scores; 0, also when there are lemons. Raises ``InvalidNode``.

    ``url``: that of the fleet index, whose incidents count for scores; "" for none.
    """
    names = set(nodes)
    config = load(config_file or FILE)
    files = logs or own_log(Path(config.paths.log))
    slurm = slurm or CliSlurmClient(SLURMDBD_S)
    with Bar("asking slurmdbd", quiet=json):
        history = gather(slurm, files, days, time.time())

    def is_chosen(name: str) -> bool:
        return not names or name in names

    if lemons:
        # The whole fleet is compared, whatever is shown of it.
        since = history.until - days * DAY_S
        if url:
            history = msgspec.structs.replace(history, blamed=_blamed(url, since))
        every = score(work_of(history), failures_of(history, config.drain_reasons), since, history.until)
        scores = [s for s in every if is_chosen(s.node)]
        _must_be_known(slurm, names - {s.node for s in scores})
        show(scores, partial(scores_table, days=days), json=json)
    else:
        entries = {
            node: own for node, own in timeline(history, config.drain_reasons).items() if is_chosen(node)
        }
        _must_be_known(slurm, names - entries.keys())
        show(entries, _timeline_text, json=json)
    return 0


def _blamed(url: str, since: float) -> tuple[tuple[str, int, float], ...]:
    """Return whom jobs blamed. Raises the errors of :mod:`slurm_robust.fleet.errors`."""
    with open_index(url) as index:
        from slurm_robust.fleet import queries  # needs SQLAlchemy, as opening has found it

        return index.read(lambda connection: queries.accusations(connection, since))


def _must_be_known(slurm: SlurmClient, names: Collection[str]) -> None:
    """Check that the nodes exist: only of those can one say that nothing happened. Raises ``InvalidNode``."""
    try:
        if names:
            slurm.nodes(sorted(names))
    except (ControllerUnreachable, SlurmTimeout):
        pass  # History does not need slurmctld.


def scores_table(scores: Sequence[Score], days: float) -> RenderableType:
    """Return a row for each node, and how many of them are lemons."""
    numbers = ("p", "ratio", "least", "failed", "expected", "hours")
    rows = [
        (
            one_line(s.node),
            "yes" if s.is_lemon else "",
            f"{s.p:.2g}",
            "-" if s.ratio is None else f"{s.ratio:.1f}",
            "-" if s.least is None else f"{s.least:.1f}",
            f"{s.blame:.2f}",
            f"{s.expected:.2f}",
            f"{s.hours:.0f}" if s.hours >= MANY_HOURS else f"{s.hours:.2f}",
            ", ".join(
                f"{kind} {times} times" if times > 1 else kind for kind, times in sorted(s.kinds.items())
            ),
        )
        for s in scores
    ]
    table = told_table(("node", "lemon", *numbers, "what"), rows, right=numbers)
    found = sum(s.is_lemon for s in scores)
    fail = "fails" if found == 1 else "fail"
    nodes = count(len(scores), "node")
    return Group(table, f"{nodes} in {days:g} days, {found} {fail} more often than chance explains")


def _timeline_text(entries: Mapping[str, Sequence[HistoryEntry]]) -> str:
    lines = []
    for node, own in entries.items():
        lines.append(one_line(node))
        for entry in own:
            until = f" until {date_and_time(entry.until)}" if entry.until else ""
            lines.append(f"  {date_and_time(entry.at)}{until}  " + one_line(f"{entry.what}: {entry.text}"))
    return "\n".join(lines) or "slurmdbd and the event logs have nothing on these nodes"
