"""``srobust drill``: try a fault on the own running job."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands

FAULTS = ("kill-rank", "stop-rank")


def register(commands: Commands) -> None:
    """Add the command."""
    text = "break a worker of your own running job, to see that the job recovers"
    parser = commands.add_parser("drill", help=text, description=text.capitalize() + ".")
    add_job(parser)
    parser.add_argument("fault", choices=FAULTS, help="SIGKILL, or SIGSTOP so that the worker hangs")
    parser.add_argument("--rank", metavar="R", type=int, default=0, help="its global rank (default: 0)")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report's drill."""
    from slurm_robust.report import live

    return live.drill(args.job, args.fault, args.rank, job_dir=args.job_dir)
