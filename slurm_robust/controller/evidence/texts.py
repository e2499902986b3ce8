"""Text of others (logs, drivers, exceptions) made fit for a terminal, and numbers made short."""

from __future__ import annotations

from collections.abc import Collection

from slurm_robust.analysis.stacks.groups import fold
from slurm_robust.util import text

MOST_TEXT = 600
"""Characters of one text that are shown; the journal has the whole."""


def clean(log: str) -> str:
    """A log without what a terminal would obey; lines stay lines, of a progress bar its last state."""
    return text.visible(text.settled(log))


def one_line(words: str) -> str:
    """``words`` in one line of at most :data:`MOST_TEXT` characters."""
    return text.one_line(words, MOST_TEXT)


count = text.count


def named(ranks: Collection[int]) -> str:
    """``rank 3``, ``ranks 0-3,8``."""
    return f"rank{'' if len(ranks) == 1 else 's'} {fold(ranks)}"
