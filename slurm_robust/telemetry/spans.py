"""Spans of a job, their ids, and the address of a collector. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record

Value: TypeAlias = str | bool | int | float

TRACES = "/v1/traces"


class TraceSpan(Record):
    """Something that took its time. Times are in seconds since 1970."""

    key: str
    """Names it within its trace: the same span of a later export has the same id."""
    name: str
    begin: float
    end: float
    parent: str = ""
    """The key of the span that it is a part of, "" for none."""
    attributes: dict[str, Value] = {}
    error: str = ""
    """What went wrong, "" for nothing."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return max(0.0, self.end - self.begin)


class Trace(Record):
    """All spans of one job."""

    key: str
    """Names the job among all jobs of all clusters."""
    service: str
    attributes: dict[str, Value]
    """For the whole job."""
    spans: tuple[TraceSpan, ...]
    """Parents before their children."""


class NotSent(SrobustError):
    """The collector did not take the spans, or there is nothing to send them with."""

    exit_code = ExitCode.REFUSED


def trace_id(key: str) -> int:
    """Derive 128 bits, never 0."""
    return int.from_bytes(hashlib.sha256(f"trace {key}".encode()).digest()[:16], "big") or 1


def span_id(trace: str, key: str) -> int:
    """Derive 64 bits, never 0."""
    return int.from_bytes(hashlib.sha256(f"span {trace} {key}".encode()).digest()[:8], "big") or 1


def endpoint_of(url: str) -> str:
    """Return the URL for spans: ``url``, with the usual path if it has none. Raises :class:`NotSent`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NotSent(
            f"{url!r} is no address of a collector",
            fix=f"give one like http://localhost:4318 ({TRACES} is added)",
            code=ExitCode.USAGE,
        )
    return url if parts.path.strip("/") else parts._replace(path=TRACES).geturl()


def by_parent(spans: Sequence[TraceSpan]) -> dict[str, list[TraceSpan]]:
    """Return the children of each span, in the order of time; those without a parent under ""."""
    found: dict[str, list[TraceSpan]] = {}
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        found.setdefault(span.parent, []).append(span)
    return found
