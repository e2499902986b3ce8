"""``srobust nodes``: what happened to each node, and which ones fail more often than chance explains."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "show the history of nodes, or with --lemons those that fail too often"
    parser = commands.add_parser("nodes", help=text, description=text.capitalize() + ".")
    parser.add_argument("nodes", metavar="NODES", nargs="?", default="", help="only these, as a hostlist")
    parser.add_argument("--lemons", action="store_true", help="score every node by its failures")
    parser.add_argument("--days", type=float, default=28.0, help="how far back (default: %(default)g)")
    parser.add_argument(
        "--log",
        metavar="FILE",
        type=Path,
        action="append",
        default=[],
        help="event log of a node instead of this one's; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the nodes' configuration")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Hand over to the history."""
    from slurm_robust.admin import history

    return history.main(
        args.nodes,
        lemons=args.lemons,
        days=args.days,
        json=args.json,
        config_file=args.config,
        logs=args.log,
    )
