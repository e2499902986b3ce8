"""``srobust trace``: the life of a job as spans."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.report import trace


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "trace",
        _trace,
        HELP["trace"],
        more="Also of a job that has ended. Sent twice, a span has the same id.",
        of_job=True,
        json=True,
    )
    parser.add_argument(
        "--otlp",
        metavar="URL",
        help="send them to this OpenTelemetry collector by OTLP over HTTP (http://localhost:4318)",
    )


def _trace(args: argparse.Namespace) -> int:
    return trace.main(args.job, otlp=args.otlp, json=args.json, job_dir=args.job_dir)
