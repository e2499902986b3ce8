"""The batch script: its text, and the ``srobust run`` in it. Nothing is expanded as a shell would."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.util import shell
from slurm_robust.util.shell import Command

# What takes the place of itself (execve) or passes every signal on, with the options that take a word.
_PASSES = {
    "env": "uSC",
    "nice": "n",
    "nohup": "",
    "ionice": "cn",
    "taskset": "c",
    "numactl": "NmCpi",
    "chrt": "",
    "stdbuf": "ioe",
    "tini": "",
    "dumb-init": "",
}
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*")
_KEYWORDS = frozenset(
    {"then", "do", "else", "{", "!", "if", "elif", "while", "until", "time", "command", "builtin"}
)
_USR1 = re.compile(r"(?:SIG)?USR1|10", re.IGNORECASE)


class CannotRead(SrobustError):
    """The batch script cannot be read."""

    exit_code = ExitCode.NO_INPUT
    fix = "give the script that sbatch would get"


class RobustRun(Record):
    """``srobust run`` in a batch script; words with their quotes, as the script has them."""

    words: tuple[str, ...]
    """What follows it."""

    variables: tuple[str, ...] = ()
    """``SROBUST_CONFIG_<KEY>=VALUE`` that the script exports before it."""

    cd: tuple[str, ...] | None = ()
    """The folders that the script changes to before it, one after the other; None if it may be others."""

    more: int = 0
    """How many others follow."""

    hears: bool | None = True
    """USR1 of Slurm reaches it: it takes the place of the shell (``exec``), or a ``trap`` of the shell passes
    the signal on to it. None if only the shell knows."""


def read(path: Path) -> str:
    """Read the script. Raises :class:`CannotRead`."""
    try:
        if not path.is_file():
            raise CannotRead(f"{path}: {'a folder' if path.is_dir() else 'no such file'}")
        text = path.read_bytes().decode(errors="replace")
    except OSError as error:
        raise CannotRead(f"{path}: {error.strerror}") from error
    if "\r\n" in text:
        raise CannotRead(
            f"{path} has DOS line breaks (\\r\\n): sbatch refuses it",
            fix="convert it with dos2unix or sed -i 's/\\r$//'",
        )
    if not text.startswith("#!"):
        raise CannotRead(f"{path} is no batch script: sbatch refuses one that does not begin with #!")
    return text


def run_of(script: str) -> RobustRun | None:
    """Return the first ``srobust run``; None for a script without one."""
    commands = shell.parse(script).commands
    runs: list[tuple[int, int]] = []
    variables: list[str] = []
    for index, command in enumerate(commands):
        start = start_of(command.words)
        if not runs and (start is not None or "export" in command.words):
            variables += [word for word in command.words[:start] if re.match(r"SROBUST_CONFIG_\w+=", word)]
        if start is not None:
            runs.append((index, start))
    if not runs:
        return None
    index, start = runs[0]
    return RobustRun(
        words=commands[index].words[start:],
        variables=tuple(variables),
        cd=_cd(commands[:index]),
        more=len(runs) - 1,
        hears=_hears(commands, index, start),
    )


def _cd(commands: Sequence[Command]) -> tuple[str, ...] | None:
    changes = [command for command in commands if {"cd", "pushd", "popd"} & set(command.words)]
    if any(command.words[0] != "cd" or len(command.words) != 2 or command.depth for command in changes):
        return None
    return tuple(command.words[1] for command in changes)


def _hears(commands: Sequence[Command], index: int, start: int) -> bool | None:
    """Return whether ``srobust run`` gets Slurm's USR1 to the batch script: only known ways count."""
    command = commands[index]
    piped = command.end in ("|", "|&") or (index > 0 and commands[index - 1].end in ("|", "|&"))
    words = [*command.words[:start]]
    while words and (words[0] in _KEYWORDS - {"time"} or re.match(r"\w+=", words[0])):
        words.pop(0)
    if words[:1] == ["exec"]:
        if piped or command.end == "&" or command.depth:
            return False
        return _passes(_behind_exec(words[1:]))
    if command.end != "&" or piped or command.depth:
        return False
    through = _passes(words)
    passed = _passed_on(commands, index)
    return through and passed if through is not None else None


def _behind_exec(words: Sequence[str]) -> Sequence[str]:
    """Return the program after ``exec`` and its options: ``exec -cl -a NAME program``."""
    while words and (option := re.fullmatch(r"-(?:-|[cl]+|[cl]*(a))", words[0])):
        words = words[2:] if option[1] else words[1:]
    return words


def _passes(words: Sequence[str]) -> bool | None:
    """Return whether the words before ``run`` start ``srobust`` without a process of their own in between."""
    left = [*words]
    while left:
        program = unquoted(left.pop(0)).rpartition("/")[2]
        if program == "srobust" or (_PYTHON.fullmatch(program) and "slurm_robust.cli" in left):
            return True
        if program not in _PASSES:
            return None if expands(program) else False
        while left and (left[0].startswith("-") or re.match(r"\w+=|[\d,-]+$|0x", left[0])):
            option = left.pop(0)
            if left and re.fullmatch(rf"-[{_PASSES[program]}]", option) and _PASSES[program]:
                left.pop(0)
    return False


def _passed_on(commands: Sequence[Command], index: int) -> bool | None:
    """Return whether a ``trap`` passes USR1 on to what was started in the background, and waits for it."""
    traps = [
        words
        for command in commands
        if (words := tuple(word for word in command.words if word != "--"))[:1] == ("trap",)
        and any(_USR1.fullmatch(unquoted(word)) for word in words[2:])
    ]
    after = commands[index + 1 :]
    if not traps or not any("wait" in c.words[:4] for c in after):
        return False
    for kill in commands_of(commands, unquoted(traps[-1][1])):
        target = _killed(kill.words)
        if target is None:
            continue
        if expands(target.replace("$", "")):
            return None
        name = re.fullmatch(r"\$\{?(\w+|!)\}?", target)
        if name is None:
            return None
        if name[1] == "!":
            return not any(c.end == "&" for c in after)
        return name[1] in _pid_variables(after)
    return False


def commands_of(commands: Sequence[Command], action: str) -> tuple[Command, ...]:
    """Return the commands of a trap's action: those of a function of the script that it names, or its own."""
    named = re.fullmatch(r"\w+", action)
    return (*(_of_function(commands, action) if named else ()), *shell.parse(action).commands)


def _of_function(commands: Sequence[Command], name: str) -> Iterator[Command]:
    """Yield the commands of a function of the script."""
    inside = False
    for before, command in zip((Command(()), *commands), commands, strict=False):
        inside = (
            inside
            or (name in before.words[:2] and before.end == "(")
            or command.words[:2] == ("function", name)
        )
        if inside:
            yield command
            if "}" in command.words:
                return


def _killed(words: Sequence[str]) -> str | None:
    """Return whom a ``kill -USR1`` is sent to; None for another command."""
    words = [unquoted(word) for word in words if word not in _KEYWORDS]
    if words[:1] != ["kill"] or len(words) < 3:
        return None
    if words[1] in ("-s", "-n"):
        signal, left = words[2], words[3:]
    else:
        signal, left = words[1].removeprefix("-"), words[2:]
    left = [word for word in left if word != "--"]
    return left[0] if left and _USR1.fullmatch(signal) else None


def _pid_variables(after: Sequence[Command]) -> frozenset[str]:
    """Return the variables that hold the process id of the last command in the background."""
    found: set[str] = set()
    for command in after:
        found |= {name for name, value in shell.assigned(command.words) if unquoted(value) in ("$!", "${!}")}
        if command.end == "&":
            break
    return frozenset(found)


def expands(word: str) -> bool:
    """Return whether only the shell knows what the word will be. (Single quotes would keep it as it is.)"""
    return "$" in word or "`" in word


def unquoted(word: str) -> str:
    """Return a word as the command gets it."""
    try:
        return "".join(shlex.split(word))
    except ValueError:
        return word


def start_of(words: Sequence[str]) -> int | None:
    """Return the index of the first word after ``srobust run`` in a command; None for another one."""
    for index in range(1, len(words)):
        program = words[index - 1].strip("\"'").rpartition("/")[2]
        module = tuple(words[max(0, index - 2) : index]) == ("-m", "slurm_robust.cli")
        if words[index] == "run" and (program == "srobust" or module):
            return index + 1
    return None
