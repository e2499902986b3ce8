"""``srobust config``: check a configuration file, show what a run would use and where each value is from."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import add_config_options, settings_of

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command and its two sub-commands."""
    text = "check a configuration file, or show the configuration in force"
    parser = commands.add_parser("config", help=text, description=text.capitalize() + ".")
    parts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    text = (
        "check configuration files of jobs or nodes: unknown keys, types, values that contradict each other"
    )
    check = parts.add_parser("check", help=text, description=text.capitalize() + ".")
    check.add_argument("files", metavar="FILE", nargs="+", type=Path)
    check.set_defaults(handler=handle_check)

    text = "print every key with its value and where the value is from"
    show = parts.add_parser("show", help=text, description=text.capitalize() + ".")
    add_config_options(show)
    show.set_defaults(handler=handle_show)


def handle_check(args: argparse.Namespace) -> int:
    """Each file by itself over the defaults, and what it names. All that is wrong is told at once."""
    from slurm_robust.config.errors import InvalidSettings, Problem
    from slurm_robust.model.errors import SrobustError

    problems: list[Problem] = []
    for path in args.files:
        try:
            print(f"{path}: good, {_check_file(path)}")
        except SrobustError as error:
            problems.append(Problem(error.in_full(), error.exit_code))
    if problems:
        raise InvalidSettings.of(problems)
    return 0


def _check_file(path: Path) -> str:
    """How much it says. Raises ConfigError, PreflightError."""
    from slurm_robust.config.nodefile import check_file
    from slurm_robust.config.nodeyaml import is_node_file
    from slurm_robust.config.reader import read_file
    from slurm_robust.config.settings import build
    from slurm_robust.controller import logrules

    if path.is_file() and is_node_file(path.read_bytes()):
        return f"{check_file(path)} sections of a node's configuration"
    said = read_file(path)
    logrules.check(build(said), Path.cwd())
    return f"{len(said.settings)} keys"


def handle_show(args: argparse.Namespace) -> int:
    """YAML that can be used as a file, with the origin of each value as a comment."""
    from slurm_robust.config.reader import collect
    from slurm_robust.config.settings import build, show

    said = collect(args.config, os.environ, settings_of(args))
    print(show(build(said), said.settings))
    return 0
