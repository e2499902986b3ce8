"""``srobust diff``: what differs between two releases of a job."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.updates import views


def register(commands: Commands) -> None:
    """Add the command."""
    more = "Values of environment variables are never shown."
    parser = add_command(
        commands,
        "diff",
        _diff,
        HELP["diff"],
        more=more,
        or_default_job=True,
        json=True,
        examples=(
            ("srobust diff 4711", "the previous release against the running one"),
            ("srobust diff 4711 good running --stat", "the names of the files only"),
        ),
    )
    text = "its name, the first digits of it, running, good or previous (default: %(default)s)"
    parser.add_argument("old", metavar="A", nargs="?", default="previous", help=text)
    parser.add_argument("new", metavar="B", nargs="?", default="running", help=text)
    parser.add_argument("--stat", action="store_true", help="name the files, without their lines")


def _diff(args: argparse.Namespace) -> int:
    return views.diff(args.job, args.old, args.new, stat=args.stat, json=args.json, job_dir=args.job_dir)
