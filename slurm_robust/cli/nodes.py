"""``srobust nodes``: how often nodes fail, and their history."""

from __future__ import annotations

import argparse

from slurm_robust.admin import history, node_table
from slurm_robust.cli import fleet
from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, add_files, add_nodes, number


def register(commands: Commands) -> None:
    """Add the command."""
    more = "Without a fleet index it shows the history."
    parser = add_command(
        commands,
        "nodes",
        _nodes,
        HELP["nodes"],
        more=more,
        json=True,
        examples=(
            ("srobust nodes --lemons", "score every node by its failures"),
            ("srobust nodes 'gpu[001-004]' --history --days 90", "what happened to these nodes in 90 days"),
        ),
    )
    add_nodes(parser)
    parser.add_argument("--history", action="store_true", help="show what happened to each node")
    parser.add_argument("--lemons", action="store_true", help="score every node by its failures")
    parser.add_argument(
        "--days", type=number(above=True), default=28.0, help="days to look back (default: %(default)g)"
    )
    add_files(parser, "--log", "event log of a node instead of this one's")
    fleet.add_index(parser)


def _nodes(args: argparse.Namespace) -> int:
    url, _ = fleet.index_of(args)
    if url and not (args.history or args.lemons):
        return node_table.main(args.nodes, url=url, days=args.days, json=args.json)
    return history.main(
        args.nodes,
        lemons=args.lemons,
        days=args.days,
        json=args.json,
        config_file=args.config,
        logs=args.log,
        url=url,
    )
