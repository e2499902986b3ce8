"""``srobust checkpoint``: see, verify and export the checkpoints of a job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_job

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command and its sub-commands."""
    text = "see, verify and export the checkpoints of a job, running or ended"
    parser = commands.add_parser("checkpoint", help=text, description=text.capitalize() + ".")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = "list checkpoints in all tiers, as far as this node sees them, and which would be restored"
    listing = _command(parts, "ls", text)
    listing.set_defaults(handler=handle_ls)

    text = "read every copy within reach and compare its checksums; exit code 1 if one is damaged"
    verify = _command(parts, "verify", text)
    verify.set_defaults(handler=handle_verify)

    text = "make a folder for torch.distributed.checkpoint from the copies within reach"
    export = _command(parts, "export", text)
    export.add_argument("step", metavar="STEP", help="a step that 'ls' shows, or 'latest'")
    export.add_argument("--to", metavar="DIR", type=Path, required=True, help="the folder to make")
    export.set_defaults(handler=handle_export)


def _command(parts: Commands, name: str, text: str) -> argparse.ArgumentParser:
    parser = parts.add_parser(name, help=text, description=text.capitalize() + ".")
    add_job(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def handle_ls(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import checkpoints

    return checkpoints.list_main(args.job, json=args.json, job_dir=args.job_dir)


def handle_verify(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import checkpoints

    return checkpoints.verify_main(args.job, json=args.json, job_dir=args.job_dir)


def handle_export(args: argparse.Namespace) -> int:
    """Hand over to the export."""
    from slurm_robust.report import export

    return export.main(args.job, args.step, args.to, json=args.json, job_dir=args.job_dir)
