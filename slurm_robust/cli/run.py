"""``srobust run``: options, then the user's command, which is never interpreted."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import UsageError, add_config_options, settings_of
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands
    from slurm_robust.config.job import JobConfig

# Of each option its key and value.
OwnSettings = Mapping[str, tuple[str, object]]

# Options that are one key of the configuration each: key, type, placeholder, help.
OWN_OPTIONS: dict[str, tuple[str, type, str, str]] = {
    "--nodes": ("nodes", int, "N", "nodes that train (default: all of the allocation but the spares)"),
    "--spares": ("spares", int, "S", "nodes of the allocation that stand by (default: 0)"),
    "--nproc-per-node": ("nproc_per_node", int, "P", "workers per node (default: its GPUs, 1 without)"),
    "--job-dir": (
        "job_dir",
        str,
        "DIR",
        "shared folder for the folders of jobs (default: srobust-jobs where the job was submitted)",
    ),
}
OTHER_VALUE_OPTIONS = ("--name", "--config", "--set")

USAGE = """srobust run [options] script.py [args ...]
       srobust run [options] -m package.module [args ...]
       srobust run [options] -- any-command [args ...]"""


def register(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "run",
        help="run a training inside a Slurm job, protected",
        description="Run a training on the nodes of this Slurm job and keep it going. "
        "Options end at the script: everything after it belongs to the script.",
        usage=USAGE,
    )
    for option, (key, kind, metavar, text) in OWN_OPTIONS.items():
        parser.add_argument(option, dest=key, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--name",
        default="",
        help="distinguishes several runs in one job; part of its folder's name",
    )
    parser.add_argument(
        "--observe", action="store_true", help="only watch, and log what would be done (mode: observe)"
    )
    parser.add_argument("-m", action="store_true", dest="module", help="the command is a Python module")
    add_config_options(parser)
    parser.set_defaults(handler=handle)


def split_command(argv: list[str]) -> tuple[list[str], tuple[str, ...], bool]:
    """Part our options from the user's command: (options, command, whether ``--`` stood before it).

    Done before argparse sees anything, because argparse gives ``--`` and options after a positional
    argument different meanings in different Python versions.
    """
    index = 0
    while index < len(argv) and argv[index].startswith("-"):
        if argv[index] == "--":
            return argv[:index], tuple(argv[index + 1 :]), True
        index += 2 if argv[index] in (*OWN_OPTIONS, *OTHER_VALUE_OPTIONS) else 1
    return argv[:index], tuple(argv[index:]), False


def handle(args: argparse.Namespace) -> int:
    """Run it so that a job with an expedited requeue ends where the run ends for good."""
    from slurm_robust.controller.requeue import ending_for_good

    return ending_for_good(lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    """Hand over to the controller."""
    from slurm_robust.controller.main import run

    kind = kind_of(args, USAGE)
    _check_name(args.name)
    return run(configured(args, kind, _own_settings(args)), args.command, kind, args.name)


def configured(args: argparse.Namespace, kind: CommandKind, own: OwnSettings) -> JobConfig:
    """The configuration of a command that runs a training. Raises ConfigError.

    All that is wrong with it, with the options and with the user's command is reported at once.
    """
    from slurm_robust.config.errors import Problem
    from slurm_robust.config.jobfile import collect
    from slurm_robust.config.reader import Place
    from slurm_robust.controller.preflight import PreflightError, check_command

    options = settings_of(args)
    for option, (key, value) in own.items():
        options.add(key, value, Place(f"option {option}", ExitCode.USAGE))
    layers = collect(args.config, os.environ, options)
    try:
        check_command(kind, args.command, Path.cwd())
    except PreflightError as error:
        layers.problems.append(Problem.of(error))
    return layers.build()


def kind_of(args: argparse.Namespace, usage: str) -> CommandKind:
    """How the user's command is to be run. Raises UsageError, which shows ``usage`` where there is none."""
    if not args.command:
        raise UsageError("nothing to run", fix=f"usage: {usage}")
    if args.module and args.verbatim:
        raise UsageError("-m and -- exclude each other", fix="after -m comes a module; after -- any command")
    if args.verbatim:
        return CommandKind.EXEC
    return CommandKind.MODULE if args.module else CommandKind.SCRIPT


def _check_name(name: str) -> None:
    if name and not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
        raise UsageError(f"--name {name!r} is no folder name", fix="use letters, digits, '-' and '_'")


def _own_settings(args: argparse.Namespace) -> OwnSettings:
    given = {option: (key, getattr(args, key)) for option, (key, *_) in OWN_OPTIONS.items()}
    given["--observe"] = ("mode", "observe" if args.observe else None)
    return {option: (key, value) for option, (key, value) in given.items() if value is not None}
