"""Shell scripts in simple commands. Nothing is expanded; any text is read, in bounded time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

# What a shell replaces as a whole: $(…) and <(…) with two more levels of parentheses, ${…}, `…`.
_EXPANSION = r"[$<>]\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|\$\{[^}\n]{0,200}\}|`[^`]*`"
# A quote that does not end is a letter of its word.
_QUOTED = (
    rf"""{_EXPANSION}|"(?:{_EXPANSION}|\\[\s\S]|[^"\\$`]|\$(?![({{]))*"|"""
    r"""\$'(?:\\[\s\S]|[^'\\])*'|'[^']*'|\\[\s\S]"""
)
_TOKEN = re.compile(
    r"(?P<blank>(?:[^\S\n]|\\\n)+)"
    r"|(?P<comment>(?<![^\s;&|()])#.*)"
    rf"|(?P<redirection>(?:(?<![^\s;&|()])\d+)?(?:<<<|<<-?|<>|[<>]&|>>|>\||[<>])(?!\()|&>>?)"
    r"|(?P<end>\n|;;&|;;|;&|&&|\|\||\|&|[;&|()])"
    rf"|(?P<word>(?:{_QUOTED}|[^\s;&|()<>])+)"
    r"|(?P<other>[\s\S])"
)

_MAX_CHARS = 1 << 18
"""Characters of a script that are read; Slurm takes more, but no one writes as much by hand."""

_MAX_DOCUMENTS = 200


class Command(NamedTuple):
    """A simple command; its words with their quotes, without redirections."""

    words: tuple[str, ...]
    end: str = "\n"
    """The operator behind it, a newline for none."""

    depth: int = 0
    """How many parentheses are around it."""

    line: int = 0
    """The number of the line that its first word stands in."""


class Script(NamedTuple):
    """What a shell sees in a script."""

    commands: tuple[Command, ...]
    comments: frozenset[int]
    """The numbers of lines that a comment begins in: none inside of a string or a here-document."""

    open_quote: int | None = None
    """The number of the line with a quote that does not end; None also if parentheses hide it."""


def parse(text: str) -> Script:
    """Parse simple commands in the order in which they stand, empty ones left out but for their operators."""
    text = text[:_MAX_CHARS]
    commands: list[Command] = []
    comments: set[int] = set()
    words: list[str] = []
    awaited: list[tuple[str, bool]] = []
    operator, at, line, depth, documents = "", 0, 1, 0, 0
    begins = 1
    open_quote: int | None = None
    nested = False
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:  # pragma: no cover  any character is a token
            break
        kind, token = match.lastgroup, match[0]
        at = match.end()
        if kind == "comment":
            comments.add(line)
        elif kind == "redirection":
            operator = token
        elif kind == "word" or kind == "other":
            word = token.replace("\\\n", "")
            nested = nested or (token.endswith("$") and text.startswith("(", at))
            if open_quote is None and any(text.find(q, at) < 0 for q in _quotes(token)):
                open_quote = line
            if operator.startswith("<<") and operator != "<<<":
                awaited.append((re.sub(r"[\\'\"]", "", word), operator == "<<-"))
            elif not operator:
                begins = begins if words else line
                words.append(word)
            operator = ""
        elif kind == "end":
            commands.append(Command(tuple(words), token, depth, begins))
            depth = max(0, depth + (token == "(") - (token == ")"))
            words, operator = [], ""
        line += token.count("\n")
        if token == "\n":
            for delimiter, tabs in awaited[: _MAX_DOCUMENTS - documents]:
                after = _behind(text, at, delimiter, tabs=tabs)
                line += text.count("\n", at, after)
                at = after
                documents += 1
            awaited = []
    commands.append(Command(tuple(words), "\n", depth, begins))
    found = tuple(command for command in commands if command.words or command.end != "\n")
    return Script(found, frozenset(comments), None if nested else open_quote)


def _quotes(token: str) -> frozenset[str]:
    """Return the quotes in it that do not end there."""
    return frozenset(re.sub(_QUOTED, "", token)) & {'"', "'"} if '"' in token or "'" in token else frozenset()


def _behind(text: str, start: int, delimiter: str, *, tabs: bool) -> int:
    """Return the index at which the lines of a here-document end; ``start`` if its delimiter never comes."""
    lead = r"\t*" if tabs else ""
    end = re.compile(rf"^{lead}{re.escape(delimiter)}$\n?", re.MULTILINE).search(text, start)
    return end.end() if end else start


def assigned(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Return the variables that a command sets, with their values as they are written."""
    for word in words:
        name, equals, value = word.partition("=")
        if equals and re.fullmatch(r"\w+", name):
            yield name, value
        elif word not in ("export", "local", "readonly", "declare", "typeset"):
            return
