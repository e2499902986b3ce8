"""``srobust check``: the checks of this node, for people and for monitoring systems."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "check this node, as the hooks do it, and show what was found"
    parser = commands.add_parser(
        "check",
        help=text,
        description=text.capitalize() + ".",
        epilog="Exit codes: 0 well, 1 a warning, 2 the node must not run jobs, 3 something is unknown.",
    )
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="only these checks ('gpu.*')"
    )
    parser.add_argument("--deep", action="store_true", help="as a suspect is tested")
    parser.add_argument(
        "--explain", metavar="CHECK", nargs="?", const="*", help="say what a check, or all, look at and why"
    )
    parser.add_argument(
        "--record-baseline", action="store_true", help="make the node as it is now what it is compared with"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the node's configuration")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the report."""
    from slurm_robust.report import checks

    if args.explain is not None:
        return checks.explain(args.explain, json=args.json, config_file=args.config)
    if args.record_baseline:
        return checks.record(json=args.json, config_file=args.config)
    return checks.main(only=args.only, deep=args.deep, json=args.json, config_file=args.config)
