"""Python's tracebacks: the place in the user's own code, and those that the interpreter ignores. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from slurm_robust.analysis.logs.text import Line

_FRAME = re.compile(r'File "([^"\n]{1,400})", line (\d+)')
# Code that was installed, the interpreter's own, and what has no file.
_FOREIGN = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?!stdin|string)|/opt/conda/lib/")
_SPAN = 400
"""A traceback is so many lines long at most."""

IGNORED = "exception ignored in"
"""What Python prints of destructors and the like, which nobody gets to know, ahead of their traceback."""

# An exception's own line, which is not indented: behind what srun or torchrun put in front of every line.
_LAST = re.compile(r"^(?:\[[^\]]{1,60}\]:? ?|\d{1,6}: ?)?[\w.]+(?::|$)")


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


def ignored(lines: Sequence[Line], at: int) -> range:
    """The lines of the ignored exception that line ``at`` announces, and of its traceback if there is one."""
    below = [line.text for line in lines[at + 1 : at + _SPAN]]
    if below and "Traceback (most recent call last)" in below[0]:
        count = next((n for n, text in enumerate(below, 1) if _LAST.match(text)), 1)
    else:
        count = int(bool(below and _LAST.match(below[0])))
    return range(at, at + 1 + count)


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
