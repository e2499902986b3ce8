"""A log as lines that are safe to match and to show: bounded, without anything that a terminal acts on."""

from __future__ import annotations

import re
from typing import NamedTuple

from slurm_robust.util.text import without_controls

HEAD, TAIL = 1024 * 1024, 4 * 1024 * 1024
"""Characters that are read of the beginning and of the end of a huge log: causes are in either."""

LINE = 2000
"""A longer line keeps its beginning and its end, in characters."""


class Line(NamedTuple):
    """One line of a log."""

    number: int
    """From 1, as editors count."""
    text: str


# NCCL from 2.30.7 on names the function as well: "FILE:LINE (function) NCCL WARN TEXT".
_NCCL_FUNCTION = re.compile(r"(:\d+) \(\S{1,160}\) (?=NCCL WARN )")

# Counters of monitors: "nvlink_crc_errors=0".
_ZERO = re.compile(
    r"\b\w{0,40}(?:err|fail|fatal|correct|crc|down|lost|drop|timeout|retired)\w{0,40}=0(?:\.0{1,6})?(?![\w.])",
    re.IGNORECASE,
)


def canonical(text: str) -> str:
    """Return the line as all releases of its program write it, without failures that it counts as none."""
    if "=0" in text:
        text = _ZERO.sub("", text)
    return _NCCL_FUNCTION.sub(r"\1 ", text, count=1) if ") NCCL WARN " in text else text


def lines_of(text: str) -> list[Line]:
    """Return the lines of a log. A progress bar's carriage returns divide a line but are not counted."""
    text = text.removesuffix("\n")
    if len(text) <= HEAD + TAIL:
        return list(_numbered(text, 1))
    middle = text.count("\n", 0, len(text) - TAIL) + 1
    return [*_numbered(text[:HEAD], 1), *_numbered(text[-TAIL:], middle)]


def _numbered(text: str, first: int) -> list[Line]:
    return [
        Line(number, _bounded(part))
        for number, line in enumerate(without_controls(text).split("\n"), first)
        for part in line.rstrip("\r").split("\r")
    ]


def _bounded(line: str) -> str:
    return line if len(line) <= LINE else f"{line[: LINE // 2]} … {line[-LINE // 2 :]}"
