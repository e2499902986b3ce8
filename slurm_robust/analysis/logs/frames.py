"""The place of a Python traceback in the user's own code. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.analysis.logs.text import Line

_FRAME = re.compile(r'File "([^"\n]{1,400})", line (\d+)')
# Code that was installed, the interpreter's own, and what has no file.
_FOREIGN = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?!stdin|string)|/opt/conda/lib/")
_SPAN = 400
"""A traceback is so many lines long at most."""


def place(lines: Sequence[Line], at: int) -> str:
    """``train.py:12``: the innermost frame of the traceback that ends at line ``at``, or holds it.

    Frames outside of installed packages come first, since the bug is mostly there. Only the file's name is
    told, because folders differ from node to node and from release to release. "" without a traceback.
    """
    frames = _above(lines, at) or _below(lines, at)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    if not frames:
        return ""
    file, number = (own or frames)[-1]
    return f"{file.rpartition('/')[2]}:{number}"


def _above(lines: Sequence[Line], at: int) -> list[tuple[str, str]]:
    frames: list[tuple[str, str]] = []
    for line in reversed(lines[max(0, at - _SPAN) : at + 1]):
        if found := _FRAME.search(line.text):
            frames.append((found[1], found[2]))
        elif "Traceback (most recent call last)" in line.text:
            break
    return frames[::-1]


def _below(lines: Sequence[Line], at: int) -> list[tuple[str, str]]:
    """For a deciding line that stands ahead of its traceback."""
    frames: list[tuple[str, str]] = []
    for line in lines[at + 1 : at + 60]:
        if found := _FRAME.search(line.text):
            frames.append((found[1], found[2]))
    return frames
