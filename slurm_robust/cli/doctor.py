"""``srobust doctor``: what in the environment of a job will hurt its recovery."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import UsageError, add_command, add_config_options, settings_of, whole_number

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands


def register(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "doctor",
        _doctor,
        "find what in Slurm, the job, its software and its node will hurt a recovery, with the fix",
        more="Runs on a login node, for a batch script before it is submitted, and inside a job "
        "('srun srobust doctor' on each of its nodes). It changes nothing and needs no special rights. "
        "What it cannot see is unknown, which is not bad.",
        epilog="Exit codes: 0 nothing bad, 1 something bad.",
        json=True,
    )
    parser.add_argument(
        "script", metavar="SCRIPT", nargs="?", type=Path, help="a batch script, as sbatch would get it"
    )
    parser.add_argument(
        "-j", "--jobid", metavar="JOBID", type=whole_number(1), help="a job (default: the one it runs in)"
    )
    parser.add_argument(
        "--state",
        metavar="SIZE",
        type=_size,
        help="size of what the ranks of one node save in each step (40G): will snapshots fit?",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also list what is good or unknown, and all sources"
    )
    add_config_options(parser)


def _size(text: str) -> int:
    from slurm_robust.slurm.values import parse_memory

    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _doctor(args: argparse.Namespace) -> int:
    from slurm_robust.config.jobfile import collect
    from slurm_robust.doctor.gather import Wanted
    from slurm_robust.doctor.main import main

    if args.script is not None and args.jobid is not None:
        raise UsageError("SCRIPT and --jobid exclude each other", fix="give one of them")
    config = collect(args.config, os.environ, settings_of(args)).build()
    wanted = Wanted(
        script=args.script,
        job_id=args.jobid,
        state_bytes=args.state,
        configured=args.config is not None or bool(args.settings),
    )
    return main(wanted, config, json=args.json, verbose=args.verbose)
