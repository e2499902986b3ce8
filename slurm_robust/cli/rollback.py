"""``srobust rollback``: back to an earlier release, or an update that waits is withdrawn."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.cli.update import add_request, add_when
from slurm_robust.model.release import When
from slurm_robust.updates import request


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["rollback"]
    more = "Without RELEASE an update that waits is withdrawn; else the last good release comes back."
    parser = add_command(commands, "rollback", _rollback, text, more=more, of_job=True, json=True)
    parser.add_argument(
        "release", metavar="RELEASE", nargs="?", help="its name, the first digits of it, good or previous"
    )
    add_when(parser, default=When.NOW)
    add_request(parser)


def _rollback(args: argparse.Namespace) -> int:
    return request.rollback(
        args.job,
        args.release,
        when=args.when,
        from_step=args.step,
        message=args.message,
        wait=args.wait,
        json=args.json,
        job_dir=args.job_dir,
    )
