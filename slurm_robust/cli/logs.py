"""``srobust logs``: the training's own output, of one rank or of all."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "show the training's output, of rank 0 or of others, also while it runs"
    parser = commands.add_parser(
        "logs",
        help=text,
        description=text.capitalize() + ". What 'srobust run' itself says is in the job's own log.",
    )
    add_job(parser)
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="go on with what is written, over restarts and requeues, until the run is over",
    )
    parser.add_argument(
        "--rank", metavar="R", type=_number_or_all, default=0, help="its rank, or 'all' (default: 0)"
    )
    parser.add_argument("--gen", metavar="G", type=int, help="of this generation (default: the newest)")
    parser.add_argument("--err", action="store_true", help="standard error instead of standard output")
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_number_or_all,
        default=50,
        help="begin with the last N lines of each rank, or 'all' (default: 50)",
    )
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")
    parser.set_defaults(handler=handle)


def _number_or_all(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 nor 'all'")
    return int(text)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import logs

    wanted = logs.Wanted(
        rank=args.rank,
        generation=args.gen,
        stream="err" if args.err else "out",
        lines=args.lines,
        follow=args.follow,
        json=args.json,
    )
    return logs.main(args.job, wanted, job_dir=args.job_dir)
