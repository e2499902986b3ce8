"""Requirements on the patterns of rules, so that scanning a log is fast and a hostile log cannot stall it.

A pattern needs a *literal*: characters that every line it matches contains. :meth:`str.find` finds lines by
their literals; the regular expression is tried on those lines only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache

SHORTEST_LITERAL = 3

_TOKEN = re.compile(
    r"(?P<escape>\\.)|(?P<set>\[\^?\]?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P<\w+>|<?[=!]|[:>]|-?[a-z]+:))?)"
    r"|(?P<close>\))|(?P<repeat>[*+?]|\{\d*,?\d*\})|(?P<bar>\|)|(?P<any>[.^$])|(?P<plain>.)",
    re.DOTALL,
)
_LOOKAROUNDS = ("(?=", "(?!", "(?<=", "(?<!")
_UNBOUNDED = re.compile(r"[*+]|\{\d*,\}")


class BadPattern(ValueError):
    """The pattern cannot be used. The text says why, ``fix`` what to write instead."""

    def __init__(self, text: str, fix: str) -> None:
        super().__init__(text)
        self.fix = fix


def compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern without regard to case. Raises :class:`BadPattern`."""
    try:
        return _compile(pattern)
    except re.error as error:
        raise BadPattern(
            f"is not a regular expression: {error}", "put \\ before characters that stand for themselves"
        ) from error


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE)


def check(pattern: str) -> None:
    """Raise :class:`BadPattern` for a pattern that is invalid, too slow, or has no literal."""
    compiled(pattern)
    if _nests(pattern):
        raise BadPattern("repeats a repetition, which can take forever", "write bounds such as {0,80}")
    if not literals_of(pattern):
        raise BadPattern(
            f"has a match without {SHORTEST_LITERAL} plain characters in a row",
            "add some, so that lines are found fast",
        )


@cache
def literals_of(pattern: str) -> tuple[str, ...]:
    """Return literals, in lower case, of which every match contains one; () if none is long enough."""
    tokens = list(_tokens(pattern))
    literals = _choices(tokens)
    return tuple(dict.fromkeys(literals)) if _least(literals) >= SHORTEST_LITERAL else ()


def _choices(tokens: list[tuple[str, str]]) -> list[str]:
    """Return a literal for each alternative, up to the end of the group. The tokens are used up."""
    literals: list[str] = []
    parts: list[list[str]] = [[""]]  # runs of characters, and groups with a literal for each alternative
    while tokens:
        kind, token = tokens.pop(0)
        if kind == "close":
            break
        if kind == "bar":
            literals += max(parts, key=_least)
            parts = [[""]]
        elif kind == "open":
            inner = _choices(tokens)
            parts += [[""] if token in _LOOKAROUNDS else inner, [""]]
        elif kind == "repeat" and token[0] in "*?{":
            _forget_last(parts)
        elif char := _plain(kind, token):
            parts[-1] = [parts[-1][0] + char.lower()]
        else:
            parts += [[""], [""]]
    return literals + max(parts, key=_least)


def _forget_last(parts: list[list[str]]) -> None:
    """Forget the last character or group, which need not be there."""
    if parts[-1] == [""]:
        parts[-2:-1] = [[""]]
    else:
        parts[-1] = [parts[-1][0][:-1]]
    parts += [[""], [""]]


def _least(literals: Iterable[str]) -> int:
    return min(map(len, literals))


def _plain(kind: str, token: str) -> str:
    if kind == "plain":
        return token
    return token[1] if kind == "escape" and not token[1].isalnum() else ""


def _tokens(pattern: str) -> Iterator[tuple[str, str]]:
    return ((found.lastgroup or "", found[0]) for found in _TOKEN.finditer(pattern))


def _nests(pattern: str) -> bool:
    """Return whether an unbounded repetition contains another one."""
    holds = [False]
    closed = False
    for kind, token in _tokens(pattern):
        unbounded = kind == "repeat" and bool(_UNBOUNDED.match(token))
        if unbounded and closed:
            return True
        closed = False
        if kind == "open":
            holds.append(False)
        elif kind == "close" and len(holds) > 1:
            closed = holds.pop()
            holds[-1] = holds[-1] or closed
        elif unbounded:
            holds[-1] = True
    return False
