"""``srobust spares``: the administrator's side of spares that all protected jobs share."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from slurm_robust.admin import spare_plan, spares
from slurm_robust.admin.spare_plan import SpareRequirements
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.fleet import add_index, index_of
from slurm_robust.cli.parsing import (
    Commands,
    UsageError,
    add_command,
    add_files,
    add_group,
    hostlist,
    number,
    whole_number,
)
from slurm_robust.simulator.spread import parse

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")


def register(commands: Commands) -> None:
    """Add the commands."""
    own = add_group(commands, "spares", HELP["spares"])
    _register_plan(own)
    _register_create(own)
    _register_status(own)
    _register_remove(own)


# -- plan ------------------------------------------------------------------------------------------


def _register_plan(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plan",
        _plan,
        "say how many spares are needed, from the failures of the nodes",
        examples=(
            ("srobust spares plan", "for all nodes, by their failures of 28 days"),
            (
                "srobust spares plan --nodes gpu --rate 0.001 --group 4",
                "for a partition whose nodes fail once in 1000 days, up to 4 at once",
            ),
            ("srobust spares plan --nodes 512 --trace outages.csv", "by the outages that a file lists"),
        ),
        more="The number is the 99th percentile of the nodes that fail before a used spare is replaced.",
        json=True,
    )
    parser.add_argument(
        "--nodes",
        metavar="NODES",
        default="",
        help="number of nodes, a partition or a hostlist to plan for (default: all nodes)",
    )
    _add_wanted(parser)
    add_files(parser, "--log", "event log of a node, which has what jobs suspected")
    parser.add_argument(
        "--rate-from",
        choices=("index", "slurmdbd"),
        help="where the rate is measured (default: the fleet index if there is one, else slurmdbd)",
    )
    add_index(parser)


def _plan(args: argparse.Namespace) -> int:
    url = "" if args.rate_from == "slurmdbd" else index_of(args)[0]
    if args.rate_from == "index" and not url:
        raise UsageError("--rate-from index: no fleet index is configured", fix="name one with --index URL")
    return spare_plan.main(args.nodes, _wanted(args, tuple(args.log), url), json=args.json)


def _add_wanted(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rate",
        metavar="R",
        type=number(),
        help="failures per node and day (default: as measured; with few failures a public trace's 0.0042)",
    )
    parser.add_argument(
        "--replenish",
        metavar="TIME",
        type=_replenish,
        help="time until a spare that was used is replaced: a number of days, '6 h', '1 h to 5 h', "
        "'2 days mean' or '0.7 days median, 6.5 days mean' (default: 1 day, or as the trace)",
    )
    parser.add_argument(
        "--dispersion",
        metavar="X",
        type=number(1, most=1000),
        help="variance by mean of the failures in a day: 1 if they are independent, more if they come in "
        "bursts (default: as measured, else 1)",
    )
    parser.add_argument(
        "--trace",
        metavar="FILE",
        default="",
        help="failure trace that gives rate, bursts and times to replace: CSV of node,start,end,kind, or the "
        "name of one that comes with srobust: infinitehbd",
    )
    parser.add_argument(
        "--trace-nodes",
        metavar="N",
        type=whole_number(1),
        help="nodes that the trace is of, with those that had no outage (default: as the trace says)",
    )
    parser.add_argument(
        "--quantile",
        metavar="Q",
        type=_share,
        default=0.99,
        help="probability that the spares are enough (default: %(default)g)",
    )
    parser.add_argument(
        "--group",
        metavar="N",
        type=whole_number(),
        default=0,
        help="largest group of nodes that may be evicted together: at least as many spares",
    )
    parser.add_argument(
        "--days",
        type=number(above=True),
        default=28.0,
        help="days of failures to look back (default: %(default)g)",
    )


def _wanted(args: argparse.Namespace, logs: tuple[Path, ...] = (), index: str = "") -> SpareRequirements:
    if args.trace_nodes and not args.trace:
        raise UsageError("--trace-nodes without a trace", fix="name one with --trace FILE")
    return SpareRequirements(
        rate=args.rate,
        replenish=args.replenish or "",
        dispersion=args.dispersion,
        trace=args.trace,
        trace_nodes=args.trace_nodes,
        quantile=args.quantile,
        group=args.group,
        days=args.days,
        logs=logs,
        index=index,
    )


def _replenish(text: str) -> str:
    try:
        float(text)
    except ValueError:
        pass
    else:
        days = number(above=True)(text)
        return f"{days:g} {'day' if days == 1 else 'days'}"
    try:
        times = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not times.mean_s:
        raise argparse.ArgumentTypeError(f"{text!r} is no time above 0")
    return text


def _share(text: str) -> float:
    value = number(above=True)(text)
    if value >= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number between 0 and 1")
    return value


# -- create, status, remove ------------------------------------------------------------------------


def _register_create(commands: Commands) -> None:
    text = "show what would reserve spare nodes; with --apply, reserve them"
    parser = add_command(
        commands,
        "create",
        _create,
        text,
        examples=(
            (
                "srobust spares create --count 4 --accounts ml",
                "show what would reserve 4 nodes for an account",
            ),
            (
                "srobust spares create --nodes 'gpu[061-064]' --users alice,bob --apply",
                "reserve these nodes for two users",
            ),
        ),
    )
    nodes = parser.add_mutually_exclusive_group(required=True)
    nodes.add_argument(
        "--count",
        metavar="N",
        type=whole_number(1),
        help="number of nodes; Slurm chooses them and replaces those that fail",
    )
    nodes.add_argument(
        "--nodes", metavar="LIST", type=hostlist, help="exactly these nodes; Slurm never replaces them"
    )
    parser.add_argument("--users", metavar="A,B", type=_names, default=(), help="users whose jobs get them")
    parser.add_argument(
        "--accounts",
        metavar="A,B",
        type=_names,
        default=(),
        help="accounts whose jobs get them; with --users a job needs both",
    )
    parser.add_argument("--partition", metavar="P", type=_name, help="their partition (default: Slurm's)")
    parser.add_argument(
        "--ignore-jobs",
        action="store_true",
        help="also take nodes on which jobs run; they become spares when these jobs end",
    )
    _add_name(parser)
    parser.add_argument("--apply", action="store_true", help="do it; only root and operators of Slurm can")


def _create(args: argparse.Namespace) -> int:
    if not (args.users or args.accounts):
        raise UsageError(
            "no user may use the spares", fix="name users (--users A,B) or accounts (--accounts A,B)"
        )
    request = spares.request_of(
        args.name,
        count=args.count,
        nodes=args.nodes or (),
        users=args.users,
        accounts=args.accounts,
        partition=args.partition or "",
        ignore_jobs=args.ignore_jobs,
    )
    return spares.create(request, apply=args.apply, is_root=os.geteuid() == 0)


def _register_status(commands: Commands) -> None:
    parser = add_command(
        commands,
        "status",
        lambda args: spares.status(args.name, _wanted(args), json=args.json),
        "show the state of each spare, and compare their number with the plan",
        examples=(
            ("srobust spares status", "the state of each spare"),
            ("srobust spares status --name ml_spares --json", "another reservation, for a program"),
        ),
        epilog="Exit codes: 0 as many as reserved and planned are ready or in use, 1 fewer.",
        json=True,
    )
    _add_name(parser)
    _add_wanted(parser)


def _register_remove(commands: Commands) -> None:
    text = "show what returns the spares to general use; with --apply, do it"
    parser = add_command(
        commands,
        "remove",
        _remove,
        text,
        examples=(
            ("srobust spares remove", "show what would return the spares"),
            ("srobust spares remove --apply", "return them"),
        ),
    )
    _add_name(parser)
    parser.add_argument("--apply", action="store_true", help="do it; only root and operators of Slurm can")
    parser.add_argument("--force", action="store_true", help="cancel the jobs that use or wait for a spare")


def _remove(args: argparse.Namespace) -> int:
    return spares.remove(args.name, apply=args.apply, force=args.force)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--name",
        metavar="NAME",
        type=_name,
        default="srobust_spares",
        help="the reservation (default: %(default)s)",
    )


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid name: use letters, digits, '_', '.' and '-'"
        )
    return text


def _names(text: str) -> tuple[str, ...]:
    return tuple(map(_name, text.split(",")))
