"""What the owner wishes of an update, and what follows from it beside the release that runs. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.model.release import When
from slurm_robust.util.text import one_line, some_of

MAX_MESSAGE = 400
"""Characters of a message."""

_OURS = ("SROBUST_", "SLURM_", "TORCHELASTIC_")
_TORCHRUN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
_TORCHRUN_TOO = ("GROUP_", "ROLE_")


class CannotUpdate(SrobustError):
    """An update is not asked for: it cannot be done, or it would change nothing."""

    exit_code = ExitCode.USAGE


class UpdateWish(Record):
    """The command line of ``srobust update``. What it does not name stays as in the release that runs."""

    code: str | None = None
    """Folder from which the code is taken in place of that of the script."""
    args: str | None = None
    """Arguments of the script, as a shell reads them."""
    words: tuple[str, ...] | None = None
    """The same as words."""
    env: tuple[str, ...] = ()
    """``NAME=VALUE``, or ``NAME`` for the value in the environment of the command."""
    unset: tuple[str, ...] = ()
    config: Path | None = None
    image: str | None = None
    when: When = When.LAZY
    deadline_s: float | None = None
    message: str = ""
    from_step: int = -1
    discard_optimizer: bool = False
    wait: bool = True
    json: bool = False


def arguments(wish: UpdateWish, command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command with the arguments that are wished. Raises :class:`CannotUpdate`.

    The first word stays: the script, module or program. ``command``: that of the release that runs.
    """
    if wish.args is not None and wish.words is not None:
        raise CannotUpdate("--args and words behind -- exclude each other", fix="give one of them")
    if wish.words is None and wish.args is None:
        return command
    try:
        words = wish.words if wish.words is not None else tuple(shlex.split(wish.args or ""))
    except ValueError as error:
        raise CannotUpdate(
            f"--args cannot be read: {str(error).lower()}",
            fix="quote as in a shell, or put the arguments at the end, behind --",
        ) from error
    if wrong := [word for word in words if not _is_text(word)]:
        raise CannotUpdate(f"the argument {one_line(wrong[0])} is not UTF-8", fix="journals hold text only")
    return (command[0], *words)


def environment(wish: UpdateWish, running: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the new release sets. Raises :class:`CannotUpdate`. No message has a value.

    ``running``: those of the release that runs; ``own``: the environment of the command.
    """
    given: dict[str, str] = {}
    for text in wish.env:
        name, equals, value = text.partition("=")
        _check_name(name)
        if not equals and name not in own:
            raise CannotUpdate(
                f"--env {name}: there is no such variable here", fix=f"export it, or give --env {name}=VALUE"
            )
        given[name] = value if equals else own[name]
    if wrong := [name for name, value in given.items() if "\0" in value]:
        raise CannotUpdate(f"--env {wrong[0]}: its value has a NUL", fix="leave it out")
    if wrong := [name for name, value in given.items() if not _is_text(value)]:
        raise CannotUpdate(
            f"--env {wrong[0]}: its value is not UTF-8", fix="encode it, for example as Base64"
        )
    if both := sorted(set(wish.unset) & set(given)):
        raise CannotUpdate(f"--env and --unset both name {both[0]}", fix="give one of them")
    for name in wish.unset:
        _check_name(name)
        if name not in running:
            sets = f"it sets {some_of(sorted(running))}" if running else "it sets none"
            raise CannotUpdate(
                f"--unset {name}: the release that runs does not set it ({sets})",
                fix=f"a variable of the batch script stays; --env {name}= makes it empty",
            )
    return {name: value for name, value in {**running, **given}.items() if name not in wish.unset}


def _is_text(word: str) -> bool:
    """Return whether a word of the command line was UTF-8."""
    return not any("\ud800" <= char <= "\udfff" for char in word)


def _check_name(name: str) -> None:
    if not name or not name.isprintable() or any(char.isspace() for char in name):
        raise CannotUpdate(f"--env {one_line(name)!r}: no name of a variable", fix="write --env NAME=VALUE")
    if name in _TORCHRUN or name.startswith((*_OURS, *_TORCHRUN_TOO)):
        raise CannotUpdate(
            f"--env {name}: srobust or Slurm sets it for each rank", fix="leave it out, or take another name"
        )


def checked_message(text: str) -> str:
    """Return the message of an update in one line. Raises :class:`CannotUpdate` if it is too long."""
    line = one_line(text, None)
    if len(line) > MAX_MESSAGE:
        raise CannotUpdate(
            f"--message has {len(line)} characters",
            fix=f"use {MAX_MESSAGE} at most: it is one line of a table",
        )
    return line
