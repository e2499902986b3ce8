"""``srobust replay``: replays a training in small groups of this allocation's nodes, and says who errs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from slurm_robust.cli import run
from slurm_robust.cli.parsing import UsageError, add_config_options

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands

USAGE = """srobust replay [options] script.py [args ...]
       srobust replay [options] -m package.module [args ...]"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "replay",
        help="find the node that computes wrongly, by a training in small groups",
        description="Run a few steps of a training in small groups of the nodes of this Slurm job, in two "
        "phases, and name the node that the groups with other results have in common. docs/replay.md says "
        "what the script must do. Options end at the script: everything after it belongs to the script.",
        epilog="Exit codes: 0 all groups agree, 1 a node is named, 3 no verdict.",
        usage=USAGE,
    )
    parser.add_argument(
        "--nproc-per-node", type=int, metavar="P", help="workers per node (default: its GPUs, 1 without)"
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("-m", action="store_true", dest="module", help="the command is a Python module")
    add_config_options(parser)
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Read the configuration and hand over to the controller."""
    from slurm_robust.controller.main import replay
    from slurm_robust.model.job import CommandKind

    kind = run.kind_of(args, USAGE)
    if kind is CommandKind.EXEC:
        raise UsageError("only a Python script or module can be replayed", fix="leave out the --")
    nproc = args.nproc_per_node
    own = {} if nproc is None else {"--nproc-per-node": ("nproc_per_node", nproc)}
    return replay(run.configured(args, kind, own), args.command, kind, json=args.json)
