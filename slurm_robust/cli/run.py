"""``srobust run``: options, then the user's command, which is never interpreted."""

from __future__ import annotations

import argparse
import os
from functools import partial
from pathlib import Path

import msgspec

from slurm_robust.cli.parsing import Commands
from slurm_robust.cli.training_command import add_run, checked
from slurm_robust.config.errors import Problem
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import collect
from slurm_robust.config.reader import Layers
from slurm_robust.controller.requeue import ending_for_good
from slurm_robust.model.errors import PreflightError
from slurm_robust.model.job import CommandKind
from slurm_robust.run.preflight import check_command


def register(commands: Commands) -> None:
    """Add the command."""
    add_run(commands, _run)


def _run(args: argparse.Namespace) -> int:
    """Run it so that a job with an expedited requeue ends when the run ends for good."""
    return ending_for_good(partial(_run_once, args))


def _run_once(args: argparse.Namespace) -> int:
    # Also a package that cannot be imported ends the run for good.
    from slurm_robust.run import command, continuing

    kind, options = checked(args)
    config = configured(args, kind, options)
    wish = continuing.ContinueOptions(
        training=config.training or "", source=args.source or "", step=args.step, fresh=args.fresh
    )
    return command.run(config, args.command, kind, args.name, wish)


def configured(args: argparse.Namespace, kind: CommandKind, options: Layers[JobConfig]) -> JobConfig:
    """Return the configuration of a command that runs a training. Raises ConfigError.

    All that is wrong with it, with the options and with the user's command is reported together.
    """
    layers = collect(args.config, os.environ, options)
    # Whether an image has it, its agents say.
    is_inside = kind is not CommandKind.SCRIPT or os.path.isabs(args.command[0])
    if not (is_inside and msgspec.convert(layers.values, JobConfig).agents.is_contained):
        try:
            check_command(kind, args.command, Path.cwd())
        except PreflightError as error:
            layers.problems.append(Problem.of(error))
    return layers.build()
