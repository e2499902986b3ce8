"""Losses and gradient norms in progress lines: non-finite values, and jumps. Pure.

Patterns cannot find jumps: a loss of 9 is normal at the beginning of training and a disaster later.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Collection, Sequence
from itertools import pairwise
from statistics import median

from slurm_robust.analysis.logs.text import Line

LITERALS = ("loss", "norm")
"""Lines without these have no values."""

JUMP = 1.5
"""A loss that reaches this multiple of the highest earlier one is a jump, if it is also higher by
``MIN_RISE``."""

MIN_RISE = 1.5
"""Losses of small batches vary by less than this from step to step."""

NORM_JUMP = 30.0
"""The same multiple for a gradient norm, which naturally varies from step to step."""

FAR = 1000.0
"""A value that reaches this multiple of the median is a jump even if an earlier one was as high."""

CLIMB = 5.0
"""A loss that rises ``RISES`` times in a row to this multiple of its minimum is as bad as a jump."""

RISES = 3

_WINDOW = 50
"""Number of earlier values to compare with: at the beginning of training all are high."""

_VALUE = re.compile(
    r"(?<![\w/])(?P<name>(?:[a-z]{1,12}[ _/])?loss(?:_(?!scal)[a-z]{1,12})?|grad(?:ient)?[ _]?norm)"
    r"['\"]?\s{0,12}[:=|]?\s{0,12}"
    r"(?:tensor\()?(?P<value>[-+]?(?:nan|inf(?:inity)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?))(?![\w.])",
    re.IGNORECASE,
)


def non_finite(lines: Sequence[Line]) -> int | None:
    """Return the first line whose loss or gradient norm is NaN or infinite."""
    values = _values(lines)
    well = {name: at for at, name, value in values if math.isfinite(value)}
    return next(
        (
            at
            for at, name, value in values
            if not math.isfinite(value)
            and not _is_best(name)
            and not (_is_norm(name) and well.get(name, -1) > at)
        ),
        None,
    )


def _is_norm(name: str) -> bool:
    """Return whether ``name`` is a gradient norm's. Mixed precision skips a step whose gradients are not
    finite; a finite norm after it is well.
    """
    return "norm" in name


def _is_best(name: str) -> bool:
    """Return whether ``name`` is a best loss's, which is infinite before the first one is known."""
    return name.startswith(("best", "min", "val", "initial"))


def jump(lines: Sequence[Line]) -> int | None:
    """Return the first line whose loss or gradient norm is far above what it was before."""
    before: dict[str, deque[float]] = {}
    for at, name, value in _values(lines):
        if "loss_" in name:
            continue  # a part of the loss, such as a generator's, which goes up and down
        past = before.setdefault(name, deque(maxlen=_WINDOW))
        is_norm = _is_norm(name)
        if past and (_is_far_above(value, past, is_norm) or (not is_norm and _has_climbed(value, past))):
            return at
        if math.isfinite(value):
            past.append(value)
    return None


def _has_climbed(value: float, past: Collection[float]) -> bool:
    rise = [*[*past][-RISES:], value]
    is_rise = len(rise) > RISES and all(low < high for low, high in pairwise(rise))
    return is_rise and math.isfinite(value) and value > min(past) + MIN_RISE and value > CLIMB * min(past) > 0


def _is_far_above(value: float, past: Collection[float], is_norm: bool) -> bool:
    if not math.isfinite(value):
        return False
    factor = NORM_JUMP if is_norm else JUMP
    return any(
        value > usual + MIN_RISE and value > times * usual > 0
        for usual, times in ((max(past), factor), (median(past), FAR))
    )


def _values(lines: Sequence[Line]) -> list[tuple[int, str, float]]:
    return [
        (at, found["name"].lower(), float(found["value"]))
        for at, line in enumerate(lines)
        for found in _VALUE.finditer(line.text)
    ]
