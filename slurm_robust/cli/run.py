"""``srobust run`` and ``srobust replay``: options, then the user's command, which is never interpreted."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_robust.cli.parsing import UsageError, add_config_options, settings_of
from slurm_robust.model.errors import ExitCode
from slurm_robust.model.job import CommandKind

if TYPE_CHECKING:
    from slurm_robust.cli.parsing import Commands, Parser
    from slurm_robust.config.job import JobConfig
    from slurm_robust.config.reader import Layers

# Of each option its key, and its value or None where it was not given.
OwnSettings = Mapping[str, tuple[str, object]]

# Options that are one key of the configuration each: key, type, placeholder, help.
OWN_OPTIONS: dict[str, tuple[str, type, str, str]] = {
    "--nodes": ("nodes", int, "N", "nodes that train (default: all of the allocation except the spares)"),
    "--spares": ("spares", int, "S", "nodes of the allocation that stand by (default: 0)"),
    "--nproc-per-node": (
        "nproc_per_node",
        int,
        "P",
        "workers per node (default: one per GPU, else --ntasks-per-node, else 1)",
    ),
    "--job-dir": (
        "job_dir",
        str,
        "DIR",
        "shared folder that holds the folders of jobs (default: srobust-jobs in the submit directory)",
    ),
    "--training": (
        "training",
        str,
        "NAME",
        "the training of which this job is a chapter: it goes on from the newest checkpoint of earlier jobs",
    ),
}
OTHER_VALUE_OPTIONS = ("--name", "--from", "--step", "--config", "--set")

USAGE = """srobust run [options] script.py [args ...]
       srobust run [options] -m package.module [args ...]
       srobust run [options] -- any-command [args ...]"""


def register(commands: Commands) -> None:
    """Add ``srobust run``."""
    parser = commands.add_parser(
        "run",
        help="run a training inside a Slurm job and keep it going",
        description="Run a training on the nodes of this Slurm job and keep it going. "
        "Options end at the script: everything after it belongs to the script.",
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
    parser.set_defaults(handler=_run)


def _source(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty, perhaps a variable that is not set")
    return text


def split_command(argv: list[str]) -> tuple[list[str], tuple[str, ...], bool]:
    """Part our options from the user's command: (options, command, whether ``--`` stood before it).

    Done before argparse sees anything, because argparse gives ``--`` and options after a positional
    argument different meanings in different Python versions.
    """
    index = 0
    while index < len(argv) and argv[index].startswith("-"):
        if argv[index] == "--":
            return argv[:index], tuple(argv[index + 1 :]), True
        index += width(argv[index])
    return argv[:index], tuple(argv[index:]), False


def width(option: str) -> int:
    """How many words it takes, its value included."""
    return 2 if option in (*OWN_OPTIONS, *OTHER_VALUE_OPTIONS) else 1


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """The arguments of any command. Raises UsageError, also for those that ``parser`` does not know."""
    command: tuple[str, ...] = ()
    verbatim = False
    if argv[:1] in (["run"], ["replay"]):
        own, command, verbatim = split_command(argv[1:])
        argv = [argv[0], *own]
    given = argparse.Namespace(command=command, verbatim=verbatim)
    args, unknown = parser.parse_known_args(argv, given)
    if unknown:
        likely = difflib.get_close_matches(unknown[0].partition("=")[0], sorted(_options_of(parser, argv)), 1)
        fix = f"did you mean {likely[0]}?" if likely else f"see srobust {argv[0]} --help"
        raise UsageError(f"unknown arguments: {' '.join(unknown)}", fix=fix)
    return args


def _options_of(parser: argparse.ArgumentParser, argv: list[str]) -> set[str]:
    """The options of the command that ``argv`` names, as far as it names one."""
    for action in parser._actions:
        choices = action.choices if isinstance(action, argparse._SubParsersAction) else {}
        for word in argv:
            if word in choices:
                return _options_of(choices[word], argv[argv.index(word) + 1 :])
    return set(parser._option_string_actions)


def checked(args: argparse.Namespace) -> tuple[CommandKind, Layers[JobConfig]]:
    """How ``srobust run`` is to run the command, and what its options set. Raises UsageError."""
    kind = _kind_of(args, USAGE)
    if args.name and not all(c.isascii() and (c.isalnum() or c in "-_") for c in args.name):
        raise UsageError(f"--name {args.name!r} is not a folder name", fix="use letters, digits, '-' and '_'")
    own = {option: (key, getattr(args, key)) for option, (key, *_) in OWN_OPTIONS.items()}
    own["--observe"] = ("mode", "observe" if args.observe else None)
    return kind, _options(args, own)


def _run(args: argparse.Namespace) -> int:
    """Run it so that a job with an expedited requeue ends where the run ends for good."""
    from slurm_robust.controller.requeue import ending_for_good

    def run_once() -> int:
        from slurm_robust.run.command import run
        from slurm_robust.run.continuing import Wish

        kind, options = checked(args)
        config = _configured(args, kind, options)
        wish = Wish(
            training=config.training or "", source=args.source or "", step=args.step, fresh=args.fresh
        )
        return run(config, args.command, kind, args.name, wish)

    return ending_for_good(run_once)


def _options(args: argparse.Namespace, own: OwnSettings) -> Layers[JobConfig]:
    from slurm_robust.config.reader import Place

    options = settings_of(args)
    for option, (key, value) in own.items():
        if value is not None:
            options.add(key, value, Place(f"option {option}", ExitCode.USAGE))
    return options


def _configured(args: argparse.Namespace, kind: CommandKind, options: Layers[JobConfig]) -> JobConfig:
    """The configuration of a command that runs a training. Raises ConfigError.

    All that is wrong with it, with the options and with the user's command is reported at once.
    """
    from slurm_robust.config.errors import Problem
    from slurm_robust.config.jobfile import collect
    from slurm_robust.model.errors import PreflightError
    from slurm_robust.run.preflight import check_command

    layers = collect(args.config, os.environ, options)
    try:
        check_command(kind, args.command, Path.cwd())
    except PreflightError as error:
        layers.problems.append(Problem.of(error))
    return layers.build()


def _kind_of(args: argparse.Namespace, usage: str) -> CommandKind:
    """How the user's command is to be run. Raises UsageError, which shows ``usage`` where there is none."""
    if not args.command:
        raise UsageError("nothing to run", fix=f"usage: {usage}")
    if args.module and args.verbatim:
        raise UsageError("-m and -- exclude each other", fix="after -m comes a module; after -- any command")
    if args.verbatim:
        return CommandKind.EXEC
    return CommandKind.MODULE if args.module else CommandKind.SCRIPT


# -- replay ----------------------------------------------------------------------------------------

REPLAY_USAGE = """srobust replay [options] script.py [args ...]
       srobust replay [options] -m package.module [args ...]"""


def register_replay(commands: Commands) -> None:
    """Add ``srobust replay``."""
    parser = commands.add_parser(
        "replay",
        help="find a node that computes wrongly by training in small groups of nodes",
        description="Run a few steps of a training in small groups of the nodes of this Slurm job, in two "
        "phases, and name the node that the groups with other results have in common. docs/replay.md says "
        "what the script must do. Options end at the script: everything after it belongs to the script.",
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
    parser.set_defaults(handler=_replay)


def _replay(args: argparse.Namespace) -> int:
    from slurm_robust.run.command import replay

    kind = _kind_of(args, REPLAY_USAGE)
    if kind is CommandKind.EXEC:
        raise UsageError("only a Python script or module can be replayed", fix="leave out the --")
    options = _options(args, {"--nproc-per-node": ("nproc_per_node", args.nproc_per_node)})
    return replay(_configured(args, kind, options), args.command, kind, json=args.json)
