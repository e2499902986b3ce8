"""``srobust admin``: what root does for a whole cluster. One function per command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command and its own commands."""
    text = "install the node's side, test nodes that were drained"
    parser = commands.add_parser("admin", help=text, description=text.capitalize() + ".")
    own = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _register_quarantine(own)


def _register_quarantine(commands: Commands) -> None:
    text = "test the nodes that srobust drained; return those that pass, keep the others with a report"
    parser = commands.add_parser("quarantine", help=text, description=text.capitalize() + ".")
    parser.add_argument("nodes", metavar="NODES", nargs="?", default="", help="only these, as a hostlist")
    parser.add_argument("--once", action="store_true", help="one test decides, instead of drain.pass_runs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--config", metavar="FILE", type=Path, help="the nodes' configuration")
    parser.set_defaults(handler=_quarantine)


def _quarantine(args: argparse.Namespace) -> int:
    from slurm_robust.admin import quarantine

    return quarantine.main(args.nodes, once=args.once, json=args.json, config_file=args.config)
