"""``srobust checkpoint``: lists, verifies, exports and removes the checkpoints of a job or a training."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_group, whole_number
from slurm_robust.inventory import listing, removing
from slurm_robust.inventory.removing import RemovalOptions


def register(commands: Commands) -> None:
    """Add the group."""
    parts = add_group(commands, "checkpoint", HELP["checkpoint"])

    text = "list the checkpoints that this node sees in all tiers, and which would be restored"
    add_command(parts, "ls", _list_copies, text, of_job=True, json=True)

    text = "read every copy within reach and compare its checksums; exit code 1 if one is damaged"
    add_command(parts, "verify", _verify_copies, text, of_job=True, json=True)

    text = "make a folder for torch.distributed.checkpoint from the copies within reach"
    export = add_command(parts, "export", _export, text, of_job=True, json=True)
    export.add_argument("step", metavar="STEP", help="a step that 'ls' shows, or 'latest'")
    export.add_argument("--to", metavar="DIR", type=Path, required=True, help="the folder to create")

    text = "remove checkpoints from storage that no running or later job needs"
    remove = add_command(
        parts,
        "rm",
        lambda args: removing.rm_main(
            args.job, args.steps, _asked(args, force=args.force), job_dir=args.job_dir
        ),
        text,
        more="Of a job of a training: those of the training.",
        epilog="Example: srobust checkpoint rm gpt-7b 1200 1300",
        of_job=True,
        json=True,
    )
    remove.add_argument("steps", metavar="STEP", nargs="+", help="a step that 'ls' shows on storage")
    remove.add_argument("--force", action="store_true", help="also what a job needs to go on")
    _add_consent(remove)

    text = "remove all checkpoints from storage but the newest, and incomplete ones that no job will complete"
    prune = add_command(
        parts,
        "prune",
        lambda args: removing.prune_main(args.job, args.keep, _asked(args), job_dir=args.job_dir),
        text,
        more="Of a job of a training: those of the training.",
        epilog="Example: srobust checkpoint prune gpt-7b --keep 1 --dry-run",
        of_job=True,
        json=True,
    )
    prune.add_argument(
        "--keep",
        metavar="K",
        type=whole_number(1),
        help="how many stay (default: checkpoint.keep of the job)",
    )
    _add_consent(prune)


def _add_consent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only show what would go")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")


def _list_copies(args: argparse.Namespace) -> int:
    return listing.list_main(args.job, json=args.json, job_dir=args.job_dir)


def _verify_copies(args: argparse.Namespace) -> int:
    return listing.verify_main(args.job, json=args.json, job_dir=args.job_dir)


def _export(args: argparse.Namespace) -> int:
    from slurm_robust.inventory import export  # it writes with torch

    return export.main(args.job, args.step, args.to, json=args.json, job_dir=args.job_dir)


def _asked(args: argparse.Namespace, *, force: bool = False) -> RemovalOptions:
    return RemovalOptions(yes=args.yes, dry_run=args.dry_run, json=args.json, force=force)
