"""``srobust spares plan``: how many shared spares a site needs, from the failures of its own nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

from msgspec import structs
from rich.console import Group, RenderableType
from rich.text import Text

from slurm_robust.admin.history import DAY_S, SLURMDBD_S, History, failures_of, gather, work_of
from slurm_robust.fleet.opening import open_index
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.policy.spares import (
    ENOUGH,
    ENOUGH_DAYS,
    QUANTILE,
    REPLENISH_DAYS,
    Dispersion,
    FailureRate,
    Measured,
    Observed,
    Replacement,
    SparePlan,
    always,
    dispersion,
    dispersion_of_trace,
    dispersion_to_use,
    measure,
    plan,
    rate_of_trace,
    rate_to_use,
    seen_text,
    spread_out,
    usual,
)
from slurm_robust.simulator.spread import Spread, parse
from slurm_robust.simulator.trace import FailureTrace
from slurm_robust.simulator.trace_facts import lasted_days, out_at_once, per_day
from slurm_robust.simulator.trace_file import load
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.slurm.client import SlurmClient
from slurm_robust.slurm.errors import InvalidNode, SlurmCommandError
from slurm_robust.slurm.records import SlurmNode
from slurm_robust.terminal.console import ScreenTable, facts_table, section, show
from slurm_robust.util.hostlist import InvalidHostlist, expand, fold
from slurm_robust.util.text import count, one_line

_PARTS = 2000
_GOLDEN = (math.sqrt(5) - 1) / 2


class NoNodes(SrobustError):
    """There is nothing to plan for, or what is given names no nodes."""

    exit_code = ExitCode.USAGE
    fix = "give --nodes a number from 1, a partition, or a hostlist such as gpu[001-128]"


class TraceTooShort(SrobustError):
    """A failure trace has too little in it to plan by."""

    exit_code = ExitCode.NO_INPUT
    fix = "take a longer trace, or plan with --rate and --dispersion"


class SpareRequirements(Record):
    """What a plan has to hold for; policy/spares.py explains each. ``logs``: event logs of nodes.

    ``trace``: a failure trace, of ``trace_nodes`` nodes if it does not say that itself. ``rate``,
    ``dispersion`` and ``replenish`` (as simulator/spread.py reads it), if left out, are those of the trace.
    Without one, rate and dispersion are those of the last ``days``, by the fleet ``index`` or slurmdbd.
    """

    rate: float | None = None
    replenish: str = ""
    dispersion: float | None = None
    trace: str = ""
    trace_nodes: int | None = None
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


class FleetFailures(Record):
    """What the history of the nodes says: their rate, and how many of them failed on each whole day."""

    measured: Measured | None = None
    per_day: tuple[int, ...] = ()
    missing: str = ""
    """Why nothing was measured."""


def measure_fleet(history: History, nodes: Collection[str] | None, days: float) -> FleetFailures:
    """Return failures per node-day of work, as lemons count both; of ``nodes``, or of all."""
    since = history.until - days * DAY_S

    def ours(names: Iterable[str]) -> int:
        return sum(nodes is None or name in nodes for name in names)

    times = [
        failure.t
        for failure in failures_of(history)
        if since <= failure.t <= history.until and ours(failure.nodes) > 0
    ]
    work = [
        (max(work.start, since), min(work.end, history.until), ours(work.nodes)) for work in work_of(history)
    ]
    seconds = sum(max(0.0, end - start) * many for start, end, many in work)
    measured = measure(len(times), seconds / DAY_S)
    if measured is None:
        return FleetFailures(missing=f"no node has worked in the last {days:g} days")
    first = min(start for start, end, many in work if many and end > start)
    per_day = [0] * int((history.until - first) / DAY_S)
    for t in times:
        if (day := int((history.until - t) / DAY_S)) < len(per_day):
            per_day[day] += 1
    return FleetFailures(measured=measured, per_day=tuple(per_day))


def measure_index(url: str, nodes: Collection[str] | None, days: float, now: float) -> FleetFailures:
    """Return the same from the fleet index: nodes that jobs blamed, each job once for each node.

    Raises the errors of :mod:`slurm_robust.fleet.errors`.
    """
    since = now - days * DAY_S
    with open_index(url) as index:
        from slurm_robust.fleet import queries  # needs SQLAlchemy, as opening has found it

        failures, hours = index.read(lambda connection: queries.node_failures(connection, since, nodes))
        per_day = index.read(lambda connection: queries.failures_per_day(connection, since, now, nodes))
    measured = measure(failures, hours / 24)
    missing = "" if measured else f"the fleet index has no work of these nodes in {days:g} days"
    return FleetFailures(measured=measured, per_day=per_day, missing=missing)


def plan_for(slurm: SlurmClient, fleet: PlannedNodes, wanted: SpareRequirements, now: float) -> SparePlan:
    """Return the plan; where nothing says otherwise, by the rate of a public trace and independent failures.

    Raises ``LogUnreadable``, :class:`TraceTooShort` and the errors of
    :mod:`slurm_robust.simulator.trace_file`.
    """
    trace = _trace(wanted)
    seen = FleetFailures() if wanted.rate is not None or trace else _seen(slurm, fleet, wanted, now)
    rate = rate_to_use(wanted.rate, seen.measured, seen.missing)
    times = parse(wanted.replenish) if wanted.replenish else None
    replacement = _replacement(times, wanted.replenish) if times else always(REPLENISH_DAYS)
    observed: Observed | None = None
    if trace:
        if wanted.rate is None:
            rate = rate_of_trace(len(trace.outages), trace.nodes * trace.span_s / DAY_S)
        if times is None:
            replacement = _replacement_of(trace)
        observed = _observed(trace, times, wanted.quantile)
    return plan(
        fleet.count,
        rate,
        measured=seen.measured,
        observed=observed,
        quantile=wanted.quantile,
        replacement=replacement,
        dispersion=_dispersion(trace, observed, seen, wanted, fleet.count * rate.per_day, replacement),
        group=wanted.group,
        notes=trace.notes if trace else (),
    )


def _trace(wanted: SpareRequirements) -> FailureTrace | None:
    if not wanted.trace:
        return None
    trace, days = load(wanted.trace, wanted.trace_nodes), ENOUGH_DAYS
    if len(trace.outages) < ENOUGH or trace.span_s < days * DAY_S:
        raise TraceTooShort(
            f"{one_line(wanted.trace)}: {count(len(trace.outages), 'outage')} in {trace.span_s / DAY_S:.3g} "
            f"days tell neither rate nor bursts; {ENOUGH} in {days} days would do"
        )
    return trace


def _seen(slurm: SlurmClient, fleet: PlannedNodes, wanted: SpareRequirements, now: float) -> FleetFailures:
    if wanted.index:
        return measure_index(wanted.index, fleet.nodes, wanted.days, now)
    try:
        history = gather(slurm, wanted.logs, wanted.days, now)
    except SlurmCommandError as error:
        return FleetFailures(missing=f"no history: {one_line(error.what)}")
    return measure_fleet(history, fleet.nodes, wanted.days)


def _replacement_of(trace: FailureTrace) -> Replacement:
    days = lasted_days(trace)
    return spread_out(days, f"{fmean(days):.3g} days on average, median {median(days):.2g}, by the trace")


def _replacement(times: Spread, text: str) -> Replacement:
    if times.kind == "fixed":
        return always(times.mean_s / DAY_S, text)
    days = [times.quantile((place + 0.5) / _PARTS) / DAY_S for place in range(_PARTS)]
    # The few longest times of a lognormal distribution, beyond the last part, have a share in its mean.
    return structs.replace(spread_out(days, text), days=times.mean_s / DAY_S)


def _observed(trace: FailureTrace, times: Spread | None, quantile: float) -> Observed:
    lasts = []
    if times:
        # By the golden ratio, all parts of the trace have short and long times alike.
        shares = ((place + 0.5) * _GOLDEN % 1 for place in range(len(trace.outages)))
        lasts = [times.quantile(share) for share in shares]
    return out_at_once(trace, quantile, lasts)


def _dispersion(
    trace: FailureTrace | None,
    observed: Observed | None,
    seen: FleetFailures,
    wanted: SpareRequirements,
    expected: float,
    replacement: Replacement,
) -> Dispersion:
    """Return the dispersion to plan with; ``expected``: mean of the failures in a day."""
    if trace is None or observed is None or wanted.dispersion is not None:
        return dispersion_to_use(wanted.dispersion, seen.per_day, expected, replacement)
    return dispersion_of_trace(dispersion(per_day(trace)), observed, expected * replacement.days)


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
            ("time to replace", one_line(made.replacement.text)),
            ("out at a time", f"{made.expected:.3g} on average; one node with probability {made.p:.3g}"),
            ("bursts", bursts_text(made)),
            *_observed_facts(made),
            *(("note", one_line(note)) for note in made.notes),
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


def bursts_text(made: SparePlan) -> str:
    """Return how far failures come together, and what independent ones would need."""
    found, why = made.dispersion, one_line(made.dispersion.why)
    if found.source == "assumed":
        return (
            "independent failures are assumed, which is optimistic; with bursts as in a public trace: "
            f"{made.public} at a time (--dispersion, --trace)"
        )
    if found.at_once <= 1:
        return f"independent failures, {why}"
    return (
        f"{made.at_once:,} at a time {why}, {made.independent:,} if failures were independent "
        f"(variance by mean {found.at_once:.2g})"
    )


def _headline(made: SparePlan, name: str) -> Iterator[tuple[str, str]]:
    """Yield how many spares to have; if too little was measured, what is usual and what public rates say."""
    few, many = usual(made.nodes)
    planned = f"{made.spares:,} for {made.nodes:,} {name}"
    if made.rate.source != "public":
        yield "spares", planned
        return
    seen = f" ({seen_text(made.measured)})" if made.measured is not None else ""
    usually = count(many, "spare") if few == many else f"{few} to {many} spares"
    yield "spares", f"not enough data{seen}; with the usual 1 to 2 %: {usually}. Or give --rate, --trace"
    yield "by a public rate", planned


def _measured_facts(made: SparePlan) -> Sequence[tuple[str, str]]:
    if (found := made.measured) is None or made.between is None or made.rate.source != "measured":
        return ()
    few, many = made.between
    interval = f"{found.low:.3g} to {found.high:.3g} per node and day, 95 % confidence"
    return [
        ("interval", interval),
        ("which means", f"{few} to {many} spares" if few < many else f"{few} spares"),
    ]


def _observed_facts(made: SparePlan) -> Sequence[tuple[str, str]]:
    if (found := made.observed) is None:
        return ()
    often = (
        f"{100 * made.quantile:g} % of the time at most {found.at_once} of its {found.nodes:,} nodes are out"
    )
    return [("in the trace", f"{often}; most: {found.most}")]
