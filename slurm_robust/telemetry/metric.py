"""A metric, and Prometheus's text format of its samples (version 0.0.4).

The format is a handful of lines, and node_exporter's textfile collector reads the same one. Each page is made
from one record, the live status. What a client library would cost stands in docs/design.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar

from slurm_robust.model.record import Record
from slurm_robust.util.text import one_line

T = TypeVar("T")

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MAX_LABEL = 200
"""Characters of a label's value that are kept."""


class MetricType(str, Enum):
    """What Prometheus calls the type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"


class Metric(Record):
    """One metric of the table. Names and units follow Prometheus's conventions for naming."""

    name: str
    help: str
    """One line; the reference page shows it."""
    kind: MetricType = MetricType.GAUGE
    labels: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """``seconds``, ``bytes``, ``ratio`` (0 to 1) or "" for a number, by the name."""
        word = self.name.removesuffix("_total").rpartition("_")[2]
        return word if word in UNITS else ""


UNITS = ("seconds", "bytes", "ratio")

Sample: TypeAlias = tuple[Sequence[str], float]
"""The values of a metric's labels, in their order, and the value."""


class Rendered(Record):
    """Lines of samples that were made before, with the labels that all samples have."""

    text: str


Family: TypeAlias = tuple[Metric, Iterable[Sample] | Rendered]
"""A metric and all its samples. A metric that has none is left out."""

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def render(families: Iterable[Family], constant: Mapping[str, str] | None = None) -> bytes:
    """Render the page. ``constant``: labels of every sample."""
    always = [_pair(name, value) for name, value in (constant or {}).items()]
    numbers = _Made(number)
    lines: list[str] = []
    for metric, samples in families:
        if isinstance(samples, Rendered):
            found: Sequence[str] = [samples.text] if samples.text else ()
        else:
            found = _lines(metric, samples, always, numbers)
        if found:
            lines.append(f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind.value}\n")
            lines += found
    return "".join(lines).encode()


def rendered(metric: Metric, samples: Iterable[Sample], constant: Mapping[str, str]) -> str:
    """Render lines for :class:`Rendered`."""
    always = [_pair(name, value) for name, value in constant.items()]
    return "".join(_lines(metric, samples, always, _Made(number)))


def _lines(
    metric: Metric, samples: Iterable[Sample], always: list[str], numbers: _Made[float]
) -> Sequence[str]:
    pairs = [_Made(partial(_pair, name)) for name in metric.labels]
    if len(pairs) in (1, 2) and always:  # a thousand nodes by a dozen states: four times as fast
        head = f"{metric.name}{{{','.join(always)},"
        if len(pairs) == 1:
            (pair,) = pairs
            return [f"{head}{pair[a]}}} {numbers[value]}\n" for (a,), value in samples]
        first, second = pairs
        return [f"{head}{first[a]},{second[b]}}} {numbers[value]}\n" for (a, b), value in samples]
    lines = []
    for labels, value in samples:
        every = ",".join(always + [pair[text] for pair, text in zip(pairs, labels, strict=True)])
        lines.append(
            f"{metric.name}{{{every}}} {numbers[value]}\n" if every else f"{metric.name} {numbers[value]}\n"
        )
    return lines


class _Made(dict[T, str]):
    """Texts, each made once for a page, which has most of them many times."""

    def __init__(self, make: Callable[[T], str]) -> None:
        self._make = make

    def __missing__(self, key: T) -> str:
        text = self[key] = self._make(key)
        return text


def _pair(name: str, value: str) -> str:
    return f'{name}="{escaped(value)}"'


def escaped(text: str) -> str:
    """Escape a label's value between quotes: one visible line, of bounded length."""
    if text.isascii() and text.isalnum():  # as most are
        return text[:MAX_LABEL]
    # Half a character, which UTF-8 cannot say, is no printable one, and so a "?" already.
    return one_line(text, MAX_LABEL).translate(_ESCAPES)


def number(value: float) -> str:
    """Format ``value`` in Go's syntax: ``3``, ``0.25``, ``NaN``, ``+Inf``."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))
