"""``srobust training``: the trainings, and the jobs of one."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_job_dir
from slurm_robust.report import training_view


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "training",
        _training,
        HELP["training"],
        more="Those that 'srobust run --fresh' moved aside are listed, too.",
        examples=(
            ("srobust training", "all trainings"),
            (
                "srobust training gpt-7b",
                "the jobs of a training: from which step to which, how each ended, its ETTR",
            ),
            ("srobust training 4711", "those of the training of which this job is a chapter"),
        ),
        json=True,
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="of a training, its folder, or one of its jobs (default: all)"
    )
    add_job_dir(parser)


def _training(args: argparse.Namespace) -> int:
    if args.name is None:
        return training_view.list_main(json=args.json, job_dir=args.job_dir)
    return training_view.show_main(args.name, json=args.json, job_dir=args.job_dir)
