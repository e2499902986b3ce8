"""``srobust rollback``: back to an earlier release, or an update that waits is withdrawn."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command
from slurm_robust.cli.update import add_request, add_when
from slurm_robust.model.release import When
from slurm_robust.updates import request


def register(commands: Commands) -> None:
    """Add the command."""
    text = HELP["rollback"]
    more = (
        "Without RELEASE an update that waits is withdrawn; if none waits, the last good release comes back. "
        "--withdraw never goes back."
    )
    parser = add_command(
        commands,
        "rollback",
        _rollback,
        text,
        more=more,
        of_job=True,
        json=True,
        examples=(
            ("srobust rollback 4711", "withdraw the update that waits, else return to the last good release"),
            (
                "srobust rollback 4711 previous --lazy -m 'loss is worse'",
                "return to the previous release with the next recovery",
            ),
        ),
    )
    parser.add_argument(
        "release", metavar="RELEASE", nargs="?", help="its name, the first digits of it, good or previous"
    )
    when = add_when(parser, default=When.NOW)
    when.add_argument(
        "--withdraw",
        action="store_true",
        help="only withdraw the update that waits; what runs goes on in any case",
    )
    add_request(parser)


def _rollback(args: argparse.Namespace) -> int:
    if args.withdraw and args.release is not None:
        raise UsageError("--withdraw leads to no release", fix="leave out RELEASE, or --withdraw")
    return request.rollback(
        args.job,
        args.release,
        when=args.when,
        withdraw=args.withdraw,
        from_step=args.step,
        message=args.message,
        wait=args.wait,
        json=args.json,
        job_dir=args.job_dir,
    )
