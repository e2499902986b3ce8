"""Standard output for people: the only place that makes a console, and hands texts of others on as texts."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

WIDTH = 160
"""Columns where there is no terminal: rich would fold everything into 80."""


class Screen(Console):
    """A console to which every string is a plain text: no markup, no emoji, nothing that a terminal obeys.

    Views make their texts one line with :func:`~slurm_robust.util.text.one_line`, which reads better; what
    they forget is caught here, where rich has laid out all that it is going to write.
    """

    def __init__(self, *, stderr: bool = False) -> None:
        stream = sys.stderr if stderr else sys.stdout
        super().__init__(
            markup=False,
            emoji=False,
            highlight=False,
            stderr=stderr,
            width=None if stream.isatty() else WIDTH,
        )

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The segments of ``renderable``; only those of rich itself command the terminal."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("".join(map(_shown, segment.text)), segment.style)


def _shown(char: str) -> str:
    # Of the width with which the layout has reckoned.
    return char if char.isprintable() or char == "\n" else "?" * cell_len(char)
