"""``srobust checkpoint``: list, verify and export the checkpoints of a job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_command, add_group

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command and its sub-commands."""
    text = "list, verify and export the checkpoints of a job, running or ended"
    parts = add_group(commands, "checkpoint", text)

    text = "list checkpoints in all tiers, as far as this node sees them, and which would be restored"
    add_command(parts, "ls", _list, text, of_job=True, json=True)

    text = "read every copy within reach and compare its checksums; exit code 1 if one is damaged"
    add_command(parts, "verify", _verify, text, of_job=True, json=True)

    text = "make a folder for torch.distributed.checkpoint from the copies within reach"
    export = add_command(parts, "export", _export, text, of_job=True, json=True)
    export.add_argument("step", metavar="STEP", help="a step that 'ls' shows, or 'latest'")
    export.add_argument("--to", metavar="DIR", type=Path, required=True, help="the folder to make")


def _list(args: argparse.Namespace) -> int:
    from slurm_robust.report import checkpoints

    return checkpoints.list_main(args.job, json=args.json, job_dir=args.job_dir)


def _verify(args: argparse.Namespace) -> int:
    from slurm_robust.report import checkpoints

    return checkpoints.verify_main(args.job, json=args.json, job_dir=args.job_dir)


def _export(args: argparse.Namespace) -> int:
    from slurm_robust.report import export

    return export.main(args.job, args.step, args.to, json=args.json, job_dir=args.job_dir)
