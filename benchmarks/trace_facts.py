"""What a failure trace says of rates, bursts, repair times, returns and lemons, and the spares for it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from benchmarks import common
from slurm_robust.admin.spare_plan import PlannedNodes, SpareRequirements, plan_for
from slurm_robust.policy.spares import SparePlan
from slurm_robust.simulator.trace import DAY_S, FailureTrace
from slurm_robust.simulator.trace_facts import LemonTrial, TraceFacts, facts, lemon_trial
from slurm_robust.simulator.trace_file import load
from slurm_robust.slurm.cli_client import CliSlurmClient
from slurm_robust.util.text import count

REPLENISH = ("1 day", "3 days", "7 days", "")
SIZES = (128, 256, 512, 1024)
KINDS = 8


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print, write build/bench/trace_facts.json."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--trace", default="infinitehbd", help="file or name (default: %(default)s)")
    options.add_argument("--trace-nodes", type=int, help="nodes that it is of (default: as it says)")
    chosen = options.parse_args(argv)
    trace = load(chosen.trace, chosen.trace_nodes)
    found = facts(trace)
    lemons = trials(trace)
    plans = [plan(chosen.trace, trace, trace.nodes, time) for time in REPLENISH]
    sizes = [plan(chosen.trace, trace, nodes, "1 day") for nodes in SIZES]
    _print_facts(found)
    _print_lemons(lemons)
    _print_plans(f"spares for {trace.nodes} nodes, by the time to replace", plans)
    _print_plans("spares for other fleets, replaced within a day", sizes)
    written = {"facts": found, "lemons": lemons, "plans": plans, "sizes": sizes}
    print(common.write("trace_facts", msgspec.to_builtins(written)))
    return 0


def trials(trace: FailureTrace) -> dict[str, LemonTrial]:
    """What lemons did after the report that named them."""
    half, week = trace.span_s / 2, 7 * DAY_S
    return {
        "first half, then the second": lemon_trial(trace, half, half),
        "28 days, then 7; each week": lemon_trial(trace, 28 * DAY_S, week, week),
        "28 days, then 28; each week": lemon_trial(trace, 28 * DAY_S, 28 * DAY_S, week),
    }


def plan(source: str, trace: FailureTrace, nodes: int, replenish: str) -> SparePlan:
    """The plan that ``srobust spares plan --trace`` makes."""
    wanted = SpareRequirements(trace=source, trace_nodes=trace.nodes, replenish=replenish)
    return plan_for(CliSlurmClient(), PlannedNodes(name="nodes", count=nodes), wanted, 0.0)


def _print_facts(found: TraceFacts) -> None:
    rate = found.rate
    assert rate is not None
    print(
        f"{count(found.outages, 'outage')} of {found.nodes} nodes in {found.days:.0f} days: "
        f"{rate.rate:.5f} ({rate.low:.5f} to {rate.high:.5f}) per node and day"
    )
    print(
        f"begin in a day: {found.per_day:.2f} on average, p99 {found.per_day_p99}, most {found.per_day_most}"
    )
    for window in found.dispersions:
        print(f"variance by mean of those in {count(window.days, 'day')}: {window.dispersion:.2f}")
    print(
        f"out at a time: {found.out.mean:.2f} on average, p99 {found.out.at_once}, most {found.out.most}, "
        f"variance by mean {found.out.dispersion:.2f}"
    )
    print(
        f"no outage: {found.never} nodes; the worst 5 % of the nodes have {100 * found.worst_share:.1f} % of "
        f"the outages, the worst has {found.most_of_one}"
    )
    begun = ", ".join(f"{burst.outages} on day {burst.at / DAY_S:.1f}" for burst in found.bursts)
    print(f"largest bursts within ten minutes: {begun}")
    for back in found.returns:
        print(
            f"failed within {count(back.days, 'day')} of their return: {100 * back.share:.1f} % "
            f"(any node: {100 * back.usual:.1f} %)"
        )
    if found.halves is not None:
        print(f"outages of a node in both halves: correlation {found.halves:.2f}")
    table = common.table("repair, days", "kind", "outages", "median", "mean", "p90")
    for repair in found.repairs[: KINDS + 1]:
        times = (repair.median_s, repair.mean_s, repair.p90_s)
        table.add_row(repair.kind or "all", str(repair.outages), *(f"{time / DAY_S:.2f}" for time in times))
    common.console().print(table)


def _print_lemons(trials: dict[str, LemonTrial]) -> None:
    columns = ("reports", "named", "failed", "precision", "other nodes", "lift", "share of failures")
    table = common.table("lemons", "reports on", *columns)
    for name, tried in trials.items():
        table.add_row(
            name,
            str(tried.reports),
            str(tried.named),
            str(tried.failed),
            f"{tried.precision:.3f}",
            f"{tried.others:.3f}",
            f"{tried.lift:.2f}",
            f"{tried.share:.4f}",
        )
    common.console().print(table)


def _print_plans(title: str, plans: Sequence[SparePlan]) -> None:
    table = common.table(title, "nodes", "replaced within", "independent", "with bursts", "in the trace")
    for made in plans:
        seen = made.observed
        shown = str(seen.at_once) if seen and seen.nodes == made.nodes else "-"
        table.add_row(str(made.nodes), made.replacement.text, str(made.independent), str(made.at_once), shown)
    common.console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
