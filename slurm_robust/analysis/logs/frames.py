"""Python's tracebacks: the place in the user's own code, and those that nothing comes of. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Container, Iterator, Sequence
from os.path import commonprefix

from slurm_robust.analysis.logs.text import Line

_FRAME = re.compile(r'File "([^"\n]{1,400})", line (\d+)')
# Code that was installed, the interpreter's own, and what has no file.
_FOREIGN = re.compile(r"(?:site|dist)-packages/|/lib(?:64)?/python\d|^<(?!stdin|string)|/opt/conda/lib/")
# A frame below which Python quotes the source, after a label of a rank, a time or the margin of a group.
_QUOTING = re.compile(r'(.*?)(?<! )( *)File "[^"\n]{1,400}", line \d+(?:, in .*)?$')
# Numbers of a label that change from line to line: times, and what counts lines.
_CHANGING = re.compile(r"\d+(?:[-:/.,T ]\d+)+|\d{5,}")
_QUOTED = 10
"""So many lines of others may stand between a frame and the source quoted below it."""
_SPAN = 400
"""Maximum number of lines of a traceback."""

# If a log begins inside a traceback: what follows the source that is quoted first.
_GOES_ON = re.compile(r'( *)(?:File "[^"\n]{1,400}", line \d+|\[Previous line repeated )')
_ENDS = re.compile(r"[\w.]*(?:Error|Exception|Interrupt|Exit|Iteration|Timeout|Failure)(?::|$)")

# The first and the last line of the box that rich draws around all but the exception itself, after a label.
_BOX = re.compile(r"([^╭╰+]*)[╭╰+][─-]+( Traceback \(most recent call last\) )?[─-]+[╮╯+]$")
# The lines of a box that began before the log: numbered source, and what is in a box of local variables.
_OF_BOX = re.compile(r"[^│]{0,80}│ (?:[❱ ] *\d+ |[│╭╰]).*│$")

# What destructors and the like raise is reported to no caller; a handler's failure to write a log line
# neither.
_ANNOUNCED = ("exception ignored in", "--- logging error ---")
_HEAD = "Traceback (most recent call last)"
# Places at which multiprocessing prints an exception and goes on, by its outermost frame and the exceptions
# that do no harm: of what is put into a queue whose reader has gone, and of the clean-up at a process's end.
_PRINTED = (
    ("in _feed", "/multiprocessing/queues.py", re.compile(r"BrokenPipeError|ConnectionResetError")),
    ("in _run_finalizers", "/multiprocessing/util.py", re.compile(r"")),
)

# A program that prints an exception as a warning or through its log, and one that tells below how it goes on.
_PRINTS = re.compile(r"\bWARN|(?:^|[^\w])(?:ERROR|EXCEPTION)\b(?!.{0,80}elastic)|\bcaught\b")
_GIVES_UP = re.compile(
    r"fatal|uncaught|abort|exiting|giv(?:e|ing) up|\belastic\b|ChildFailed|ProcessGroup|\bNCCL\b",
    re.IGNORECASE,
)
_GOES_ON_WITHOUT = re.compile(
    r"\bfall(?:s|ing)? back\b|\b(?:use|using|uses) .{1,80} instead\b|\bcontinu(?:e|es|ing) without\b"
    r"|\b(?:is|are|will be) disabled\b|\bignor(?:ed|ing)\b|\bskipp(?:ed|ing)\b",
    re.IGNORECASE,
)

_CHAINED = re.compile(r"During handling of the above exception|the direct cause of the following exception")

# An exception's own line, which is not indented, after what srun or torchrun put in front of every line.
_LAST = re.compile(r"^(?:\[[^\]]{1,60}\]:? ?|\d{1,6}: ?){0,3}(?!\d)[\w.<>]+(?::|$)")


def place(lines: Sequence[Line], at: int) -> str:
    """Return ``train.py:12``: the innermost frame of the traceback that ends at line ``at``, or holds it.

    Frames outside of installed packages come first, since the bug is mostly there. Only the file's name is
    given, because folders differ from node to node and from release to release. "" without a traceback.
    """
    frames = _above(lines, at) or _below(lines, at)
    own = [frame for frame in frames if not _FOREIGN.search(frame[0])]
    if not frames:
        return ""
    file, number = (own or frames)[-1]
    return f"{file.rpartition('/')[2]}:{number}"


def without_source(lines: Sequence[Line]) -> list[Line]:
    """Return the lines, empty if a traceback quotes the user's source or marks a place in it.

    Source is no evidence: it may be a comment, or a message that is never raised. Lines of others may stand
    between a frame and its source; the exception's own line ends a traceback.
    """
    # By label: the frame's indentation, and the last line that counts.
    opened: dict[str, tuple[int, int]] = {}
    kept = list(lines)
    for at in (*range(_cut(lines)), *_boxed(lines)):
        kept[at] = lines[at]._replace(text="")
    for at, line in enumerate(lines):
        if frame := _QUOTING.match(line.text) if 'File "' in line.text else None:
            opened[_CHANGING.sub("0", frame[1])] = len(frame[2]), at
        elif opened:
            text = _CHANGING.sub("0", line.text)
            for label, (indent, last) in [*opened.items()]:
                rest = text.removeprefix(label)
                if at - last > _QUOTED:
                    del opened[label]
                elif not text.startswith(label):
                    continue
                elif rest.startswith(" " * (indent + 1)):
                    kept[at] = line._replace(text="")
                    opened[label] = indent, at
                elif _LAST.match(rest.lstrip(" ")):
                    del opened[label]
    return kept


def _cut(lines: Sequence[Line]) -> int:
    """Return the number of lines with which a log begins inside the source that a traceback quotes."""
    texts = [_CHANGING.sub("0", line.text) for line in lines[: _QUOTED + 1]]
    for at in range(1, len(texts)):
        label = len(commonprefix(texts[: at + 1]).rstrip(" "))  # noqa: RUF071  # of characters
        *quoted, rest = (text[label:] for text in texts[: at + 1])
        least, indent = min(map(_indent, quoted)), _indent(rest)
        if (_GOES_ON.match(rest) and least > indent) or (_ENDS.match(rest[indent:]) and least >= indent + 4):
            return at
    return 0


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip(" "))


def _boxed(lines: Sequence[Line]) -> Iterator[int]:
    """Yield the lines in rich's boxes, which quote source and show local variables."""
    boxes: dict[str, float] = {}  # by label: the newest line of the box, -inf when it has ended
    for at, line in enumerate(lines):
        if line.text.endswith(("╮", "╯", "+")) and (found := _BOX.match(_CHANGING.sub("0", line.text))):
            boxes[found[1]] = at if found[2] else -math.inf
        elif line.text.endswith(("│", "|")):
            text = _CHANGING.sub("0", line.text)
            label = next((box for box in boxes if text.startswith((f"{box}│", f"{box}|"))), None)
            if label is not None and at - boxes[label] <= _QUOTED:
                boxes[label] = at
                yield at
            elif not boxes and _OF_BOX.match(text):
                yield at


def ignored(lines: Sequence[Line], having: Callable[[str], list[int]]) -> Iterator[range]:
    """Yield the lines of exceptions that end nothing: with what announces them, and their traceback if any.

    ``having``: the lines that may have a literal.
    """
    for literal in _ANNOUNCED:
        for at in having(literal):
            yield range(at, at + 1 + _length(lines, at + 1))
    for literal, file, harmless in _PRINTED:
        for at in having(literal):
            begin = at - 1
            if file in lines[at].text and begin >= 0 and _HEAD in lines[begin].text:
                end = begin + _length(lines, begin)
                if harmless.search(lines[end - 1].text):
                    yield range(begin, end)


def caught(lines: Sequence[Line], having: Callable[[str], list[int]]) -> Iterator[range]:
    """Yield tracebacks that a program prints, with what announces them; its steps tell if it goes on."""
    for at in having(_HEAD.lower()):
        begin, end = at, _end_of_chain(lines, at)
        before = lines[at].text.partition(_HEAD)[0]
        if at and not _PRINTS.search(before) and _PRINTS.search(lines[at - 1].text):
            begin, before = at - 1, lines[at - 1].text
        below = lines[end].text if end < len(lines) else ""
        is_told = _PRINTS.search(before) or _GOES_ON_WITHOUT.search(below)
        if end > at and is_told and not _GIVES_UP.search(f"{before} {below}"):
            yield range(begin, end)


def _end_of_chain(lines: Sequence[Line], begin: int) -> int:
    """Return the line after the last traceback of a chain whose first begins there."""
    end = begin + _length(lines, begin)
    while any(_CHAINED.search(line.text) for line in lines[end : end + 3]):
        head = next((at for at in range(end, min(end + 6, len(lines))) if _HEAD in lines[at].text), None)
        if head is None:
            break
        end = head + _length(lines, head)
    return end


def raised(lines: Sequence[Line], having: Callable[[str], list[int]]) -> Iterator[int]:
    """Yield the lines with the exceptions that tracebacks end with."""
    for at in having(_HEAD.lower()):
        if length := _length(lines, at):
            yield at + length - 1


def explained(lines: Sequence[Line], found: Container[int]) -> list[int]:
    """Return the first lines of tracebacks whose exception itself is among the lines that rules ``found``."""
    heads = (at for at, line in enumerate(lines) if _HEAD in line.text and at in found)
    return [at for at in heads if (length := _length(lines, at)) > 1 and at + length - 1 in found]


def _length(lines: Sequence[Line], begin: int) -> int:
    """Return the length of the traceback, or of the bare exception, that begins there; 0 if neither."""
    texts = [line.text for line in lines[begin : begin + _SPAN]]
    if texts and _HEAD in texts[0]:
        return next((n for n, text in enumerate(texts[1:], 2) if _LAST.match(text)), 2)
    return int(bool(texts and _LAST.match(texts[0])))


def _above(lines: Sequence[Line], at: int) -> list[tuple[str, str]]:
    frames: list[tuple[str, str]] = []
    for line in reversed(lines[max(0, at - _SPAN) : at + 1]):
        if found := _FRAME.search(line.text):
            frames.append((found[1], found[2]))
        elif _HEAD in line.text:
            break
    return frames[::-1]


def _below(lines: Sequence[Line], at: int) -> list[tuple[str, str]]:
    """Return the lines below a deciding line that stands ahead of its traceback."""
    frames: list[tuple[str, str]] = []
    for line in lines[at + 1 : at + 60]:
        if found := _FRAME.search(line.text):
            frames.append((found[1], found[2]))
    return frames
