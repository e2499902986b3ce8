"""The batch script: its text, and the ``srobust run`` in it. Nothing is expanded as a shell would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record

# What a shell replaces as a whole: $(…) with two more levels of parentheses, ${…}, `…`.
_EXPANSION = r"\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{[^}]*\}|`[^`]*`"
# A comment, what ends a command, or a word. A quote that does not end is a letter of its word.
_TOKEN = re.compile(
    r"(?<!\S)#.*|[;&|()<>]+"
    rf"""|(?:{_EXPANSION}|"(?:{_EXPANSION}|\\.|[^"\\$`]|\$(?![({{]))*"|'[^']*'|\\.|[^\s;&|()<>])+"""
)


class CannotRead(SrobustError):
    """The batch script cannot be read."""

    exit_code = ExitCode.NO_INPUT
    fix = "give the script that sbatch would get"


class Run(Record):
    """``srobust run`` in a batch script; words with their quotes, as the script has them."""

    words: tuple[str, ...]
    """What follows it."""

    variables: tuple[str, ...] = ()
    """``SROBUST_CONFIG_<KEY>=VALUE`` that the script exports before it."""

    more: int = 0
    """How many others follow."""

    hears: bool = True
    """Signals of Slurm reach it: it takes the place of the shell (``exec``), or the script has a ``trap``."""


def read(path: Path) -> str:
    """Raises :class:`CannotRead`."""
    try:
        if not path.is_file():
            raise CannotRead(f"{path}: {'a folder' if path.is_dir() else 'no such file'}")
        text = path.read_text(errors="replace")
    except OSError as error:
        raise CannotRead(f"{path}: {error.strerror}") from error
    if not text.startswith("#!"):
        raise CannotRead(f"{path} is no batch script: sbatch refuses one that does not begin with #!")
    return text


def run_of(script: str) -> Run | None:
    """The first ``srobust run``; None for a script without one."""
    runs: list[tuple[str, ...]] = []
    variables: list[str] = []
    hears = False
    for words in _commands(script):
        start = _start(words)
        hears = hears or "trap" in words[:1] or (not runs and start is not None and "exec" in words[:start])
        if not runs and (start is not None or "export" in words):
            variables += [word for word in words[:start] if re.match(r"SROBUST_CONFIG_\w+=", word)]
        if start is not None:
            runs.append(tuple(words[start:]))
    if not runs:
        return None
    return Run(words=runs[0], variables=tuple(variables), more=len(runs) - 1, hears=hears)


def expands(word: str) -> bool:
    """Whether only the shell knows what the word will be. (In single quotes it would stay as it is.)"""
    return "$" in word or "`" in word


def unquoted(word: str) -> str:
    """A word as the command gets it."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word


def _start(words: Sequence[str]) -> int | None:
    """Where the words that follow ``srobust run`` begin."""
    for index in range(1, len(words)):
        program = words[index - 1].strip("\"'").rpartition("/")[2]
        module = words[max(0, index - 2) : index] == ["-m", "slurm_robust.cli"]
        if words[index] == "run" and (program == "srobust" or module):
            return index + 1
    return None


def _commands(script: str) -> Iterator[list[str]]:
    """The words of each simple command, line by line."""
    whole = re.sub(r"^\s*#.*", "", script, flags=re.MULTILINE).replace("\\\n", "")
    for line in whole.splitlines():
        words: list[str] = []
        for token in _TOKEN.findall(line):
            if token[0] in ";&|()<>":
                yield words
                words = []
            elif not token.startswith("#"):
                words.append(token)
        yield words
