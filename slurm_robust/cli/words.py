"""The words of the command line: which are ours, and which are the user's command."""

from __future__ import annotations

import argparse
import itertools

from slurm_robust.cli.parsing import Parser, UsageError, subcommands
from slurm_robust.util.text import did_you_mean, near

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
    """Return how many words it takes, its value included."""
    return 2 if option in (*OWN_OPTIONS, *OTHER_VALUE_OPTIONS) else 1


def split_arguments(argv: list[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """Part the words of ``srobust update`` from those behind ``--``, the script's; None without ``--``.

    The value of ``--args`` is whatever follows it, also if it begins with ``-``.
    """
    own: list[str] = []
    rest = iter(argv)
    for word in rest:
        if word == "--":
            return own, tuple(rest)
        value = next(rest, None) if word == "--args" else None
        own.append(word if value is None else f"--args={value}")
    return own, None


def split_submission(parser: argparse.ArgumentParser, argv: list[str]) -> tuple[list[str], tuple[str, ...]]:
    """Part the words of a command that takes a batch script from those that sbatch would pass to that.

    These begin, behind the script, with the first word that is no option of the command.
    """
    scripts, index = 0, 0
    while index < len(argv):
        name = argv[index].partition("=")[0]
        option = parser._option_string_actions.get(argv[index])
        is_own = name in parser._option_string_actions
        if scripts and not is_own:
            return argv[:index], tuple(argv[index:])
        scripts += not name.startswith("-")
        index += 2 if option is not None and option.nargs is None else 1
    return argv, ()


def parse(parser: Parser, argv: list[str]) -> argparse.Namespace:
    """Return the arguments of any command. Raises UsageError, also for those unknown to ``parser``."""
    command: tuple[str, ...] = ()
    words: tuple[str, ...] | None = None
    verbatim = False
    if argv[:1] in (["run"], ["replay"]):
        own, command, verbatim = split_command(argv[1:])
        argv = [argv[0], *own]
    elif argv[:1] == ["update"]:
        argv, words = split_arguments(argv)
    elif argv[:1] == ["doctor"]:
        own, command = split_submission(subcommands(parser)["doctor"], argv[1:])
        argv = ["doctor", *own]
    argv = names_first(parser, argv)
    _check_options(parser, argv)
    given = argparse.Namespace(command=command, verbatim=verbatim, words=words)
    args, unknown = parser.parse_known_args(argv, given)
    if unknown:
        prog = _command_of(parser, argv)[0].prog
        raise UsageError(f"{prog} takes no {' '.join(map(repr, unknown))}", fix=f"see {prog} --help")
    return args


def _check_options(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """Raise UsageError for an option that the command lacks, before argparse misses what comes behind it."""
    command, words = _command_of(parser, argv)
    if any(action.nargs == argparse.REMAINDER for action in command._actions):
        return
    for word in itertools.takewhile(lambda word: word != "--", words):
        option = word.partition("=")[0]
        if option.startswith("--") and option not in command._option_string_actions:
            known = [name.removeprefix("--") for name in command._option_string_actions]
            likely = [f"--{name}" for name in near(option.removeprefix("--"), known)]
            fix = did_you_mean(likely) or f"see {command.prog} --help"
            raise UsageError(f"{command.prog} has no option {option}", fix=fix)


def _command_of(
    parser: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of the command that ``argv`` names, as far as it names one, and the other words."""
    inner = subcommands(parser)
    index = next((index for index, word in enumerate(argv) if word in inner), None)
    return (parser, argv) if index is None else _command_of(inner[argv[index]], argv[index + 1 :])


def names_first(parser: argparse.ArgumentParser, argv: list[str]) -> list[str]:
    """Put names before options: argparse finds B of ``diff JOB A --stat B`` only there, as it may lack."""
    command = subcommands(parser).get(argv[0]) if argv else None
    if command is None or "--" in argv:
        return argv
    names = [action for action in command._actions if not action.option_strings]
    if len(names) < 2 or all(action.nargs != "?" for action in names):
        return argv
    first: list[str] = []
    last: list[str] = []
    rest = iter(argv[1:])
    for word in rest:
        if not word.startswith("-"):
            first.append(word)
            continue
        last.append(word)
        action = command._option_string_actions.get(word)
        if action is not None and action.nargs is None:
            last += itertools.islice(rest, 1)  # its value
    return [argv[0], *first, *last]
