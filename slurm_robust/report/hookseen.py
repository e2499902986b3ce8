"""What the hooks of the site told of a job's nodes (``nodes`` in the job's directory), for reports."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.model.job import JobDirectory
from slurm_robust.model.nodeseen import MAX_BYTES, HookSeen, NodeSeen
from slurm_robust.model.record import UNREADABLE
from slurm_robust.terminal.console import indented, section
from slurm_robust.util.hostlist import fold
from slurm_robust.util.ours import open_plain
from slurm_robust.util.text import count, date_and_time, one_line

MAX_READ = 4096
"""Files, the newest."""

MAX_CLIQUES = 4
"""Named in the note; the largest."""

MAX_SHOWN = 20
"""Lines on the screen; ``--json`` has all."""


def seen_of(directory: JobDirectory) -> tuple[NodeSeen, ...]:
    """Return what is worth telling, oldest first; what cannot be read was never told."""
    told = [seen for seen in _all(directory) if not seen.is_silent]
    return tuple(sorted(told, key=lambda seen: (seen.epilog.at, seen.node)))


def clique_notes(directory: JobDirectory) -> Iterator[str]:
    """Yield a note if nodes of the newest run are of several NVLink cliques, which is no node's fault.

    Nodes are of one run if their times from prolog to epilog overlap. Unlike cluster UUIDs are other racks.
    """
    timed = [(seen, seen.prolog.at) for seen in _all(directory) if seen.prolog is not None]
    newest, begin = max(timed, key=lambda one: one[0].epilog.at, default=(None, 0.0))
    nodes: dict[str, list[str]] = {}
    for seen, began in timed:
        if newest is not None and began < newest.epilog.at and begin < seen.epilog.at and seen.epilog.cliques:
            nodes.setdefault(" and ".join(seen.epilog.cliques), []).append(seen.node)
    if len(nodes) < 2:
        return
    most = sorted(nodes.items(), key=lambda item: (-len(item[1]), item[0]))
    shown = "; ".join(f"{fold(names)} of {clique}" for clique, names in most[:MAX_CLIQUES])
    more = f"; and {len(most) - MAX_CLIQUES} more" if len(most) > MAX_CLIQUES else ""
    yield (
        f"the nodes of the newest run are of {len(most)} NVLink cliques, between which no NVLink leads: "
        f"{shown}{more}"
    )


def _all(directory: JobDirectory) -> list[NodeSeen]:
    try:
        names = [name for name in os.listdir(directory.nodes) if name.endswith(".json") and name[0] != "."]
    except OSError:
        return []
    found = []
    for name in sorted(names, key=lambda name: name.split(".")[-2])[-MAX_READ:]:
        path = directory.nodes / name
        with suppress(OSError, *UNREADABLE), open(open_plain(path, os.O_NOFOLLOW), "rb") as file:
            found.append(msgspec.json.decode(file.read(MAX_BYTES + 1), type=NodeSeen))
    return found


def lines(seen: NodeSeen) -> Iterator[str]:
    """Yield all of one node, without its name."""
    yield from (f"prolog: {line}" for line in before(seen))
    yield from meanwhile(seen)
    yield from (f"epilog: {line}" for line in after(seen))


def before(seen: NodeSeen) -> Iterator[str]:
    """Yield what the prolog saw."""
    if seen.prolog is not None:
        if seen.prolog.skipped:
            yield "tested nothing, as the job asked"
        yield from _findings(seen.prolog)


def meanwhile(seen: NodeSeen) -> Iterator[str]:
    """Yield what happened while the job ran: errors of the driver, and counters that rose."""
    for error in seen.errors:
        times = f", {count(error.count, 'line')}" if error.count > 1 else ""
        yield f"{error.kind.upper()} {error.code} of {error.subject} at {date_and_time(error.at)}{times}"
    for device, rises in seen.grown.items():
        yield f"{device}: " + ", ".join(f"{name} +{rise}" for name, rise in rises.items())


def after(seen: NodeSeen) -> Iterator[str]:
    """Yield what the epilog saw."""
    yield from _findings(seen.epilog)


def _findings(seen: HookSeen) -> Iterator[str]:
    for found in seen.findings:
        yield f"{found.check} {found.subject}: {found.text} ({found.suggestion.value})"


def told(every: Sequence[NodeSeen], nodes: Collection[str] | None = None) -> tuple[RenderableType, ...]:
    """Return a section of the screen, of ``nodes`` or of all; nothing if there is nothing to tell."""
    rows = [
        f"{seen.node}, until {date_and_time(seen.epilog.at)}: {line}"
        for seen in every
        if nodes is None or seen.node in nodes
        for line in lines(seen)
    ]
    if not rows:
        return ()
    shown = Group(*(indented(one_line(row)) for row in rows[:MAX_SHOWN]))
    more = len(rows) - MAX_SHOWN
    rest = [Text(f"  and {more} more", style="dim")] if more > 0 else []
    return section("What prolog and epilog saw of the nodes", shown, *rest)
