"""``srobust status``: what runs, what happened and what was done about it."""

from __future__ import annotations

import argparse
import os
import sys

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_job, number, whole_number
from slurm_robust.report import brief, startup, status
from slurm_robust.trainings.own import looked, named_default, no_job, own_jobs


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["status"]
    parser = add_command(
        commands,
        "status",
        _status,
        text,
        json=True,
        examples=(
            ("srobust status 4711", "what is wrong, what is done about it, and how far training is"),
            ("srobust status 4711 --watch", "the same, again every 2 seconds until the job has ended"),
            ("srobust status", "your only job, or one line for each that runs"),
            ("srobust status 4711 --short", "one line, for a small screen"),
            ("srobust status --all", "all that run, and those that have ended here, one line each"),
        ),
    )
    add_job(parser, or_default=True)
    parser.add_argument(
        "--all",
        action="store_true",
        help="list your jobs, one line each: all that Slurm has, and ended ones here",
    )
    parser.add_argument("--short", action="store_true", help="show the job in one line")
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
    shapes = [name for name in ("all", "short", "phases", "watch") if getattr(args, name)]
    if len(shapes) > 1:
        raise UsageError(f"--{shapes[0]} and --{shapes[1]} exclude each other", fix="leave one of them out")
    if args.all and args.job is not None:
        raise UsageError("JOB and --all exclude each other", fix="leave one of them out")
    if args.job is None:
        jobs = own_jobs(args.job_dir, os.environ)
        several = len(jobs.running) > 1 and not jobs.inside and not (shapes or args.json)
        if args.all or several:
            if not jobs.all:
                raise no_job(args.job_dir)
            if args.all:
                print(f"srobust: {looked(jobs, args.job_dir)}", file=sys.stderr, flush=True)
            chosen = jobs.all if args.all else jobs.running
            return brief.list_main([job.path for job in chosen], json=args.json)
        args.job = named_default(jobs, args.job_dir)
    if args.short:
        return brief.short_main(args.job, json=args.json, job_dir=args.job_dir)
    if args.watch:
        if args.json:
            raise UsageError("--watch and --json exclude each other", fix="leave one of them out")
        return status.watch(args.job, args.every or 2.0, job_dir=args.job_dir)
    if args.every is not None:
        raise UsageError("--every needs --watch", fix="add --watch")
    if args.phases:
        return startup.main(args.job, generation=args.generation, json=args.json, job_dir=args.job_dir)
    if args.generation is not None:
        raise UsageError("--generation needs --phases", fix="add --phases")
    return status.main(args.job, json=args.json, job_dir=args.job_dir)
