"""The options of ``srobust run``, which ``srobust doctor`` reads in batch scripts, too."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from slurm_robust.cli.commands import HELP
from slurm_robust.cli.parsing import Commands, Handler, UsageError, add_command
from slurm_robust.cli.settings import add_config_options, settings_of
from slurm_robust.cli.words import OWN_OPTIONS
from slurm_robust.config.job import JobConfig
from slurm_robust.config.reader import Layers, ValueOrigin
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind

# The key of each option, and its value or None if it was not given.
OwnSettings = Mapping[str, tuple[str, object]]

USAGE = """srobust run [options] script.py [args ...]
       srobust run [options] -m package.module [args ...]
       srobust run [options] -- any-command [args ...]"""


def add_run(commands: Commands, handler: Handler | None = None) -> argparse.ArgumentParser:
    """Add ``srobust run``, carried out by ``handler``."""
    parser = add_command(
        commands,
        "run",
        handler,
        HELP["run"],
        more="Options end at the script: everything after it belongs to the script.",
        examples=(
            ("srobust run train.py --lr 1e-4", "a script with its arguments, on all nodes of the job"),
            ("srobust run --nodes 16 --spares 2 -m project.train", "a module on 16 nodes; 2 more stand by"),
            (
                "srobust run --training gpt-7b -- python -u train.py",
                "any command; the job is a chapter of a training",
            ),
        ),
        usage=USAGE,
    )
    for option, (key, kind, metavar, text) in OWN_OPTIONS.items():
        parser.add_argument(option, dest=key, type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--name",
        default="",
        help="tells several runs in one job apart; part of the folder's name",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=_source,
        metavar="JOB|FOLDER|NAME|latest",
        help="go on from an earlier job's newest checkpoint, or a training's; latest: of the same script",
    )
    parser.add_argument("--step", type=int, metavar="N", help="go on from the checkpoint of step N")
    parser.add_argument(
        "--fresh", action="store_true", help="begin the training anew, and move what it has aside"
    )
    parser.add_argument(
        "--observe", action="store_true", help="only watch, and log what would be done (mode: observe)"
    )
    parser.add_argument("-m", action="store_true", dest="module", help="the command is a Python module")
    add_config_options(parser)
    return parser


def _source(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty, perhaps a variable that is not set")
    return text


def checked(args: argparse.Namespace) -> tuple[CommandKind, Layers[JobConfig]]:
    """Return how ``srobust run`` is to run the command, and what its options set. Raises UsageError."""
    kind = kind_of(args, USAGE)
    if args.name and not all(c.isascii() and (c.isalnum() or c in "-_") for c in args.name):
        raise UsageError(f"--name {args.name!r} is not a folder name", fix="use letters, digits, '-' and '_'")
    own = {option: (key, getattr(args, key)) for option, (key, *_) in OWN_OPTIONS.items()}
    own["--observe"] = ("mode", "observe" if args.observe else None)
    return kind, options_of(args, own)


def options_of(args: argparse.Namespace, own: OwnSettings) -> Layers[JobConfig]:
    """Return the settings of ``--set``, overruled by options that are one key each."""
    options = settings_of(args)
    for option, (key, value) in own.items():
        if value is not None:
            options.add(key, value, ValueOrigin(f"option {option}", ExitCode.USAGE))
    return options


def kind_of(args: argparse.Namespace, usage: str) -> CommandKind:
    """Return how to run the user's command. Raises UsageError, which shows ``usage`` if there is none."""
    if not args.command:
        raise UsageError("nothing to run", fix=f"usage: {usage}")
    if args.module and args.verbatim:
        raise UsageError("-m and -- exclude each other", fix="after -m comes a module; after -- any command")
    if args.verbatim:
        return CommandKind.EXEC
    return CommandKind.MODULE if args.module else CommandKind.SCRIPT
