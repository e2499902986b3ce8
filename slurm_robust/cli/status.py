"""``srobust status``: what runs, what happened and what was done about it."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, number, whole_number
from slurm_robust.report import startup, status


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["status"]
    parser = add_command(
        commands,
        "status",
        _status,
        text,
        of_job=True,
        json=True,
        examples=(
            ("srobust status 4711", "what is wrong, what is done about it, and how far training is"),
            ("srobust status 4711 --watch", "the same, again every 2 seconds until the job has ended"),
            ("srobust status 4711 --phases", "how long each phase of the newest start took"),
        ),
    )
    parser.add_argument(
        "--phases",
        action="store_true",
        help="show instead how long each phase of a start and of a recovery took, with the slowest nodes",
    )
    parser.add_argument("--watch", action="store_true", help="show it again until the job has ended")
    parser.add_argument(
        "--every",
        metavar="SECONDS",
        type=number(above=True),
        help="with --watch: how often (default: 2)",
    )
    parser.add_argument(
        "--generation",
        metavar="G",
        type=whole_number(1),
        help="with --phases: this generation (default: the newest)",
    )


def _status(args: argparse.Namespace) -> int:
    if args.watch:
        if args.json or args.phases:
            raise UsageError("--watch goes with neither --json nor --phases", fix="leave one of them out")
        return status.watch(args.job, args.every or 2.0, job_dir=args.job_dir)
    if args.every is not None:
        raise UsageError("--every needs --watch", fix="add --watch")
    if args.phases:
        return startup.main(args.job, generation=args.generation, json=args.json, job_dir=args.job_dir)
    if args.generation is not None:
        raise UsageError("--generation needs --phases", fix="add --phases")
    return status.main(args.job, json=args.json, job_dir=args.job_dir)
