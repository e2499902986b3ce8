"""What a batch script does around ``srobust run``: exit codes, traps, own steps, counts of restarts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from slurm_robust.doctor.launchers import is_local, starts_ranks
from slurm_robust.doctor.script import commands_of, expands, start_of, unquoted
from slurm_robust.model.record import Record
from slurm_robust.util import shell
from slurm_robust.util.shell import Command

_CLOSERS = frozenset({"fi", "done", "esac", "}", ")"})
_CONDITIONS = frozenset({"if", "elif", "while", "until", "!"})
_LOOPS = frozenset({"while", "until", "for"})
_PSEUDO = frozenset({"EXIT", "0", "ERR", "DEBUG", "RETURN"})
_COMPARES = frozenset({"-eq", "-ne", "-gt", "-ge", "-lt", "-le"})
_RESTARTS = re.compile(r"\$(?:SLURM_RESTART_COUNT\b|\{SLURM_RESTART_COUNT\})")


class ScriptLine(Record):
    """A line of a script."""

    number: int
    text: str


class Export(Record):
    """A variable that a script gives to what it runs."""

    line: int
    value: str | None
    """None if only the shell knows it."""


class ScriptShape(Record):
    """The shape of a script for a shell."""

    protected: bool = True
    """It calls ``srobust run``."""

    line: int | None = None
    """The number of its line; without one, of the line that starts the training."""

    training: tuple[str, ...] = ()
    """The command that starts the training in a script that calls none."""

    elsewhere: str = ""
    """Another script that it runs, which may call ``srobust run``, "" for none."""

    exports: dict[str, Export] = {}
    """What it exports before it, or sets for it alone."""

    local: ScriptLine | None = None
    """Where it changes to a folder of this node alone before it (``cd /tmp``)."""

    hides: str = ""
    """What behind ``srobust run`` decides on the script's exit code, "" for nothing."""

    code: int | None = None
    """The exit code with which the script ends whatever ``srobust run`` ends with."""

    traps: frozenset[str] = frozenset()
    """Signals for which it has a ``trap``, without ``SIG``."""

    waits_once: str = ""
    """The one ``wait`` for what it started in the background, which ends when a trap has run; "" for none."""

    replaced: bool = False
    """The shell waits for nothing: a program takes its place (``exec``), or there is none."""

    gres: str = ""
    """An ``srun`` of its own that asks for ``--gres=gpu``."""

    both: str = ""
    """The same with ``--gpus-per-node`` beside it."""

    open_quote: int | None = None
    """The line of a quote that does not end."""

    restarts: str = ""
    """How it reads SLURM_RESTART_COUNT although that may not be set, "" for not."""


def shape_of(script: str) -> ScriptShape | None:
    """Return the shape; None for a script that is for no shell."""
    if not re.search(r"sh\b", script.partition("\n")[0]):
        return None
    parsed = shell.parse(script)
    commands = parsed.commands
    runs = [index for index, command in enumerate(commands) if start_of(command.words) is not None]
    hides, code = _hides(commands, runs[0]) if runs else ("", None)
    steps = [words for command in commands if "srun" in (words := tuple(map(unquoted, command.words)))[:3]]
    gres = [words for words in steps if re.search(r"--gres[= ]\S*\bgpu\b", " ".join(words))]
    both = [words for words in gres if any(word.startswith("--gpus-per-node") for word in words)]
    traps = (
        unquoted(word).upper().removeprefix("SIG")
        for command in commands
        if command.words[:1] == ("trap",)
        for word in command.words[2:]
    )
    plain = [(tuple(map(unquoted, _plain(command))), command.line) for command in commands]
    training, line = next(((words, at) for words, at in plain if starts_ranks(words)), ((), None))
    before = commands[: runs[0] + 1] if runs else commands
    return ScriptShape(
        protected=bool(runs),
        line=commands[runs[0]].line if runs else line,
        training=() if runs else training,
        elsewhere=next((other for words, _ in plain if (other := _other_script(words))), ""),
        exports=_exports(before, is_run=bool(runs)),
        local=next((ScriptLine(number=c.line, text=" ".join(c.words)) for c in before if _leaves(c)), None),
        hides=hides,
        code=code,
        traps=frozenset(traps),
        waits_once=_waits_once(commands),
        replaced=not commands
        or any(_plain(command)[:1] == ("exec",) and len(_plain(command)) > 1 for command in commands),
        gres=_line(gres),
        both=_line(both),
        open_quote=parsed.open_quote,
        restarts=_restarts(commands),
    )


def _other_script(words: Sequence[str]) -> str:
    """Return the shell script that a command runs, "" for none."""
    scripts = [word for word in words[:3] if word.endswith(".sh")]
    return scripts[0] if scripts and words[0] not in ("source", ".") else ""


def _leaves(command: Command) -> bool:
    return command.words[:1] == ("cd",) and any(map(is_local, command.words[1:2]))


def _exports(commands: Sequence[Command], *, is_run: bool) -> dict[str, Export]:
    """Return what is exported, and what the last command, ``srobust run``, alone gets."""
    exports: dict[str, Export] = {}
    for at, command in enumerate(commands):
        if command.words[:1] == ("export",) or (is_run and at == len(commands) - 1):
            for name, value in shell.assigned(command.words):
                known = None if expands(value) and not value.startswith("'") else unquoted(value)
                exports[name] = Export(line=command.line, value=known)
    return exports


def _waits_once(commands: Sequence[Command]) -> str:
    """Return what to say: bash ends a ``wait`` for a trapped signal, runs the trap and goes on after it."""
    traps = [
        words for c in commands if (words := tuple(word for word in c.words if word != "--"))[:1] == ("trap",)
    ]
    actions = [
        commands_of(commands, unquoted(words[1]))
        for words in traps
        if len(words) > 2 and unquoted(words[1]) not in ("", "-") and not _PSEUDO.issuperset(words[2:])
    ]
    # One that ends the script, or waits itself, means what it does.
    if not any(not any({"wait", "exit"} & set(c.words[:3]) for c in action) for action in actions):
        return ""
    behind = next((i for i in range(len(commands) - 1, -1, -1) if commands[i].end == "&"), len(commands))
    waits = [at for at in range(behind + 1, len(commands)) if "wait" in commands[at].words[:4]]
    if len(waits) != 1 or commands[waits[0]].end == "||":
        return ""
    loops = [at for at, c in enumerate(commands) if _LOOPS & set(c.words[:2])]
    ends = [at for at, c in enumerate(commands) if c.words[:1] == ("done",)]
    is_open = sum(at <= waits[0] for at in loops) > sum(at < waits[0] for at in ends)
    return "" if is_open or any(at > waits[0] for at in loops) else _line([_plain(commands[waits[0]])])


def _line(found: Sequence[Sequence[str]]) -> str:
    return " ".join(found[0])[:60] if found else ""


def _plain(command: Command) -> tuple[str, ...]:
    """Return its words without what opens a block."""
    words = command.words
    while words and words[0] in ("then", "do", "else", "{"):
        words = words[1:]
    return words


def _options(commands: Iterable[Command]) -> frozenset[str]:
    """Return what ``set`` switches on: letters and names."""
    found: set[str] = set()
    for command in commands:
        if command.words[:1] == ("set",):
            for word in command.words[1:]:
                found |= set(word[1:]) if re.fullmatch(r"-\w+", word) else {word}
    return frozenset(found)


def _hides(commands: Sequence[Command], index: int) -> tuple[str, int | None]:
    """Return what decides the script's exit code instead of ``srobust run``, and the code if constant."""
    run, after = commands[index], commands[index + 1 :]
    before = _options(commands[:index])
    if "exec" in run.words[: start_of(run.words)] and run.end not in ("|", "|&", "&"):
        return "", None
    if run.end in ("|", "|&") and "pipefail" not in before:
        return f"a pipe to {' '.join(after[0].words[:1]) if after else 'nothing'}", None
    if set(run.words[:2]) & _CONDITIONS:
        return f"'{run.words[0]}' before it", None
    if run.end == "||":
        return _alternative(after)
    rest = [command for command in after if command.words and command.words[0] not in _CLOSERS]
    while run.end in ("|", "|&") and rest:
        run, *rest = rest
    if run.end == "&":
        last = rest[-1].words if rest else ()
        kept = last[:1] in (("wait",), ("exit",)) or any(word.startswith("wait") for word in last)
        return ("", None) if kept else ("& behind it, without a wait for it at the script's end", None)
    if not rest:
        return "", None
    last = _plain(rest[-1])
    if last[:1] == ("exit",):
        code = unquoted(last[1]) if len(last) > 1 else ""
        if code.isdecimal():
            return f"exit {code}", int(code) & 255
        if "$?" not in code or len(rest) == 1:
            return "", None
    if {"e", "errexit"} & before:
        return "", None
    return f"'{' '.join(last)[:40]}' behind it", None


def _alternative(after: Sequence[Command]) -> tuple[str, int | None]:
    """Return what follows ``||``."""
    words = _plain(after[0]) if after else ()
    if words[:1] in (("true",), (":",)):
        return f"|| {words[0]}", 0
    if words[:1] == ("exit",) and len(words) > 1 and unquoted(words[1]).isdecimal():
        return f"|| exit {unquoted(words[1])}", int(unquoted(words[1])) & 255
    return "", None


def _restarts(commands: Sequence[Command]) -> str:
    unset = bool({"u", "nounset"} & _options(commands))
    if any(re.search(r"SLURM_RESTART_COUNT:?=", word) for command in commands for word in command.words):
        return ""
    for command in commands:
        words = [word for word in command.words if not word.startswith("'")]
        if not any(map(_RESTARTS.search, words)):
            continue
        if unset:
            return "$SLURM_RESTART_COUNT with set -u"
        if {"[", "test"} & set(words) and _COMPARES & set(words):
            return " ".join(command.words)[:60]
    return ""
