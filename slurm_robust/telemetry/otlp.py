"""How spans go to a collector by OTLP over HTTP; needs OpenTelemetry.

OpenTelemetry's own exporter sends them, so its variables hold: OTEL_EXPORTER_OTLP_HEADERS, certificates,
compression, time limits. It is in the extra ``admin``, and this module is imported only to send something.
"""

from __future__ import annotations

import logging

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from slurm_robust.telemetry.spans import NotSent, Trace, TraceSpan, endpoint_of, span_id, trace_id
from slurm_robust.version import __version__

AT_ONCE = 500
"""Spans in one request."""

_NS = 10**9


def send(trace: Trace, url: str) -> None:
    """Send all spans to the collector at ``url``. Raises :class:`NotSent`.

    Sent again they have the same ids, so that a collector that knows them keeps one of each.
    """
    endpoint = endpoint_of(url)

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
