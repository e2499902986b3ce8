"""Text of others (logs, drivers, exceptions) made fit for a terminal, and numbers made short."""

from __future__ import annotations

import re
from collections.abc import Collection

from slurm_robust.analysis.stacks.groups import fold

MOST_TEXT = 600
"""Characters of one text that are shown; the journal has the whole."""

# What a terminal obeys: sequences that begin with ESC or with their one-byte forms (ECMA-48).
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)


def clean(text: str) -> str:
    """``text`` without what a terminal would obey; lines stay lines, of a progress bar its last state."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ESCAPES.sub("", text).split("\n"))
    return "\n".join("".join(map(_visible, line)) for line in lines)


def _visible(char: str) -> str:
    return char if char.isprintable() else "    " if char == "\t" else "?"


def one_line(text: str) -> str:
    """``text`` cleaned, in one line of at most :data:`MOST_TEXT` characters."""
    text = " ".join(clean(text).split())
    return text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 1] + "…"


def count(number: int, thing: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def named(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-3,8``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {fold(ranks)}"
