"""``srobust classify``: what failed, whose fault it is and what to do, from logs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import UsageError

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "say from logs what failed, whose fault it is and what to do"
    parser = commands.add_parser(
        "classify",
        help=text,
        description=text.capitalize() + ".",
        epilog="Several files are logs of several ranks: by their names (rank-00003.err), else in order.",
    )
    parser.add_argument("files", metavar="FILE", nargs="*", help="a log; - is the standard input")
    parser.add_argument(
        "--stream",
        choices=("program", "kernel", "slurm", "nvidia-smi"),
        default="program",
        help="what wrote the logs",
    )
    parser.add_argument(
        "--rules",
        metavar="FILE",
        action="append",
        default=[],
        type=Path,
        help="rules of the site, YAML, or a folder of them; they win over ours; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--jsonl", metavar="IN", help="classify each record of a file of JSON lines instead")
    parser.add_argument("--out", metavar="OUT", type=Path, help="where the answers to --jsonl go")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    if (args.jsonl is None) != (args.out is None):
        raise UsageError("--jsonl and --out belong together", "write --jsonl IN --out OUT")
    if bool(args.files) == (args.jsonl is not None):
        raise UsageError("nothing to classify, or two things", "give log files, or --jsonl IN --out OUT")
    from slurm_robust.report import classification

    if args.jsonl is not None:
        return classification.answer_file(args.jsonl, args.out, rules=args.rules)
    return classification.main(args.files, stream=args.stream, rules=args.rules, json=args.json)
