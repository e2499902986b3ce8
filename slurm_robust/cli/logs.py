"""``srobust logs``: the output of a job's ranks."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, whole_number
from slurm_robust.report import logs


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "logs",
        _logs,
        HELP["logs"],
        more="What 'srobust run' itself prints is in the job's own log.",
        examples=(
            ("srobust logs 4711 -f", "follow rank 0, across restarts and requeues"),
            (
                "srobust logs 4711 --rank 17 --err -n 200",
                "the last 200 lines of the standard error of rank 17",
            ),
        ),
        or_default_job=True,
        json=True,
    )
    parser.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="keep printing new output, across restarts and requeues, until the run is over",
    )
    parser.add_argument(
        "--rank", metavar="R", type=_number_or_all, default=0, help="the rank, or 'all' (default: 0)"
    )
    parser.add_argument(
        "--generation", metavar="G", type=whole_number(), help="the generation (default: the newest)"
    )
    parser.add_argument("--err", action="store_true", help="standard error instead of standard output")
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_number_or_all,
        default=50,
        help="begin with the last N lines of each rank, or 'all' (default: 50)",
    )


def _number_or_all(text: str) -> int | None:
    if text == "all":
        return None
    try:
        return whole_number()(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number from 0 nor 'all'") from error


def _logs(args: argparse.Namespace) -> int:
    wanted = logs.LogSelection(
        rank=args.rank,
        generation=args.generation,
        stream="err" if args.err else "out",
        lines=args.lines,
        follow=args.follow,
        json=args.json,
    )
    return logs.main(args.job, wanted, job_dir=args.job_dir)
