"""``srobust version``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    text = "print the version"
    parser = commands.add_parser("version", help=text, description=text.capitalize() + ".")
    parser.set_defaults(handler=handle)


def handle(args: argparse.Namespace) -> int:
    """Print ``srobust 0.1.0``."""
    from slurm_robust import __version__

    print(f"srobust {__version__}")
    return 0
