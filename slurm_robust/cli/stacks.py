"""``srobust stacks``: where all ranks of a running job are."""

from __future__ import annotations

from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, whole_number
from slurm_robust.diagnostics import live


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "stacks",
        lambda args: live.stacks(
            args.job, json=args.json, raw=args.raw, ranks=args.rank, save=args.save, job_dir=args.job_dir
        ),
        HELP["stacks"],
        more="Training goes on undisturbed.",
        epilog="Exit codes: 0 all nodes answered, 1 some did not, 66 no stacks can be taken.",
        examples=(
            ("srobust stacks 4711", "where the ranks are, in groups that do the same"),
            (
                "srobust stacks 4711 --rank 3 --save stacks.json",
                "with the full stacks of rank 3; those of all ranks go to a file",
            ),
        ),
        or_default_job=True,
        json=True,
    )
    parser.add_argument("--raw", action="store_true", help="also the full stacks of every rank")
    parser.add_argument(
        "--rank",
        metavar="R",
        type=whole_number(),
        action="append",
        default=[],
        help="also the full stacks of this rank; may be repeated",
    )
    parser.add_argument(
        "--save", metavar="FILE", type=Path, help="also write everything, with full stacks, as JSON"
    )
