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

_NOT_ASCII = r"[^\n -~]"


def without_escapes(text: str) -> str:
    """``text`` without a terminal's control sequences; single control characters stay."""
    return re.sub(_ESCAPES, "", text)


def visible(text: str) -> str:
    """``text`` as a terminal may get it: lines stay lines, escape sequences go, ``?`` stands for the rest.

    What turns the direction of writing, and bytes that were no text, count among the rest.
    """
    if text.isprintable():
        return text
    return "\n".join(map(_visible_line, text.split("\n")))


def _visible_line(line: str) -> str:
    if line.isprintable():
        return line
    return "".join(map(_visible_char, without_escapes(line.removesuffix("\r"))))


def _visible_char(char: str) -> str:
    return char if char.isprintable() else "    " if char == "\t" else "?"


def one_line(text: str, most: int | None = None) -> str:
    """The words of ``text``, visible, in one line of at most ``most`` characters; ``…`` tells of a cut."""
    line = visible(" ".join(without_escapes(text).split()))
    return line if most is None or len(line) <= most else line[: most - 1].rstrip() + "…"


def message(text: str) -> str:
    """``text``, visible, with every line after the first indented: none can be taken for one of ours."""
    return re.sub(r"\n(?=\S)", "\n  ", visible(text))


def settled(log: str) -> str:
    """A log without what was written over: of each line of a progress bar its last state."""
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in log.split("\n"))


def as_json(value: object, indent: int | None = 2) -> str:
    """``value`` as JSON in ASCII, which says the same and holds nothing that a terminal obeys.

    Half a character (a byte that was no UTF-8 is read as one), which JSON cannot say, is a ``?``.
    """
    import json  # not for hooks, which begin many times an hour

    import msgspec

    plain = msgspec.to_builtins(value, str_keys=True)
    separators = (",", ":") if indent is None else None
    text = json.dumps(plain, indent=indent, separators=separators, ensure_ascii=False)
    whole = text.encode(errors="replace").decode()
    return re.sub(_NOT_ASCII, lambda found: json.dumps(found[0])[1:-1], whole)


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def some_of(names: Iterable[str]) -> str:
    """``n1, n2``; of more than eight names the first, and how many more there are."""
    found = sorted(names)
    more = f" and {len(found) - _MOST_NAMES} more" if len(found) > _MOST_NAMES else ""
    return ", ".join(found[:_MOST_NAMES]) + more
