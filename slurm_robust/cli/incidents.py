"""``srobust incidents``: what went wrong with a job, or with all jobs."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.fleet import add_index, add_since, index_of
from slurm_robust.cli.parsing import Commands, UsageError, add_command, hostlist, whole_number
from slurm_robust.fleet.accept import CAUSES
from slurm_robust.fleet.answers import IncidentFilter
from slurm_robust.fleet.view import show_incidents
from slurm_robust.model.libraries import need
from slurm_robust.report import incident_view


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["incidents"]
    every = add_command(
        commands,
        "incidents",
        _incidents,
        text,
        more="--all asks the fleet index of the site.",
        json=True,
        or_default_job=True,
        examples=(
            ("srobust incidents 4711", "the incidents of a job"),
            (
                "srobust incidents --all --since 7d --node 'gpu[001-004]'",
                "those of the last week, of all jobs, that blamed one of these nodes",
            ),
        ),
    )
    every.add_argument("--last", metavar="N", type=whole_number(1), help="only the newest N incidents")
    every.add_argument("--all", action="store_true", help="of all jobs of the site, the newest first")
    every.add_argument("--csv", action="store_true", help="with --all: print CSV")
    every.add_argument(
        "--node",
        metavar="NODES",
        type=hostlist,
        default=(),
        help="with --all: that blamed one of these nodes",
    )
    every.add_argument("--cause", choices=CAUSES, default="", help="with --all: with this cause")
    every.add_argument("--user", metavar="USER", default="", help="with --all: of this user's jobs")
    every.add_argument(
        "--training", metavar="NAME", default="", help="with --all: of jobs of trainings of this name"
    )
    every.add_argument(
        "--limit",
        metavar="N",
        type=whole_number(1),
        default=100,
        help="with --all: most of them (default: 100)",
    )
    add_since(every, "5200w")
    add_index(every)


def _incidents(args: argparse.Namespace) -> int:
    if args.all and args.job is not None:
        raise UsageError("JOB and --all exclude each other", fix="name a job, or --all for all of the site")
    if args.all:
        if args.json and args.csv:
            raise UsageError("--json and --csv exclude each other", fix="give one of them")
        need("sqlalchemy", "srobust incidents --all")
        asked = IncidentFilter(
            since=args.since,
            nodes=args.node,
            cause=args.cause,
            user=args.user,
            training=args.training,
            limit=min(args.limit, args.last or args.limit),
        )
        return show_incidents(index_of(args)[0], asked, json=args.json, as_csv=args.csv)
    if given := [
        name for name in ("node", "cause", "user", "training", "csv", "index") if getattr(args, name)
    ]:
        raise UsageError(f"--{given[0]} is for the incidents of all jobs", fix="give --all in place of JOB")
    return incident_view.show_all(args.job, json=args.json, last=args.last, job_dir=args.job_dir)
