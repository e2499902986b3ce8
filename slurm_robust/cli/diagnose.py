"""``srobust diagnose``: tests the nodes of this allocation, or this node, and says who is to blame."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "test the nodes of this allocation, or this node, and say which one fails"
    parser = commands.add_parser(
        "diagnose",
        help=text,
        description=text.capitalize() + ".",
        epilog="Exit codes: 0 all passed, 1 something failed, 2 no such node or test, 3 something unknown.",
    )
    parser.add_argument("--nodes", metavar="LIST", default="", help="only these, as a hostlist")
    parser.add_argument("--tests", metavar="A,B", default="", help="only these (default: all that apply)")
    parser.add_argument(
        "--bitwise", action="store_true", help="also compare a step of a reference model bit by bit"
    )
    parser.add_argument("--storage", metavar="DIR", default="", help="also write and read in this folder")
    parser.add_argument(
        "--budget", metavar="S", type=float, default=300.0, help="seconds for all (default: %(default)g)"
    )
    parser.add_argument("--json", action="store_true", help="print the diagnosis as JSON")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import diagnosis

    return diagnosis.main(
        nodes=args.nodes,
        tests=tuple(filter(None, args.tests.split(","))),
        bitwise=args.bitwise,
        storage=args.storage,
        budget_s=args.budget,
        json=args.json,
    )
