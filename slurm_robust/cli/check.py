"""``srobust check``: this node, as the hooks check it."""

from __future__ import annotations

import argparse

from slurm_robust.admin import node_checks
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_node_config


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "check",
        _check,
        HELP["check"],
        examples=(
            ("srobust check", "all checks of this node"),
            ("srobust check --only 'gpu.*' --deep", "those of its GPUs, with nothing from the cache"),
            ("srobust check --explain", "what each check looks at"),
        ),
        epilog="Exit codes: 0 healthy, 1 a warning, 2 the node must not run jobs, 3 something is unknown.",
        json=True,
    )
    parser.add_argument(
        "--only", metavar="PATTERN", action="append", default=[], help="only these checks ('gpu.*')"
    )
    parser.add_argument(
        "--deep", action="store_true", help="run every check, with nothing from the cache, as for a suspect"
    )
    parser.add_argument(
        "--explain", metavar="CHECK", nargs="?", const="*", help="explain a check, or all of them"
    )
    parser.add_argument(
        "--record-baseline", action="store_true", help="record the node's present state as its baseline"
    )
    add_node_config(parser)


def _check(args: argparse.Namespace) -> int:
    if args.explain is not None:
        return node_checks.explain(args.explain, json=args.json, config_file=args.config)
    if args.record_baseline:
        return node_checks.record(json=args.json, config_file=args.config)
    return node_checks.main(only=args.only, deep=args.deep, json=args.json, config_file=args.config)
