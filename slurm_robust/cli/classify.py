"""``srobust classify``: what failed, by logs alone."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.analysis.logs import command
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command, add_files


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "classify",
        _classify,
        HELP["classify"],
        examples=(
            ("srobust classify slurm-4711.out", "what the log of a job says"),
            ("dmesg | srobust classify --stream kernel -", "what the kernel's log says"),
        ),
        epilog="Several files are logs of several ranks: by their names (rank-00003.err), else in order.",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", help="a log; - for standard input")
    parser.add_argument(
        "--stream",
        choices=("program", "kernel", "slurm", "nvidia-smi"),
        default="program",
        help="what wrote the logs",
    )
    text = "the site's rules, a YAML file or a folder; they override the built-in ones"
    add_files(parser, "--rules", text)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--jsonl", metavar="IN", help="classify each record of a file of JSON lines instead")
    parser.add_argument("--out", metavar="OUT", type=Path, help="file for the answers to --jsonl")


def _classify(args: argparse.Namespace) -> int:
    if (args.jsonl is None) != (args.out is None):
        raise UsageError("--jsonl and --out belong together", fix="write --jsonl IN --out OUT")
    if bool(args.files) == (args.jsonl is not None):
        raise UsageError(
            "neither log files nor --jsonl were given, or both", fix="give log files, or --jsonl IN --out OUT"
        )
    if args.jsonl is not None:
        return command.answer_file(args.jsonl, args.out, rules=args.rules)
    return command.main(args.files, stream=args.stream, rules=args.rules, json=args.json)
