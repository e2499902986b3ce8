"""``srobust stacks``: what all ranks of a running job do at this moment."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "take the stacks of all ranks of a running job now, and say who holds the others up"
    parser = commands.add_parser(
        "stacks",
        help=text,
        description=text.capitalize() + ". The training is not touched.",
        epilog="Exit codes: 0 all nodes answered, 1 some did not, 66 nothing to look at.",
    )
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--raw", action="store_true", help="also the whole stacks of every rank")
    parser.add_argument(
        "--rank",
        metavar="R",
        type=int,
        action="append",
        default=[],
        help="also the whole stacks of this rank; may be repeated",
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write all of it, whole stacks too, as JSON"
    )
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import live

    return live.stacks(
        args.job, json=args.json, raw=args.raw, ranks=args.rank, save=args.save, job_dir=args.job_dir
    )
