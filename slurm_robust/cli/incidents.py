"""``srobust incidents`` and ``srobust incident``: what went wrong with a job, and what became of it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add both commands."""
    text = "list what went wrong with a job, who was blamed and what was done"
    listing = _command(commands, "incidents", text)
    listing.add_argument("--last", metavar="N", type=_count, help="only the newest N")
    listing.set_defaults(handler=handle_list)

    text = "tell one incident of a job: what happened in order, and the evidence"
    one = _command(commands, "incident", text)
    one.add_argument("number", metavar="N", type=_count, help="its number, as 'srobust incidents' shows it")
    one.add_argument("--logs", action="store_true", help="also the last lines of the ranks' output")
    one.add_argument("--stacks", action="store_true", help="also the stacks in full, one of each group")
    one.set_defaults(handler=handle_one)


def _command(commands: Commands, name: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text.capitalize() + ".")
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def handle_list(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import incident_view

    return incident_view.show_all(args.job, json=args.json, last=args.last, job_dir=args.job_dir)


def handle_one(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import incident_view

    return incident_view.show_one(
        args.job, args.number, json=args.json, logs=args.logs, stacks=args.stacks, job_dir=args.job_dir
    )
