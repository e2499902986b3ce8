"""``srobust init``: the batch script and the configuration of a first job, filled in for this site."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, whole_number
from slurm_robust.templates.catalog import DEFAULT, kinds
from slurm_robust.templates.choose import Wish
from slurm_robust.templates.command import list_kinds, main


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "init",
        _init,
        HELP["init"],
        more="Asks Slurm for the partition, its nodes and its time limit, and asks you in a terminal, unless "
        "options say it or --yes takes the defaults. Overwrites no file without --force.",
        examples=(
            ("srobust init", "asks, then writes train.sbatch and job.yaml"),
            (
                "srobust init --nodes 5 --spares 1 --partition gpu --script train.py",
                "asks nothing: 4 nodes train, 1 stands by",
            ),
            ("srobust init chained --yes --dir job", "a training in many short runs, in the folder job"),
            ("srobust init --list", "the kinds of batch scripts, and what each is for"),
        ),
        json=True,
    )
    parser.add_argument(
        "kind",
        metavar="KIND",
        nargs="?",
        default=DEFAULT,
        choices=kinds(),
        help=f"one of {', '.join(kinds())} (default: {DEFAULT})",
    )
    parser.add_argument("--list", action="store_true", help="list the kinds, and what each is for")
    parser.add_argument(
        "--dir", metavar="DIR", type=Path, default=Path(), help="folder of the files (default: this one)"
    )
    parser.add_argument("--script", metavar="FILE", help="the training's script")
    for options, kind, text in (
        (("-N", "--nodes"), whole_number(1), "nodes of the job: those that train and the standbys"),
        (("--spares",), whole_number(0), "how many of them stand by"),
        (("--gpus-per-node",), whole_number(0), "GPUs of each node; 0: none"),
    ):
        parser.add_argument(*options, metavar="N", type=kind, help=text)
    for short, option, placeholder, text in (
        ("-p", "--partition", "NAME", "the partition"),
        ("-A", "--account", "NAME", "the account"),
        ("-t", "--time", "TIME", "the time limit, as sbatch takes it: 7-00:00:00"),
    ):
        parser.add_argument(short, option, metavar=placeholder, help=text)
    parser.add_argument("-y", "--yes", action="store_true", help="ask nothing, take the defaults")
    parser.add_argument("--force", action="store_true", help="overwrite files that are there")


def _init(args: argparse.Namespace) -> int:
    if args.list:
        return list_kinds(json=args.json)
    wish = Wish(**{name: getattr(args, name) for name in Wish.__struct_fields__})
    return main(args.kind, wish, args.script, args.dir, yes=args.yes, force=args.force, json=args.json)
