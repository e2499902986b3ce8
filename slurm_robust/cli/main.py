"""``srobust``: finds the command, and turns every error into one message and an exit code."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from typing import Any, TextIO, cast

from slurm_robust import __version__
from slurm_robust.cli.commands import GROUPS, HELP
from slurm_robust.cli.parsing import Commands, Parser, add_command
from slurm_robust.cli.words import parse
from slurm_robust.home import HOME, is_packaged
from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.libraries import pip_line
from slurm_robust.util.checkout import in_full
from slurm_robust.util.text import folded, message, visible

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What is left to the last line of defence of these is standard output's: commands handle their own files."""

_OF_TRAININGS = ("run", "replay", "diagnose")
"""What only the environment of a training can carry out: it has PyTorch."""


class NodeSide(SrobustError):
    """This program is of the node's package, and the command is not for it."""

    fix = (
        "activate the environment of your training, so that 'command -v srobust' names the one in it "
        f"({pip_line('torch')})"
    )

    def __init__(self, command: str) -> None:
        super().__init__(f"this srobust is the node's side, without PyTorch: it cannot {command}")


class _AllCommands(Parser):
    """The parser of the whole command line, whose help lists the commands in their groups."""

    def format_help(self) -> str:
        """Return one line for each command."""
        width = max(map(len, HELP))
        lines = ["usage: srobust COMMAND ...", "", self.description or ""]
        for title, commands in GROUPS.items():
            lines += ["", f"{title}:", *(f"  {name:<{width}}  {text}" for name, text in commands.items())]
        return "\n".join([*lines, "", self.epilog or "", ""])


def make_parser(only: str | None = None) -> Parser:
    """Return the parser of the whole command line; with ``only`` the other commands are mere names."""
    parser = _AllCommands(
        prog="srobust",
        description="Keeps long PyTorch jobs on plain Slurm productive:\ndetect, isolate, replace, resume.",
        epilog="'srobust COMMAND --help' shows its options, with examples.\n"
        "SROBUST_DEBUG=1 shows where an error comes from.",
    )
    parser.add_argument("--version", action="version", version=f"srobust {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name, text in HELP.items():
        if only not in (None, name):
            commands.add_parser(name, help=text)
        elif name == "help":
            _add_help(commands)
        elif name == "version":
            examples = (
                ("srobust version", "print the version, for a bug report"),
                ("srobust --version", "the same"),
            )
            add_command(commands, name, _version, text, examples=examples, json=True)
        else:
            import_module(f"slurm_robust.cli.{name}").register(commands)
    return parser


def _add_help(commands: Commands) -> None:
    """Add ``srobust help``, for which :func:`main` takes ``--help``."""
    examples = (
        ("srobust help", "all commands"),
        ("srobust help checkpoint ls", "the arguments and options of a command, with examples"),
    )
    parser = add_command(commands, "help", None, HELP["help"], examples=examples)
    parser.add_argument("words", metavar="COMMAND", nargs="*", help="a command (default: all of them)")


def _version(args: argparse.Namespace) -> int:
    if args.json:
        from slurm_robust.terminal.console import show

        show({"version": in_full(__version__)}, str, json=True)
    else:
        print(f"srobust {in_full(__version__)}")
    return ExitCode.SUCCESS


class VisibleStream:
    """A stream that writes :func:`visible` text only, and what its encoding lacks as ``\\u2026``.

    With ``folds`` it breaks lines for which a terminal is too narrow, between words: messages, no documents.

    rich has to control the terminal: it finds the stream behind this one by its own attribute and writes
    there. :class:`~slurm_robust.terminal.console.Screen` cleans what rich is given.
    """

    def __init__(self, stream: TextIO, *, folds: bool = False) -> None:
        self.rich_proxied_file = stream
        self._folds = folds

    def write(self, text: str) -> int:
        """Write ``text`` cleaned. Raises ``OSError``."""
        encoding = self.rich_proxied_file.encoding or "utf-8"
        shown = visible(text).encode(encoding, "backslashreplace").decode(encoding)
        if self._folds and (columns := _columns(self.rich_proxied_file)):
            shown = "\n".join(_folded(line, columns) for line in shown.split("\n"))
        self.rich_proxied_file.write(shown)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write them one after the other. Raises ``OSError``."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def _columns(stream: TextIO) -> int:
    """Return the width of a terminal, 0 if ``stream`` is no terminal."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def _folded(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    end = line[len(line.rstrip()) :]  # a question ends with a blank
    return "\n".join(folded(line, columns, indent)) + end


@contextmanager
def visible_only() -> Iterator[None]:
    """Let standard output and standard error take visible text only.

    All output passes here, so that text of jobs, logs, Slurm and users controls no terminal.
    """
    out, err = cast(TextIO, VisibleStream(sys.stdout)), cast(TextIO, VisibleStream(sys.stderr, folds=True))
    with redirect_stdout(out), redirect_stderr(err):
        yield


@visible_only()
def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    try:
        words = list(sys.argv[1:] if argv is None else argv)
        if words[:2] == ["completion", "--words"]:
            return _complete(words[2:])
        if words[:1] == ["help"] and not {"-h", "--help"} & {*words}:
            words = [*words[1:], "--help"]
        if words == ["--version"]:
            words = ["version"]
        if words[:1] and words[0] in _OF_TRAININGS and is_packaged() and not {"-h", "--help"} & {*words}:
            raise NodeSide(words[0])
        args = parse(make_parser(next((word for word in words if not word.startswith("-")), "")), words)
        if getattr(args, "or_default_job", False) and args.job is None and not getattr(args, "all", False):
            args.job = _default_job(args)
        code: int = args.handler(args)
        sys.stdout.flush()
        return code
    except SrobustError as error:
        if os.environ.get("SROBUST_DEBUG") == "1":
            traceback.print_exc()
        print(f"srobust: error: {message(error.in_full())}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("srobust: interrupted", file=sys.stderr)
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader of the output has gone ("srobust status 7 | head"). Nothing more can reach it, and the
        # interpreter must not try when it flushes at its end.
        _drop_output()
        return 128 + signal.SIGPIPE  # as a shell reports it; never 0, since the answer was lost
    except OSError as error:
        if isinstance(error, FileNotFoundError) and _is_lost():
            print("srobust: error: the folder in which you are has been removed", file=sys.stderr)
            print("  fix: cd to another one, and give the command again", file=sys.stderr)
            return ExitCode.NO_INPUT
        if error.errno not in _FULL:
            return _internal(error)
        _drop_output()
        print(f"srobust: error: the output cannot be written: {error.strerror}", file=sys.stderr)
        print("  fix: free space where it goes, or send it elsewhere", file=sys.stderr)
        return ExitCode.JOB_DIR
    except Exception as error:  # noqa: BLE001 - last line of defence: a bug must still end with its own code
        return _internal(error)


def _complete(words: Sequence[str]) -> int:
    """Answer the function of a shell. What cannot be completed is no error."""
    from slurm_robust.cli.candidates import candidates, job_names

    for word in candidates(words, make_parser, job_names):
        print(word)
    return ExitCode.SUCCESS


def _default_job(args: argparse.Namespace) -> str:
    """Return the job that is meant where none is named, and say which it is. Raises ``NoSuchJob``."""
    from slurm_robust.trainings.own import named_default, own_jobs

    return named_default(own_jobs(args.job_dir, os.environ), args.job_dir, or_all=hasattr(args, "all"))


def _drop_output() -> None:
    """Drop what standard output has not taken; the interpreter must not try again at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_lost() -> bool:
    """Return whether this process has no working directory any more."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _internal(error: Exception) -> int:
    traceback.print_exc()
    print(
        f"srobust: internal error: {error!r}; please report it with the lines above: {HOME}/issues",
        file=sys.stderr,
    )
    return ExitCode.INTERNAL
