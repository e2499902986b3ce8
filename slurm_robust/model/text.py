"""Text made fit for people: of others (logs, drivers, users) for a terminal, a table and Slurm's lines."""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST_NAMES = 8

# What a terminal obeys: sequences that begin with ESC or with their one-byte forms (ECMA-48). Those that
# carry text are bounded: one that nobody has ended must not swallow the rest of a line.
# As text: re compiles it when it is first needed, and every hook imports this.
_ESCAPES = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,200}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def without_escapes(text: str) -> str:
    """``text`` without a terminal's control sequences; single control characters stay."""
    return re.sub(_ESCAPES, "", text)


def printable(text: str) -> str:
    """``text`` with a blank for every character that cannot be shown."""
    return "".join(char if char.isprintable() else " " for char in text)


def one_line(text: str, most: int | None = None) -> str:
    """The words of ``text`` in one line, of at most ``most`` characters; an ellipsis tells of a cut."""
    line = " ".join(printable(text).split())
    return line if most is None or len(line) <= most else line[: most - 1].rstrip() + "…"


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def some_of(names: Iterable[str]) -> str:
    """``n1, n2``; of more than eight names the first, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more
