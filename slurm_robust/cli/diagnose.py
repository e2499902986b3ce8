"""``srobust diagnose``: tests of the nodes of an allocation."""

from __future__ import annotations

import os

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command, hostlist, number
from slurm_robust.cli.settings import add_config_options, settings_of
from slurm_robust.config.jobfile import collect
from slurm_robust.diagnostics import command


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "diagnose",
        lambda args: command.main(
            nodes=args.nodes,
            tests=tuple(filter(None, args.tests.split(","))),
            bitwise=args.bitwise,
            storage=args.storage,
            budget_s=args.budget,
            json=args.json,
            config=collect(args.config, os.environ, settings_of(args)).build(),
        ),
        HELP["diagnose"],
        examples=(
            ("srobust diagnose", "all tests that apply, on the nodes of this allocation"),
            (
                "srobust diagnose --nodes 'gpu[001-004]' --storage /shared/tmp",
                "only these nodes; also write and read in a folder",
            ),
        ),
        epilog="Exit codes: 0 all passed, 1 something failed, 3 something unknown.",
        json=True,
    )
    add_config_options(parser)
    parser.add_argument(
        "--nodes", metavar="LIST", type=hostlist, default=(), help="only these nodes, as a hostlist"
    )
    parser.add_argument(
        "--tests", metavar="A,B", default="", help="only these tests (default: all that apply)"
    )
    parser.add_argument(
        "--bitwise", action="store_true", help="also compare a step of a reference model bit by bit"
    )
    parser.add_argument("--storage", metavar="DIR", default="", help="also write and read in this folder")
    parser.add_argument(
        "--budget",
        metavar="S",
        type=number(above=True),
        default=300.0,
        help="seconds for all tests together (default: %(default)g)",
    )
