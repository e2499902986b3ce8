"""``srobust releases``: the releases of a job's code, and its updates."""

from __future__ import annotations

import argparse

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, add_command
from slurm_robust.updates import views


def register(commands: Commands) -> None:
    """Add the command."""
    add_command(
        commands,
        "releases",
        _releases,
        HELP["releases"],
        or_default_job=True,
        json=True,
        examples=(
            ("srobust releases 4711", "which release runs, and which were good"),
            ("srobust releases 4711 --json", "the same for a program"),
        ),
    )


def _releases(args: argparse.Namespace) -> int:
    return views.releases(args.job, json=args.json, job_dir=args.job_dir)
