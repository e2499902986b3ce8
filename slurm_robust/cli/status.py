"""``srobust status``: what happened to a job, on one screen."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "show what runs, what happened and what was done about it"
    parser = commands.add_parser("status", help=text, description=text.capitalize() + ".")
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import status

    return status.main(args.job, json=args.json, job_dir=args.job_dir)
