"""``srobust nodes``: each node with its state in Slurm, its failures and how its rate compares with the
fleet's.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.admin.history import DAY_S, SLURMDBD_S, joined
from slurm_robust.fleet.answers import NodeRow
from slurm_robust.fleet.opening import open_index
from slurm_robust.fleet.view import rate_cells
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import Measured
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import InvalidNode, SlurmCommandError
from slurm_robust.slurm.records import NodeEvent, SlurmNode
from slurm_robust.terminal.console import ScreenTable, show
from slurm_robust.util.text import count, one_line

NOT_ASKED = "?"


class NodeView(Record):
    """One node."""

    node: str
    state: str
    """Slurm's names, ``?`` if Slurm does not answer or does not know the node (any more)."""
    reason: str
    drains: int | None
    """Times that it was drained or down, by slurmdbd; None if that does not answer."""
    hours: float
    """Hours that it worked for jobs of srobust."""
    failures: int
    network: int
    per_node_day: Measured | None
    ratio: float | None
    """Its rate by that of all others."""
    type: str = ""
    rack: str = ""


class NodeViews(Record):
    """All that ``srobust nodes --json`` prints."""

    days: float
    nodes: tuple[NodeView, ...]
    missing: tuple[str, ...] = ()
    """What could not be asked."""


def main(
    nodes: Sequence[str],
    *,
    url: str,
    days: float,
    json: bool,
    slurm: SlurmClient | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Print the table; 0. Raises ``InvalidNode``, and the errors of :mod:`slurm_robust.fleet.errors`."""
    with open_index(url) as index:
        from slurm_robust.fleet import queries

        since = clock() - days * DAY_S
        found = index.read(lambda connection: queries.nodes(connection, since, nodes))
    slurm = slurm or CliSlurmClient(SLURMDBD_S)
    missing: list[str] = []

    def ask(
        what: str, question: Callable[[], tuple[SlurmNode | NodeEvent, ...]]
    ) -> tuple[SlurmNode | NodeEvent, ...] | None:
        try:
            return question()
        except InvalidNode:
            raise
        except SlurmCommandError as error:
            missing.append(f"{what}: {one_line(error.what)}")
            return None

    states = ask("states", lambda: slurm.nodes(list(nodes) or None))
    events = ask("drains", lambda: slurm.node_events(days * DAY_S))
    views = views_of(
        found,
        [one for one in states or () if isinstance(one, SlurmNode)],
        None if events is None else [one for one in events if isinstance(one, NodeEvent)],
        nodes,
    )
    show(NodeViews(days=days, nodes=views, missing=tuple(missing)), render, json=json)
    return 0


def views_of(
    rows: Iterable[NodeRow],
    states: Iterable[SlurmNode],
    events: Iterable[NodeEvent] | None,
    wanted: Collection[str] = (),
) -> tuple[NodeView, ...]:
    """Return the nodes of the index and of Slurm, those with most failures first. Pure."""
    by_name = {node.name: node for node in states if "FUTURE" not in node.states}
    drains = None if events is None else Counter(event.node for event in joined(events))
    known = {row.node: row for row in rows}
    names = [*known, *sorted(by_name.keys() - known.keys())]
    chosen = frozenset(wanted)
    return tuple(
        _view(name, known.get(name), by_name.get(name), None if drains is None else drains[name])
        for name in names
        if not chosen or name in chosen
    )


def _view(name: str, row: NodeRow | None, node: SlurmNode | None, drains: int | None) -> NodeView:
    return NodeView(
        node=name,
        state="+".join(sorted(node.states)) if node is not None else NOT_ASKED,
        reason=node.reason if node is not None and (node.is_drained or node.is_down) else "",
        drains=drains,
        hours=row.node_hours if row else 0.0,
        failures=row.failures if row else 0,
        network=row.network if row else 0,
        per_node_day=row.per_node_day if row else None,
        ratio=row.ratio if row else None,
        type=row.type if row else "",
        rack=row.rack if row else "",
    )


def render(found: NodeViews) -> RenderableType:
    """Return a line for each node."""
    table = ScreenTable()
    for name in ("node", "state", "type", "rack"):
        table.add_column(name, no_wrap=True)
    for name in ("drains", "hours", "failed", "network", "per node-day", "95 %", "x others"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for one in found.nodes:
        table.add_row(
            one_line(one.node),
            one_line(one.state),
            one_line(one.type),
            one_line(one.rack),
            NOT_ASKED if one.drains is None else str(one.drains),
            f"{one.hours:,.0f}",
            str(one.failures),
            str(one.network),
            *rate_cells(one.per_node_day),
            "-" if one.ratio is None else f"{one.ratio:.1f}",
            one_line(one.reason),
        )
    lines = [f"{count(len(found.nodes), 'node')} in {found.days:g} days", *map(one_line, found.missing)]
    return Group(table, Text("\n".join(lines)))
