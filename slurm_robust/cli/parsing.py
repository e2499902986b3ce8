"""The parser with its error, and the arguments that several commands take."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.slurm.values import parse_duration, parse_memory
from slurm_robust.util.hostlist import InvalidHostlist, expand
from slurm_robust.util.text import did_you_mean, near

Commands: TypeAlias = "argparse._SubParsersAction[Any]"
"""What add_subparsers() returns: it has only a private name, and is generic only for type checkers."""

Examples: TypeAlias = tuple[tuple[str, str], ...]
"""Command lines as they are typed, each with what it does."""

_MAX_NUMBER = 1e9
"""No option takes more; dates do not reach further."""

_MAX_LISTED = 6
"""No more choices are listed in an error."""

_MAX_SIZE = 2**60  # bytes
_MIN_BARE_SIZE = 2**30
"""A smaller size without a unit is a mistake: who writes 2 means 2T."""


class UsageError(SrobustError):
    """The command line makes no sense."""

    exit_code = ExitCode.USAGE


class Parser(argparse.ArgumentParser):
    """argparse, but wrong usage raises :class:`UsageError` (argparse exits with 2).

    Options are never abbreviated: an option that is added later must not change what a script says.
    """

    def __init__(self, *args: Any, examples: Examples = (), **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)
        self.examples = examples
        # -7e9 and -2T are values, too, which the option refuses in its own words.
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def format_help(self) -> str:
        """Return argparse's help, and the examples below."""
        lines = [f"  {command}\n      {text}\n" for command, text in self.examples]
        return "".join([super().format_help(), *(["\nexamples:\n"] if lines else []), *lines])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Raise UsageError for a word that is no choice: with those near to it, never with a long list."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        name = action.option_strings[-1] if action.option_strings else str(action.metavar or action.dest)
        text = f"no {name.lower()} {value!r}" if not action.option_strings else f"{name} takes no {value!r}"
        listed = f"one of {', '.join(choices)}" if len(choices) <= _MAX_LISTED else f"see {self.prog} --help"
        raise UsageError(text, fix=did_you_mean(near(str(value), choices)) or listed)

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(message, fix=f"see {self.prog} --help")


def number(least: float = 0, *, above: bool = False, most: float = _MAX_NUMBER) -> Callable[[str], float]:
    """Return the type of an option for a number from ``least`` or above it, to ``most``."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if most < value < math.inf:
            raise too_large(text, f"{most:,.0f} at most")
        if not (value > least if above else value >= least) or value == math.inf:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number {'above' if above else 'from'} {least:g}"
            )
        return value

    return parse


def whole_number(least: int = 0) -> Callable[[str], int]:
    """Return the type of an option that takes an integer from ``least``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and least <= int(text[:20])):
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least}")
        if int(text[:20]) > _MAX_NUMBER:
            raise too_large(text, f"{_MAX_NUMBER:,.0f} at most")
        return int(text)

    return parse


_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def span(text: str) -> float:
    """Return the type of an option that takes a time span in seconds: ``6h``, ``90m``, or as Slurm writes it
    (``1-12:00:00``, ``1-12``, ``02:00:00``). A number alone is of seconds.
    """
    plain = text.strip().lower()
    if match := re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw]?)", plain, re.ASCII):
        seconds = float(match[1]) * _UNITS_S[match[2] or "s"]
    elif match := re.fullmatch(r"([0-9]{1,6})-([0-9]{1,2})(:[0-9]{1,2})?(:[0-9]{1,2})?", plain, re.ASCII):
        minutes, rest = ((part or ":0")[1:] for part in (match[3], match[4]))
        seconds = ((int(match[1]) * 24 + int(match[2])) * 60 + int(minutes)) * 60 + int(rest)
    else:
        seconds = parse_duration(plain) or 0.0
    if not 0 < seconds <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is no time span such as 6h, 90m, 1-12:00:00 or 3600")
    return seconds


def memory_size(text: str) -> int:
    """Return the type of an option for a size of memory in bytes, given in Slurm's units."""
    try:
        size = parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if size <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 40G")
    if size >= _MAX_SIZE:
        raise too_large(text, "less than 1048576T")
    if size < _MIN_BARE_SIZE and text.strip()[-1].isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} without a unit is MiB, as in Slurm: give the unit: 2T, 960G, 500M"
        )
    return size


def too_large(text: str, limit: str) -> argparse.ArgumentTypeError:
    """Return the error of an option whose value, ``text``, is beyond ``limit``."""
    return argparse.ArgumentTypeError(f"{text!r} is too large: {limit}")


def hostlist(text: str) -> tuple[str, ...]:
    """Return the type of an argument that names nodes. Raises UsageError."""
    try:
        if names := expand(text):
            return names
        raise InvalidHostlist(f"{text!r} names no node")
    except InvalidHostlist as error:
        raise UsageError(str(error), fix="name nodes as Slurm does, for example gpu[001-004,007]") from error


Handler = Callable[[argparse.Namespace], int]
"""Carries out a command; returns the exit code."""


def add_command(
    commands: Commands,
    name: str,
    handler: Handler | None,
    text: str,
    *,
    examples: Examples,
    more: str = "",
    epilog: str | None = None,
    usage: str | None = None,
    of_job: bool = False,
    or_default_job: bool = False,
    json: bool = False,
) -> argparse.ArgumentParser:
    """Add a command whose help is ``text``, with ``more`` in its own help, and ``examples`` at its end.

    ``of_job`` gives it the argument JOB, which may be left out with ``or_default_job`` (of commands that
    change nothing only): ``srobust`` finds the job that is meant. ``json`` gives it the option ``--json``.
    A command without ``handler`` is only parsed.
    """
    description = " ".join(filter(None, (f"{text[0].upper()}{text[1:]}.", more)))
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=description, epilog=epilog, usage=usage, examples=examples
    )
    if of_job or or_default_job:
        add_job(parser, or_default=or_default_job)
        parser.set_defaults(or_default_job=or_default_job)
    if json:
        parser.add_argument("--json", action="store_true", help="print everything as JSON")
    parser.set_defaults(handler=handler)
    return parser


def add_group(commands: Commands, name: str, text: str, *, member: str = "command") -> Commands:
    """Add a command that consists of the commands that are added to what this returns.

    Help calls them ``member``; the one that was given is in the attribute ``<member>_name``.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}."
    )
    return parser.add_subparsers(
        title=f"{member}s", dest=f"{member}_name", metavar=member.upper(), required=True
    )


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the commands of a group by their names; none of a command."""
    groups = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return {name: child for group in groups for name, child in group.choices.items()}


def add_job(parser: argparse.ArgumentParser, *, optional: bool = False, or_default: bool = False) -> None:
    """Add the argument JOB, the same for every command about one job; ``--job-dir`` belongs to it."""
    text = "Slurm's job id, an array's task as squeue shows it (38_1), the job's folder, or a training's name"
    text += " (default: the newest of yours that has not ended, else the newest here)" if or_default else ""
    parser.add_argument("job", metavar="JOB", help=text, nargs="?" if optional or or_default else None)
    add_job_dir(parser)


def add_job_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--job-dir``."""
    parser.add_argument("--job-dir", metavar="DIR", help="the --job-dir given to 'srobust run', if any")


def add_node_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, the nodes' configuration."""
    parser.add_argument("--config", metavar="FILE", type=Path, help="the nodes' configuration")


def add_files(parser: argparse.ArgumentParser, option: str, text: str) -> None:
    """Add an option that takes a file and may be repeated."""
    parser.add_argument(
        option, metavar="FILE", type=Path, action="append", default=[], help=f"{text}; may be repeated"
    )


def add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the argument NODES, which may be left out."""
    parser.add_argument(
        "nodes", metavar="NODES", nargs="?", type=hostlist, default=(), help="only these nodes, as a hostlist"
    )
