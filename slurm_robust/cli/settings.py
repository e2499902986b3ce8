"""The options of commands that have a job's configuration."""

from __future__ import annotations

import argparse
from pathlib import Path

from slurm_robust.cli.parsing import UsageError
from slurm_robust.config.errors import Problem
from slurm_robust.config.job import JobConfig
from slurm_robust.config.jobfile import add_text
from slurm_robust.config.reader import Layers, ValueOrigin
from slurm_robust.model.errors import ExitCode
from slurm_robust.util.text import without_urls


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--config`` and ``--set``, the same for every command that has a configuration."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="YAML file with the job's configuration")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="any key of the configuration, e.g. timings.node_dead_s=10; may be repeated",
    )


def settings_of(args: argparse.Namespace) -> Layers[JobConfig]:
    """Return the values of ``--set`` options; one without a value is among the problems."""
    layers = Layers(JobConfig)
    for text in args.settings:
        key, equals, value = text.partition("=")
        if equals:
            add_text(layers, key, value, ValueOrigin(f"option --set {without_urls(text)}", ExitCode.USAGE))
        else:
            wrong = UsageError(f"--set {text}: no value", fix=f"write --set {key}=VALUE")
            layers.problems.append(Problem.of(wrong))
    return layers
