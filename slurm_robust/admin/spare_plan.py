"""``srobust spares plan``: how many shared spares a site needs, from the failures of its own nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.admin.history import DAY_S, SLURMDBD_S, History, failures_of, gather, work_of
from slurm_robust.fleet.opening import open_index
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import (
    QUANTILE,
    REPLENISH_DAYS,
    FailureRate,
    Measured,
    SparePlan,
    days_text,
    measure,
    plan,
    rate_to_use,
    seen_text,
    usual,
)
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import InvalidNode, SlurmCommandError
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.terminal.console import ScreenTable, facts_table, section, show
from slurm_robust.util.hostlist import InvalidHostlist, expand, fold
from slurm_robust.util.text import count, one_line


class NoNodes(SrobustError):
    """There is nothing to plan for, or what is given names no nodes."""

    exit_code = ExitCode.USAGE
    fix = "give --nodes a number from 1, a partition, or a hostlist such as gpu[001-128]"


class SpareRequirements(Record):
    """What a plan has to hold for; policy/spares.py explains each. ``logs``: event logs of nodes.

    ``rate`` None: that of the last ``days``, else the paper's. ``index``: the fleet index to take it from, ""
    for slurmdbd.
    """

    rate: float | None = None
    replenish_days: float = REPLENISH_DAYS
    quantile: float = QUANTILE
    group: int = 0
    days: float = 28.0
    logs: tuple[Path, ...] = ()
    index: str = ""


class PlannedNodes(Record):
    """The nodes to plan for: ``count`` of them, by ``name``; ``nodes`` is None if only that is known."""

    name: str
    count: int
    nodes: frozenset[str] | None = None


def fleet_of(slurm: SlurmClient, nodes: str) -> PlannedNodes:
    """Return the nodes to plan for. ``nodes``: a number, a partition, a hostlist, or "" for all. A partition
    wins over a node of its name.

    Raises :class:`NoNodes`, InvalidNode and other SlurmCommandError types.
    """
    if nodes.isascii() and nodes.isdecimal():
        if not (count := int(nodes[:10])):
            raise NoNodes(f"--nodes {nodes}: no node")
        return PlannedNodes(name="nodes", count=count)
    return known_fleet(slurm.nodes(), nodes)


def known_fleet(every: Iterable[SlurmNode], nodes: str) -> PlannedNodes:
    """Return the same for a partition or a hostlist, by what Slurm says of all nodes. Raises as
    :func:`fleet_of`.
    """
    real = [node for node in every if "FUTURE" not in node.states]
    members = frozenset(node.name for node in real if not nodes or nodes in node.partitions)
    if members:
        return PlannedNodes(
            name=f"nodes of {nodes}" if nodes else "nodes of the cluster", count=len(members), nodes=members
        )
    try:
        names = frozenset(expand(nodes))
    except InvalidHostlist as error:
        raise NoNodes(str(error)) from error
    if not names:
        raise NoNodes("Slurm has no nodes")
    if unknown := names - {node.name for node in real}:
        raise InvalidNode(f"{fold(unknown)}: no partition and no node of Slurm")
    return PlannedNodes(name="nodes", count=len(names), nodes=names)


def measure_fleet(history: History, nodes: Collection[str] | None, days: float) -> Measured | None:
    """Return failures per node-day of work, as lemons count both; of ``nodes``, or of all."""
    since = history.until - days * DAY_S

    def ours(names: Iterable[str]) -> int:
        return sum(nodes is None or name in nodes for name in names)

    failures = sum(
        since <= failure.t <= history.until and ours(failure.nodes) > 0 for failure in failures_of(history)
    )
    seconds = sum(
        max(0.0, min(work.end, history.until) - max(work.start, since)) * ours(work.nodes)
        for work in work_of(history)
    )
    return measure(failures, seconds / DAY_S)


def measure_index(url: str, nodes: Collection[str] | None, since: float) -> Measured | None:
    """Return the same from the fleet index: nodes that jobs blamed, each job once for each node.

    Raises the errors of :mod:`slurm_robust.fleet.errors`.
    """
    with open_index(url) as index:
        from slurm_robust.fleet import queries  # needs SQLAlchemy, as opening has found it

        failures, hours = index.read(lambda connection: queries.node_failures(connection, since, nodes))
    return measure(failures, hours / 24)


def plan_for(slurm: SlurmClient, fleet: PlannedNodes, wanted: SpareRequirements, now: float) -> SparePlan:
    """Return the plan; a slurmdbd that says nothing leaves the paper's rate. Raises ``LogUnreadable``."""
    measured, missing = None, ""
    if wanted.rate is None and wanted.index:
        measured = measure_index(wanted.index, fleet.nodes, now - wanted.days * DAY_S)
        missing = "" if measured else f"the fleet index has no work of these nodes in {wanted.days:g} days"
    elif wanted.rate is None:
        try:
            history = gather(slurm, wanted.logs, wanted.days, now)
        except SlurmCommandError as error:
            missing = f"no history: {one_line(error.what)}"
        else:
            measured = measure_fleet(history, fleet.nodes, wanted.days)
            missing = "" if measured else f"no node has worked in the last {wanted.days:g} days"
    return plan(
        fleet.count,
        rate_to_use(wanted.rate, measured, missing),
        measured=measured,
        quantile=wanted.quantile,
        replenish_days=wanted.replenish_days,
        group=wanted.group,
    )


# -- the command ------------------------------------------------------------------------------------------


def main(
    nodes: str,
    wanted: SpareRequirements,
    *,
    json: bool,
    slurm: SlurmClient | None = None,
    clock: Callable[[], float] = time.time,
) -> int:
    """Print the plan; 0."""
    slurm = slurm or CliSlurmClient(SLURMDBD_S)
    fleet = fleet_of(slurm, nodes)
    show(plan_for(slurm, fleet, wanted, clock()), text_of(fleet), json=json)
    return 0


def text_of(fleet: PlannedNodes) -> Callable[[SparePlan], RenderableType]:
    """Return how a plan for ``fleet`` is shown."""

    def render(made: SparePlan) -> RenderableType:
        facts = [
            *_headline(made, one_line(fleet.name)),
            ("because", made.reason),
            ("rate", rate_text(made.rate)),
            *_measured_facts(made),
            ("time to replace", days_text(made.replenish_days)),
            ("failures in it", f"{made.expected:.3g} on average; of one node with probability {made.p:.3g}"),
        ]
        table = ScreenTable()
        table.add_column("spares", justify="right")
        table.add_column("enough in", justify="right")
        table.add_column("")
        for chance in made.chances:
            mark = f"the first above {100 * made.quantile:g} %" if chance.spares == made.at_once else ""
            table.add_row(str(chance.spares), f"{100 * chance.share:.4f} %", Text(mark))
        return Group(facts_table(facts), *section("how often this many spares are enough", table))

    return render


def rate_text(rate: FailureRate) -> str:
    """Return the rate, and why it is this one."""
    return f"{rate.per_day:.3g} failures per node and day, {one_line(rate.why)}"


def _headline(made: SparePlan, name: str) -> Iterator[tuple[str, str]]:
    """Yield how many spares to have; if too little was measured, what is usual and what the paper says."""
    few, many = usual(made.nodes)
    planned = f"{made.spares} for {made.nodes:,} {name}"
    if made.rate.source != "paper":
        yield "spares", planned
        return
    seen = f" ({seen_text(made.measured)})" if made.measured is not None else ""
    usually = count(many, "spare") if few == many else f"{few} to {many} spares"
    yield "spares", f"not enough data{seen}; with the usual 1 to 2 %: {usually}. Or give --rate"
    yield "by a paper", planned


def _measured_facts(made: SparePlan) -> Sequence[tuple[str, str]]:
    if (found := made.measured) is None or made.between is None or made.rate.source != "measured":
        return ()
    few, many = made.between
    interval = f"{found.low:.3g} to {found.high:.3g} per node and day, 95 % confidence"
    return [
        ("interval", interval),
        ("which means", f"{few} to {many} spares" if few < many else f"{few} spares"),
    ]
