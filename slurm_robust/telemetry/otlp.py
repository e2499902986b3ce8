"""Spans, and how they go to a collector by OTLP over HTTP.

OpenTelemetry's own exporter sends them, so its variables hold: OTEL_EXPORTER_OTLP_HEADERS, certificates,
compression, time limits. It is in the extra ``otlp`` and imported only when something is sent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

from slurm_robust.model.errors import ExitCode, SrobustError
from slurm_robust.model.record import Record
from slurm_robust.version import __version__

Value: TypeAlias = str | bool | int | float

TRACES = "/v1/traces"
AT_ONCE = 500
"""Spans in one request."""

_NS = 10**9


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
    """Of the whole job."""
    spans: tuple[TraceSpan, ...]
    """Parents before their children."""


class NotSent(SrobustError):
    """The collector did not take the spans, or there is nothing to send them with."""

    exit_code = ExitCode.REFUSED


def trace_id(key: str) -> int:
    """128 bits, never 0."""
    return int.from_bytes(hashlib.sha256(f"trace {key}".encode()).digest()[:16], "big") or 1


def span_id(trace: str, key: str) -> int:
    """64 bits, never 0."""
    return int.from_bytes(hashlib.sha256(f"span {trace} {key}".encode()).digest()[:8], "big") or 1


def endpoint_of(url: str) -> str:
    """Where spans are sent: ``url``, with the usual path where it has none. Raises :class:`NotSent`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise NotSent(
            f"{url!r} is no address of a collector",
            fix=f"give one like http://localhost:4318 ({TRACES} is added)",
            code=ExitCode.USAGE,
        )
    return url if parts.path.strip("/") else parts._replace(path=TRACES).geturl()


def send(trace: Trace, url: str) -> None:
    """Send all spans to the collector at ``url``. Raises :class:`NotSent`.

    Sent again they have the same ids, so that a collector that knows them keeps one of each.
    """
    endpoint = endpoint_of(url)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.export import SpanExportResult
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode
    except ImportError as error:
        raise NotSent(
            f"OpenTelemetry is not installed ({error})", fix="pip install 'slurm_robust[otlp]'"
        ) from error

    def context(key: str) -> SpanContext:
        return SpanContext(
            trace_id(trace.key), span_id(trace.key, key), is_remote=False, trace_flags=TraceFlags(1)
        )

    def readable(span: TraceSpan) -> ReadableSpan:
        return ReadableSpan(
            name=span.name,
            context=context(span.key),
            parent=context(span.parent) if span.parent else None,
            resource=resource,
            attributes=dict(span.attributes),
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=int(span.begin * _NS),
            end_time=int(max(span.begin, span.end) * _NS),
            instrumentation_scope=InstrumentationScope("slurm_robust", __version__),
        )

    resource = Resource({"service.name": trace.service, **trace.attributes})
    said = _Said()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(said)
    before, logger.propagate = logger.propagate, False
    exporter = OTLPSpanExporter(endpoint=endpoint)
    try:
        for first in range(0, len(trace.spans), AT_ONCE):
            batch = [readable(span) for span in trace.spans[first : first + AT_ONCE]]
            if exporter.export(batch) is not SpanExportResult.SUCCESS:
                why = said.last or "no reason given"
                raise NotSent(
                    f"{endpoint} did not take the spans: {why}", fix="see whether the collector runs there"
                )
    finally:
        exporter.shutdown()  # type: ignore[no-untyped-call]
        logger.removeHandler(said)
        logger.propagate = before


class _Said(logging.Handler):
    """Keeps what the exporter logs of a failure, which its result does not tell."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()


def by_parent(spans: Sequence[TraceSpan]) -> dict[str, list[TraceSpan]]:
    """The children of each span, in the order of time; those without a parent under ""."""
    found: dict[str, list[TraceSpan]] = {}
    for span in sorted(spans, key=lambda each: (each.begin, -each.end)):
        found.setdefault(span.parent, []).append(span)
    return found
