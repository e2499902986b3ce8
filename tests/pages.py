"""Commands in pages of the documentation, as the tests find them.

A block of commands is a fence that begins with three backticks and ``bash``. Lines
``<!-- shows: REGEX -->`` after it say what it prints. Commands in fences of no
language count as well, where only their options matter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from slurm_robust.model.record import Record

DOCS = Path(__file__).resolve().parents[1] / "docs"

_PLAIN = re.compile(r"^(?:```\n(.*?)^```$|```\w+\n.*?^```$)", re.MULTILINE | re.DOTALL)
_BLOCK = re.compile(r"^```bash\n(.*?)^```\n((?:<!-- shows: [^\n]* -->\n)*)", re.MULTILINE | re.DOTALL)
_SHOWS = re.compile(r"<!-- shows: (.*) -->")
_SEPARATORS = {"|", "||", "&&", ";", "&"}


class Block(Record):
    """Commands of a page."""

    line: int
    """Where they begin on the page, from 1."""
    code: str
    shows: tuple[str, ...]
    """Regular expressions, each of which matches in what the block prints."""


def blocks(page: str) -> list[Block]:
    """All blocks of commands, in their order."""
    return [
        Block(
            line=page.count("\n", 0, found.start(1)) + 1, code=found[1], shows=tuple(_SHOWS.findall(found[2]))
        )
        for found in _BLOCK.finditer(page)
    ]


def plain_blocks(page: str) -> list[Block]:
    """Fences of no language: commands and what they print, or neither."""
    return [
        Block(line=page.count("\n", 0, found.start(1)) + 1, code=found[1], shows=())
        for found in _PLAIN.finditer(page)
        if found[1] is not None
    ]


def commands(code: str, program: str) -> Iterator[list[str]]:
    """The words of each command ``program`` in a block, without comments and redirections."""
    for line in code.replace("\\\n", " ").splitlines():
        if not re.search(rf"(?:^|^\$ |[|;&(] *){program} ", line):
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        tokens = [token for token in lexer if token != "$"] + [";"]
        for before, token in zip(["", *tokens], tokens, strict=False):
            if token in _SEPARATORS or set(token) <= {"(", ")"}:
                if words[:1] == [program]:
                    yield words
                words = []
            elif set(token) <= {"<", ">"} or before in ("<", ">", ">>"):
                continue
            else:
                words.append(token)
