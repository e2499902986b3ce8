"""``srobust replay``: a few steps in small groups of nodes, to find one that computes wrongly."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, UsageError, add_command
from slurm_robust.cli.run import configured
from slurm_robust.cli.settings import add_config_options
from slurm_robust.cli.training_command import kind_of, options_of
from slurm_robust.home import page
from slurm_robust.model.job import CommandKind
from slurm_robust.run.command import replay

REPLAY_USAGE = """srobust replay [options] script.py [args ...]
       srobust replay [options] -m package.module [args ...]"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "replay",
        _replay,
        HELP["replay"],
        more="Runs a few steps in small groups of the nodes of this Slurm job, in two phases, and names the "
        "node that the groups with other results have in common. "
        f"{page('diagnostics.md#replay')} says what the script must do. "
        "Options end at the script: everything after it belongs to the script.",
        examples=(
            ("srobust replay replay.py --seed 7", "a script with its arguments"),
            ("srobust replay --nproc-per-node 8 -m project.replay", "a module, with 8 workers on each node"),
        ),
        epilog="Exit codes: 0 all groups agree, 1 a node is named, 3 no verdict.",
        usage=REPLAY_USAGE,
    )
    parser.add_argument(
        "--nproc-per-node",
        type=int,
        metavar="P",
        help="workers per node (default: one per GPU, 1 without GPUs)",
    )
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("-m", action="store_true", dest="module", help="the command is a Python module")
    add_config_options(parser)


def _replay(args: argparse.Namespace) -> int:
    kind = kind_of(args, REPLAY_USAGE)
    if kind is CommandKind.EXEC:
        raise UsageError("only a Python script or module can be replayed", fix="leave out the --")
    options = options_of(args, {"--nproc-per-node": ("nproc_per_node", args.nproc_per_node)})
    return replay(configured(args, kind, options), args.command, kind, json=args.json)
