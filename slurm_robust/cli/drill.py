"""``srobust drill``: break a worker of one's own job."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, whole_number
from slurm_robust.diagnostics import live


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["drill"]
    parser = add_command(
        commands,
        "drill",
        _drill,
        text,
        of_job=True,
        examples=(
            ("srobust drill 4711 kill-rank --rank 3", "kill the worker of rank 3: all ranks restart"),
            ("srobust drill 4711 stop-rank --rank 3", "stop it, so that training hangs"),
        ),
    )
    parser.add_argument(
        "fault", choices=("kill-rank", "stop-rank"), help="SIGKILL; or SIGSTOP, so that the worker hangs"
    )
    parser.add_argument(
        "--rank", metavar="R", type=whole_number(), default=0, help="its global rank (default: 0)"
    )


def _drill(args: argparse.Namespace) -> int:
    return live.drill(args.job, args.fault, args.rank, job_dir=args.job_dir)
